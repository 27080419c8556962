"""The program of the experiments, run in this process, and small files of data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.__main__ import main
from fairmp.datasets import graphs

Program = Callable[..., tuple[int, str, str]]


@pytest.fixture
def experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Program:
    """The program in an empty folder, without files of data sets: status, output and errors.

    It takes one string that is split at spaces, or the words themselves.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    for name in ("FAIRMP_DATA", "FAIRMP_MIRROR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        words = arguments[0].split() if len(arguments) == 1 else arguments
        monkeypatch.setattr(sys, "argv", ["experiments", *words])
        with pytest.raises(SystemExit) as leave:
            main()
        shown = capsys.readouterr()
        return int(leave.value.code or 0), shown.out, shown.err

    return run


PLAYERS, CLIENTS = 403, 120


@pytest.fixture
def made_up_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of NBA and German that have the right columns and random contents.

    NBA has as many players as the real one. Only commands that stay in this process can read them.
    """
    monkeypatch.setattr(graphs, "_verify", lambda *_: None)  # they are not the published files
    folder, rng = tmp_path / "files", np.random.default_rng(0)
    folder.mkdir()
    players = {
        "user_id": np.arange(PLAYERS),
        "SALARY": rng.integers(-1, 2, PLAYERS),
        "country": rng.integers(0, 2, PLAYERS),
        "AGE": rng.integers(19, 40, PLAYERS),
    }
    group = rng.integers(0, 2, CLIENTS)
    clients = {
        "GoodCustomer": np.where(rng.random(CLIENTS) < 0.7, 1, -1),
        "Gender": np.array(["Male", "Female"])[group],
        "LoanAmount": rng.integers(250, 18_000, CLIENTS) + 5_000 * group,
        "PurposeOfLoan": "Car",
        "OtherLoansAtStore": 0,
    }
    pd.DataFrame(players).to_csv(folder / "nba.csv", index=False)
    pd.DataFrame(clients).to_csv(folder / "german.csv", index=False)
    for name, count in (("nba_relationship.txt", PLAYERS), ("german_edges.txt", CLIENTS)):
        np.savetxt(folder / name, rng.integers(0, count, (4 * count, 2)), fmt="%d")
    return folder
