from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from urllib.parse import unquote_plus

import numpy as np
import pandas as pd
import pytest
import sqlalchemy
import torch

from fairmp.cli import main, options
from fairmp.datasets import databases
from fairmp.datasets.tables import from_tables
from fairmp.errors import InputError
from fairmp.secrets import without_password

COLUMNS = {"id": "id", "label": "hired", "sensitive": "sex"}


@pytest.fixture
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame({"id": [f"p{k:03}" for k in range(n)], "age": rng.normal(40, 9, n)})
    frame["sex"] = rng.choice(["f", "m"], n)
    frame["hired"] = pd.Series(rng.choice(["yes", "no"], n)).mask(rng.random(n) < 0.1)
    frame["town"] = rng.choice(["Köln, North", 'the "old" one', "Zürich"], n)
    return frame


@pytest.fixture
def edges(people: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    pairs = rng.choice(people["id"], (500, 2))
    return pd.DataFrame(pairs, columns=["a", "b"])


@pytest.fixture
def database(tmp_path: Path, people: pd.DataFrame, edges: pd.DataFrame) -> str:
    with sqlite3.connect(tmp_path / "people.db") as connection:
        people.to_sql("people", connection, index=False)
        edges.to_sql("friends", connection, index=False)
    connection.close()
    return f"sqlite:///{tmp_path / 'people.db'}"


def assert_same_graph(url: str, tmp_path: Path, people: pd.DataFrame, edges: pd.DataFrame) -> None:
    people.to_csv(tmp_path / "people.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    expected = from_tables(tmp_path / "people.csv", tmp_path / "edges.csv", **COLUMNS)
    tables = options.Tables(
        nodes=url, edges=url, nodes_query="select * from people", id="id",
        edges_query="select a, b from friends", label="hired", sensitive=["sex"],
    )  # fmt: skip
    loaded = tables.load_tables()
    for name in ("x", "edge_index", "y", "sens"):
        assert torch.equal(loaded[name], expected[name]), name
    assert loaded.class_names == expected.class_names


def test_query_gives_the_same_graph_as_files(
    database: str, tmp_path: Path, people: pd.DataFrame, edges: pd.DataFrame, monkeypatch
) -> None:
    monkeypatch.setattr(databases, "BATCH_ROWS", 50)
    assert_same_graph(database, tmp_path, people, edges)


def test_postgresql_server(
    postgres: str, tmp_path: Path, people: pd.DataFrame, edges: pd.DataFrame, monkeypatch
) -> None:
    engine = sqlalchemy.create_engine(postgres)
    people.to_sql("people", engine, index=False)
    edges.to_sql("friends", engine, index=False)
    engine.dispose()
    monkeypatch.setattr(databases, "BATCH_ROWS", 50)
    assert_same_graph(postgres, tmp_path, people, edges)
    with pytest.raises(InputError):
        databases.export(postgres, "delete from people returning 1", tmp_path / "x.csv")
    assert_same_graph(postgres, tmp_path, people, edges)


@pytest.mark.parametrize(
    ("url", "query", "argument"),
    [
        ("sqlite:///nowhere.db", "select 1", "nodes"),
        ("{database}", "select * from nothing", "nodes"),
        ("{database}", "drop table people", "nodes"),
        ("{database}", "pragma cache_size = 2000", "nodes"),
        ("{database}", None, "nodes"),
        ("nonsense://x", "select 1", "nodes"),
        ("people.csv", "select 1", "nodes"),
    ],
)
def test_as_file_refuses_wrong_queries(
    database: str, url: str, query: str | None, argument: str
) -> None:
    place = url.format(database=database)
    with pytest.raises(InputError) as error, databases.as_file(place, query, "nodes"):
        pass
    assert error.value.argument == argument
    assert "\n" not in str(error.value)
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        assert connection.execute("select count(*) from people").fetchone() == (120,)
    connection.close()


def test_train_and_predict_from_a_database(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, people: pd.DataFrame
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = ["--nodes", database, "--nodes-query", "select * from people", "--id", "id"]
    tables += ["--edges", database, "--edges-query", "select * from friends"]
    words = ["train", *tables, "--label", "hired", "--sensitive", "sex", "--out", "run"]
    words += ["--epochs", "2", "--splits", "1", "--no-picture", "--backbone", "mlp"]
    for command in (words, ["predict", "run", *tables, "--out", "p.csv"]):
        monkeypatch.setattr(sys, "argv", ["fairmp", *command])
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
    assert list(pd.read_csv("p.csv")["id"]) == list(people["id"])


@pytest.mark.parametrize(
    "query",
    [
        "pragma journal_mode = wal",
        "pragma user_version = 7",
        "attach 'other.db' as other",
        "vacuum into 'copy.db'",
        "vacuum",
        "create temp table x as select 1",
        "delete from people returning id",
        "insert into people select * from people returning id",
        "select 1; delete from people",
    ],
)
def test_query_changes_nothing(
    database: str, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    file = Path(database.removeprefix("sqlite:///"))
    before, beside = file.read_bytes(), sorted(file.parent.iterdir())
    with pytest.raises(InputError), databases.as_file(database, query, "nodes"):
        pass
    assert not list(folder.iterdir())
    assert file.read_bytes() == before
    assert sorted(file.parent.iterdir()) == beside


def test_semicolons_in_text_are_no_second_statement(database: str) -> None:
    query = "select ';' as a, id from people -- all; of them\n;"
    with databases.as_file(database, query, "nodes") as path:
        assert path is not None
        assert len(pd.read_csv(path)) == 120


SECRET = "hunter2"
ADDRESSES = [
    "postgresql://me:{}@host/db",
    "postgresql://me:a:b@{}@host/db",
    "postgresql://host/db?user=me&password={}",
    "postgresql://host/db?user=me&password=x@{}",
    "mysql+pymysql://me:{}@host/db?ssl_key=/k&passwd={}",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3D{}",
    "mssql+pyodbc:///?odbc_connect=DRIVER={{x}};UID=me;PWD={}",
    "snowflake://me@account/db?token={}&warehouse=w",
    "mssql+pyodbc:///?odbc_connect=DRIVER={{ODBC Driver 17}};UID=me;PWD={}",
    "redis://:{}@h",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_form_of_an_address_shows_its_password(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = address.format(SECRET, SECRET)
    for text in (url, f"train --nodes {url} --id x", f"cannot connect to '{url}'."):
        assert SECRET not in without_password(text)

    def fail(*_: object, **__: object) -> None:
        raise TypeError(f"connect() got {unquote_plus(url)} and {url}")

    monkeypatch.setattr(sqlalchemy, "create_engine", fail)
    with pytest.raises(InputError) as error, databases.as_file(url, "select 1", "nodes"):
        pass
    assert SECRET not in str(error.value)
    assert error.value.__suppress_context__


def test_variables_of_the_environment_are_filled_in(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "p@ss/word:?")
    filled = databases.with_environment("postgresql://me:${DB_PASSWORD}@host/db", "nodes")
    assert sqlalchemy.engine.make_url(filled).password == "p@ss/word:?"
    with pytest.raises(InputError, match="UNSET_VARIABLE"):
        databases.with_environment("postgresql://me:${UNSET_VARIABLE}@host/db", "nodes")
