"""The program of the experiments, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.__main__ import main

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
