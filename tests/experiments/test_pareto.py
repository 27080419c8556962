from __future__ import annotations

from pathlib import Path

import pytest

from experiments import grids, paper, pareto
from fairmp.comparison.grid import Setting
from fairmp.metrics import Interval
from fairmp.metrics.pareto import hypervolume_over_splits


@pytest.mark.parametrize(
    ("fair", "expected"),
    [
        ((0.5, 0.45, 0.55), paper.HOLDS),
        ((0.2, 0.1, 0.25), paper.FAILS),
        ((0.3, 0.2, 0.4), paper.OPEN),
    ],
)
def test_overlapping_hypervolumes_are_undecided(fair: tuple[float, ...], expected: str) -> None:
    areas = {"X": {"FMP": Interval(*fair, 5), "MLP + regulariser": Interval(0.35, 0.3, 0.4, 5)}}
    assert [claim.verdict for claim in pareto.claims(areas)] == [expected]


def test_areas_without_an_interval_are_not_judged() -> None:
    records = [
        {
            "split": split,
            "majority": 0.5,
            "run": {"test": {"accuracy": 0.7 + 0.01 * split, "dp": 0.05}},
        }
        for split in range(5)
    ]
    areas = {
        count: {name: hypervolume_over_splits(records[:count]) for name in ("FMP", "MLP")}
        for count in (3, 5)
    }
    assert [claim.verdict for claim in pareto.claims({"X": areas[3]})] == [paper.UNJUDGED]
    assert [claim.verdict for claim in pareto.claims({"X": areas[5]})] == [paper.OPEN]


def test_command_writes_tables_and_figures(
    experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "QUICK", Setting(epochs=3, hidden=8, pretrain=1))
    status, out, err = experiments(
        "pareto --quick --data embedded:240 --out r --splits 1 --workers 1"
    )
    assert status == 0, err
    assert "FMP target=0.2" in out
    assert "Hypervolume" in out
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"records.jsonl", "report.html", "table.md", "table.tex", "table.csv"} <= names
    assert "tradeoff-embedded-network.png" in names
