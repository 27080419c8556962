from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import unknown
from experiments.unknown import (
    ESTIMATED,
    PLAIN,
    TRAINING_NODES,
    UNCHANGED,
    Study,
    intervals,
    run,
    write,
)
from fairmp.datasets import social_network

SMALL = Study(epochs=30, lr=0.02, splits=2, shares=(0.02, 0.2, 1.0))


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    return run({"small": social_network(n=1500, average_degree=10)}, SMALL)


def test_estimates_close_the_gap_that_is_left_unchanged(records: list[dict[str, object]]) -> None:
    assert len(records) == 2 * (1 + 2 * (3 + 1))
    means = intervals(records)
    gap = {place: figures["dp"].mean for place, figures in means.items()}
    plain = gap[PLAIN, None]
    assert plain > 0.1
    # With all groups known there is nothing to estimate.
    assert gap[UNCHANGED, 1.0] == gap[ESTIMATED, 1.0] < 0.02
    assert gap[UNCHANGED, 0.2] > 0.5 * plain
    assert gap[ESTIMATED, 0.2] < 0.3 * plain
    assert gap[UNCHANGED, 0.02] > gap[UNCHANGED, 0.2] > gap[UNCHANGED, 1.0]
    assert means[ESTIMATED, 0.2]["right"].mean > 0.8
    assert means[ESTIMATED, 0.2]["uncertain"].mean == pytest.approx(0.8, abs=0.05)
    assert means[ESTIMATED, 1.0]["uncertain"].mean == 0.0
    # Training nodes alone are known: no test node is, so nothing changes without estimates.
    assert gap[UNCHANGED, TRAINING_NODES] == plain
    assert gap[ESTIMATED, TRAINING_NODES] < 0.3 * plain


def test_too_few_known_groups_change_nothing() -> None:
    tiny = Study(epochs=2, splits=1, shares=(0.005,))
    records = run({"tiny": social_network(n=400, average_degree=8)}, tiny)
    plain, alone, *_ = records
    assert alone["how"] == UNCHANGED
    assert "not_corrected" in alone
    assert alone["dp"] == plain["dp"]


def test_write_makes_records_figure_table_and_page(
    records: list[dict[str, object]], tmp_path: Path
) -> None:
    (table,) = write(records, tmp_path).write(tmp_path, {"Bail": "no"})
    assert [row[0] for row in table.rows] == ["plain", "2 %", "20 %", "100 %", "500 training nodes"]
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert (tmp_path / "unknown.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "python -m experiments" in page
    assert "Bail" in page
    assert "| 20 % |" in (tmp_path / "table.md").read_text()


def test_command_writes_a_page_and_does_not_overwrite(
    experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown, "QUICK", Study(epochs=3, lr=0.02, splits=1, shares=(0.1, 1.0)))
    command = "unknown --quick --data embedded:500 --workers 1 --out u"
    status, out, err = experiments(command)
    assert status == 0, err
    assert "10 %" in out
    page = (tmp_path / "u" / "report.html").read_text()
    assert f"python -m experiments {command}" in page
    status, _, err = experiments(command)
    assert status == 2
    assert "--overwrite" in err
