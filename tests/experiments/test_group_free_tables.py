"""Tables of decisions that read nobody's group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import group_free as benchmark
from experiments import committed, group_free_tables


def part(split: int, graph: str = "nba") -> dict[str, object]:
    """The record of one split: the blind rule is two points less accurate, and less apart."""
    rows = [{"rule": benchmark.UNCORRECTED, "target": None, "accuracy": 0.8, "dp": 0.2, "eo": 0.1}]
    for target in benchmark.TARGETS:
        for rule, cost in ((benchmark.AWARE, 0.0), (benchmark.NEIGHBOURS, 0.02)):
            figures = {"accuracy": 0.75 + 0.01 * split - cost, "dp": target, "eo": 0.1}
            rows.append({"rule": rule, "target": target, **figures})
    for target in benchmark.FAIRLEARN_TARGETS:
        figures = {"accuracy": 0.7, "dp": 0.05, "eo": 0.1}
        rows.append({"rule": benchmark.FAIRLEARN, "target": target, **figures})
    return {"graph": graph, "split": split, "floor": 0.03, "rows": rows, "code": "a"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(committed, "RESULTS", tmp_path)
    committed.read.cache_clear()
    return tmp_path


def test_differences_are_paired(results: Path) -> None:
    parts = results / "parts"
    parts.mkdir()
    for split in range(4):
        (parts / f"nba-{split}.json").write_text(json.dumps(part(split)))
    benchmark.write_record(parts, results / "group-free.json")
    rows = group_free_tables.group_free("0.02").rows
    blind = next(row for row in rows if row[1].startswith("blind"))
    assert blind[-1] == "-2.00 ± 0.00"  # the accuracies vary by split, the difference does not
    assert blind[3].startswith("2.00")
    (first, _) = group_free_tables.against_fairlearn().rows
    assert first[4].startswith("+4.50")
    # The blind rule has fairlearn's gap of 5 points at that target.
    assert first[5] == first[4]


def test_absent_records_are_said(results: Path) -> None:
    for table in (
        group_free_tables.group_free("0.0"),
        group_free_tables.against_fairlearn(),
        group_free_tables.promises(),
        group_free_tables.joining(),
    ):
        assert table.header == ["no record"]
    committed.read.cache_clear()


def test_parts_of_several_versions_have_no_common_code() -> None:
    assert benchmark.one_code([{"code": "a"}, {"code": "a"}]) == "a"
    assert benchmark.one_code([{"code": "a"}, {"code": "b"}]) is None
