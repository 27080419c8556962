"""``python -m experiments``: the list, the help, and wrong words."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS, IN_THE_PAPER

ROOT = Path(__file__).parents[2]


def test_list_has_one_line_per_experiment() -> None:
    words = [sys.executable, "-m", "experiments", "--list"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    header, *lines = done.stdout.splitlines()
    assert header.strip() == "in the paper"
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    for line, name in zip(lines, EXPERIMENTS, strict=True):
        assert IN_THE_PAPER.get(name, "–") in line


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_list_says_what_the_help_of_an_experiment_says(name: str, experiments) -> None:
    command = import_module(f"experiments.{name}").command
    assert " ".join(command.__doc__.split("\n\n")[0].split()) == EXPERIMENTS[name]
    status, out, _ = experiments(name, "--help")
    assert status == 0
    assert "--out" in out


def test_unknown_experiment_is_one_line(experiments) -> None:
    status, out, err = experiments("table9")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "table9" in err
