from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from fairmp.errors import InputError
from fairmp.tuning.space import Method
from fairmp.tuning.study import display_name
from tests.tuning.helpers import outcomes, search, short_search, small


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with one trial."""
    place = tmp_path_factory.mktemp("study") / "study.db"
    short_search(storage=str(place), trials=1)
    return place


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": 0.1}, "goal = 0.05, this run has 0.1"),
        ({"goal": "front"}, "goal = 0.05, this run has front"),
        ({"criterion": "eo"}, "criterion = dp, this run has eo"),
        ({"space": ["hidden=16", "K=1..3"]}, "space of hidden = 8, this run has 16"),
        ({"method": Method(epochs=6)}, "epochs = 3, this run has 6"),
        ({"method": Method("ppr", epochs=3)}, "method = fmp, this run has ppr"),
        ({"splits": 2}, "splits = 1, this run has 2"),
        ({"seed": 1}, "seed = 0, this run has 1"),
        ({"data": small(n=260)}, "nodes = 240, this run has 260"),
        ({"data": small(seed=3)}, "= "),
    ],
)
def test_study_of_another_search_is_refused(
    changes: dict[str, Any], words: str, stored: Path
) -> None:
    before = stored.read_bytes()
    with pytest.raises(InputError) as error:
        short_search(storage=str(stored), trials=1, **changes)
    assert error.value.argument == "study_name"
    assert words in str(error.value.value)
    assert stored.read_bytes() == before


def test_study_of_another_program_is_refused(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'mine.db'}"
    storage = optuna.storages.RDBStorage(place)
    optuna.create_study(study_name="fairmp", storage=storage).ask()
    storage.remove_session()
    storage.engine.dispose()
    with pytest.raises(InputError) as error:
        short_search(storage=place)
    assert error.value.argument == "study_name"
    assert len(short_search(storage=place, study_name="another", trials=2).trials) == 2


def test_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for name, content in (("thesis.tex", b"all my work"), ("study.db", b"no data base")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as error:
            short_search(storage=str(tmp_path / name))
        assert error.value.argument == "storage"
        assert (tmp_path / name).read_bytes() == content


def test_any_new_file_becomes_a_study(tmp_path: Path) -> None:
    path = tmp_path / "a folder with {braces}" / "study"
    short_search(storage=str(path), trials=1)
    assert path.read_bytes().startswith(b"SQLite")
    assert len(short_search(storage=str(path), trials=2).trials) == 2


def test_unusable_storages_are_refused_without_their_password(tmp_path: Path) -> None:
    for place in ("nosuch://me:secret@host/db", str(tmp_path / "what?")):
        with pytest.raises(InputError) as error:
            short_search(storage=place)
        assert error.value.argument == "storage"
        assert "secret" not in str(error.value)
        assert "\n" not in str(error.value)
    assert display_name("mysql://me:my@word@host/db") == "mysql://me:***@host/db"
    assert display_name("sqlite:///a.db") == "sqlite:///a.db"
    assert display_name(None) == "memory"


def test_search_in_postgresql_is_resumed(postgres: str) -> None:
    options: dict[str, Any] = {"storage": postgres, "study_name": "a study in a server"}
    short_search(**options, trials=3)
    assert outcomes(short_search(**options)) == outcomes(short_search())
    with pytest.raises(InputError, match="was made with"):
        short_search(**options, goal=0.1)


def test_logging_of_optuna_is_restored(capfd: pytest.CaptureFixture[str]) -> None:
    level, root = optuna.logging.get_verbosity(), logging.getLogger().level
    short_search(trials=2)
    assert (optuna.logging.get_verbosity(), logging.getLogger().level) == (level, root)
    assert capfd.readouterr() == ("", "")


def test_identity_is_json_and_leaves_out_where_and_how_long() -> None:
    first = search()
    identity = first.identity()
    assert json.loads(json.dumps(identity)) == identity
    assert identity["method"] == "fmp"
    assert identity["space of hidden"] == "8"
    moved = replace(
        first, trials=9, storage="x.db", deadline=1.0, device="cuda", study_name="other"
    )
    assert moved.identity() == identity
    for change in ({"seed": 1}, {"limit": None}, {"criterion": "eo"}, {"splits": 2}):
        assert replace(first, **change).identity() != identity


def test_search_expires_at_its_deadline() -> None:
    assert not search().expired
    assert replace(search(), deadline=time.time() - 1).expired
    assert not replace(search(), deadline=time.time() + 60).expired
