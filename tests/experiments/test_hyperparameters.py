from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import grids, hyperparameters, paper
from fairmp.comparison import compare
from fairmp.comparison.grid import RunSpec, Setting
from fairmp.comparison.summary import Comparison
from tests.report.test_figures import assert_possible, named


def test_more_smoothing_lowers_accuracy_on_nba() -> None:
    def run(lambda_s: float, split: int, accuracy: float, dp: float) -> dict[str, Any]:
        spec = RunSpec("nba", "ppr", split=split, setting=Setting(lambda_s=lambda_s))
        test = {"accuracy": accuracy, "dp": dp, "eo": 0.0}
        return compare._head(spec) | {"dataset": "NBA", "run": {"test": test}}

    runs = [run(s, k, 0.7 - 0.01 * s + 0.001 * k, 0.1) for s in (0.1, 20.0) for k in range(5)]
    [claim] = hyperparameters.claims(runs)
    assert claim.text == "More smoothing gives lower accuracy (plain propagation)"
    assert claim.verdict == paper.HOLDS
    assert claim.ours == "λ_s = 0.1 → 20: accuracy changes by −19.9 points"


def test_figure_shows_possible_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = named(1)
    monkeypatch.setattr(hyperparameters, "families", lambda *_: {"FMP": {0.0: line, 1.0: line}})
    figure = hyperparameters.hyperparameters(Comparison({"": [line]}, {}, {}, [], []), "")
    assert_possible(figure)


def test_command_writes_tables_and_figures(
    experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "QUICK", Setting(epochs=3, hidden=8, pretrain=1))
    command = "hyperparameters --quick --data embedded:240 --out r --splits 1 --workers 1"
    status, out, err = experiments(command)
    assert status == 0, err
    assert "FMP target=0" in out
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"records.jsonl", "report.html", "table.md", "table.tex", "table.csv"} <= names
    assert "hyperparameters-embedded-network.png" in names
