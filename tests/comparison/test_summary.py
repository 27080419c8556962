from __future__ import annotations

import json
from typing import Any

import pytest

from fairmp.comparison.grid import RunSpec
from fairmp.comparison.summary import compared, results
from fairmp.report.formats import METRICS


def record(
    method: str, accuracy: float, dp: float, strength: float | None = None, **changes: Any
) -> dict[str, Any]:
    spec = RunSpec("nba", method, strength=strength, split=changes.pop("split", 0))
    test = dict.fromkeys(METRICS, 0.5) | {"accuracy": accuracy, "dp": dp}
    return {
        "key": spec.key,
        "name": spec.name,
        "family": spec.family,
        "data": spec.data,
        "dataset": "NBA",
        "split": spec.split,
        "seed": 0,
        "strength": strength,
        "spec": spec.to_dict(),
        "majority": 0.5,
        "positive": 0.5,
        "run": {"test": test, "seconds": 1.0},
        **changes,
    }


def test_figures_are_means_over_seeds_then_splits() -> None:
    runs = [record("mlp", 0.6, 0.1), record("mlp", 0.8, 0.1, seed=1)]
    runs += [record("mlp", 0.9, 0.3, split=1)]
    (line,) = compared(runs).lines["NBA"]
    assert line.splits == 2
    assert line.figures["accuracy"].mean == pytest.approx((0.7 + 0.9) / 2)
    assert line.figures["dp"].mean == pytest.approx(0.2)


def test_families_are_ordered_by_strength() -> None:
    runs = [record("fmp", 0.7, 0.1, target) for target in (0.1, 0.0, 0.02)]
    families = compared([*runs, record("mlp", 0.8, 0.2)]).families["NBA"]
    assert list(families) == ["FMP", "MLP"]
    targets = [line.name.partition("=")[2] for line in families["FMP"]]
    assert targets == ["0", "0.02", "0.1"]


def test_graphs_of_one_title_are_told_apart() -> None:
    runs = [record("mlp", 0.7, 0.1), record("mlp", 0.7, 0.1, data="nba+fairgnn")]
    assert list(compared(runs).lines) == ["NBA (nba)", "NBA (nba+fairgnn)"]


def test_failed_runs_are_apart() -> None:
    failed = {**record("mlp", 0.7, 0.1), "failed": "why"}
    comparison = compared([failed, record("fmp", 0.7, 0.1, 0.0)])
    assert comparison.failed == [failed]
    assert [line.name for line in comparison.lines["NBA"]] == ["FMP target=0"]
    assert len(results([failed])) == 0


def test_tables_are_json_and_hypervolumes_on_request() -> None:
    runs = [record("mlp", 0.7, 0.1, split=split) for split in range(2)]
    comparison = compared(runs)
    numbers = json.loads(json.dumps(comparison.to_dict()))
    assert numbers["tables"]["NBA"][0]["method"] == "MLP"
    assert comparison.num_splits == 2
    assert len(comparison.tables()) == 2
    assert len(compared(runs, areas=False).tables()) == 1
    assert compared([]).tables() == []
