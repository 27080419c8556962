"""Addresses of databases: their password is in no message, and queries change nothing."""

from __future__ import annotations

import hashlib
import sqlite3
import string
from pathlib import Path
from urllib.parse import quote, quote_plus

import numpy as np

from fairmp import InputError
from fairmp.datasets.databases import export
from fairmp.secrets import without_password

SIGNS = string.ascii_letters + string.digits + "!$*-_.~"
HARD_SIGNS = SIGNS + "@:/?#[]&=+%;,' \""
PARAMETERS = [
    "password",
    "PWD",
    "passwd",
    "sslpassword",
    "api_key",
    "token",
    "secret",
    "access_token",
]
SCHEMES = ["postgresql", "mysql+pymysql", "mssql+pyodbc", "oracle", "nosuch", "sqlite"]
STATEMENTS = [
    *("drop table t", "delete from t", "insert into t values (9)", "update t set a = 9"),
    *("pragma user_version = 7", "attach 'other.db' as o", "vacuum into 'other.db'", "vacuum"),
    *("create table u (a)", "select a from t; drop table t", "pragma journal_mode = wal"),
    *("with q as (select 1) delete from t", "select load_extension('x')", "reindex", "analyze"),
    *("select a from t", "select count(*) as n, 1 as b from t", "select writefile('x', 'y')"),
]


def case(rng: np.random.Generator, place: Path) -> str:
    return address(rng, place) if rng.random() < 0.7 else query(rng, place)


def address(rng: np.random.Generator, place: Path) -> str:
    hard = rng.random() < 0.5
    secret = "".join(rng.choice(list(HARD_SIGNS if hard else SIGNS), int(rng.integers(10, 24))))
    written = quote(secret, safe="") if hard or rng.random() < 0.3 else secret
    scheme, host = str(rng.choice(SCHEMES)), f"host{rng.integers(99)}.example"
    parameter = str(rng.choice(PARAMETERS))
    url = {
        0: f"{scheme}://me:{written}@{host}:5432/db",
        1: f"{scheme}://{host}/db?user=me&{parameter}={written}",
        2: f"{scheme}://{host}/db?{parameter}={written}&timeout=3",
        3: f"{scheme}:///?odbc_connect={quote_plus(f'DRIVER={{ODBC}};SERVER={host};PWD={secret};')}",
        4: f"{scheme}://me:{written}@{host}/db?{parameter}={written}",
    }[int(rng.integers(0, 5))]
    forms = {secret, written, quote(secret, safe=""), quote_plus(secret)}
    texts = [without_password(url), without_password(f"cannot open {url}, really")]
    try:
        export(url, "select 1", place / "out.csv")
        end = "read"
    except InputError as error:
        texts.append(str(error))
        end = "hidden"
    for text in texts:
        assert not [form for form in forms if form in text], (url, text)
    return end


def query(rng: np.random.Generator, place: Path) -> str:
    file = place / "people.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (a)")
        connection.executemany("insert into t values (?)", [(k,) for k in range(5)])
    connection.close()
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    statement = str(rng.choice(STATEMENTS))
    if rng.random() < 0.3:
        statement = statement.upper()
    if rng.random() < 0.3:
        statement = f"/* a */ {statement} -- ; drop table t"
    try:
        export(f"sqlite:///{file}", statement, place / "out.csv")
        end = "selected"
    except InputError:
        end = "refused query"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before, statement
    assert {path.name for path in place.iterdir()} <= {"people.db", "out.csv"}, statement
    return end
