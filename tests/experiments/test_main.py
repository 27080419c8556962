"""``python -m experiments``: the list, the help, and wrong words."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS

ROOT = Path(__file__).parents[2]
IN_THE_PAPER = {
    "table1": "Table 1",
    "pareto": "trade-off figure",
    "hyperparameters": "figure of hyperparameters",
    "runtime": "running times",
    "statistics": "table of data sets",
    "topology": "picture of topologies",
    "synthetic": "synthetic figures",
}


def test_list_has_every_experiment_and_what_of_the_paper_it_reruns() -> None:
    words = [sys.executable, "-m", "experiments", "--list"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    header, *lines = done.stdout.splitlines()
    assert header.strip() == "in the paper"
    columns = [re.split(" {2,}", line) for line in lines]
    assert [name for name, _, _ in columns] == list(EXPERIMENTS)
    assert {name: place for name, place, _ in columns if place != "–"} == IN_THE_PAPER
    assert [description for _, _, description in columns] == list(EXPERIMENTS.values())


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
