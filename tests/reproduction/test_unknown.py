from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fairmp.cli import main
from fairmp.comparison.page import write_page
from fairmp.datasets import social_network
from fairmp.reproduction import unknown
from fairmp.reproduction.unknown import (
    ESTIMATED,
    PLAIN,
    TRAINING_NODES,
    UNCHANGED,
    Setting,
    intervals,
    run,
    write,
)

SMALL = Setting(epochs=30, lr=0.02, splits=2, shares=(0.02, 0.2, 1.0))


@pytest.fixture(scope="module")
def records() -> list[dict[str, object]]:
    return run({"small": social_network(n=1500, average_degree=10)}, SMALL)


def test_estimates_close_the_gap_that_is_left_unchanged(records: list[dict[str, object]]) -> None:
    assert len(records) == 2 * (1 + 2 * (3 + 1))
    found = intervals(records)
    gap = {place: figures["dp"].mean for place, figures in found.items()}
    plain = gap[PLAIN, None]
    assert plain > 0.1
    # With all groups known there is nothing to estimate.
    assert gap[UNCHANGED, 1.0] == gap[ESTIMATED, 1.0] < 0.02
    assert gap[UNCHANGED, 0.2] > 0.5 * plain
    assert gap[ESTIMATED, 0.2] < 0.3 * plain
    assert gap[UNCHANGED, 0.02] > gap[UNCHANGED, 0.2] > gap[UNCHANGED, 1.0]
    assert found[ESTIMATED, 0.2]["right"].mean > 0.8
    assert found[ESTIMATED, 0.2]["uncertain"].mean == pytest.approx(0.8, abs=0.05)
    assert found[ESTIMATED, 1.0]["uncertain"].mean == 0.0
    # Training nodes alone are known: no test node is, so nothing changes without estimates.
    assert gap[UNCHANGED, TRAINING_NODES] == plain
    assert gap[ESTIMATED, TRAINING_NODES] < 0.3 * plain


def test_too_few_known_groups_change_nothing() -> None:
    tiny = Setting(epochs=2, splits=1, shares=(0.005,))
    records = run({"tiny": social_network(n=400, average_degree=8)}, tiny)
    plain, alone, *_ = records
    assert alone["how"] == UNCHANGED
    assert "not_corrected" in alone
    assert alone["dp"] == plain["dp"]


def test_files_are_written(records: list[dict[str, object]], tmp_path: Path) -> None:
    content = write(records, tmp_path)
    rest = {"command": "fairmp reproduce unknown", "absent": {"Bail": "no"}}
    (table,) = write_page(tmp_path, *content, **rest)
    assert [row[0] for row in table.rows] == ["plain", "2 %", "20 %", "100 %", "500 training nodes"]
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert (tmp_path / "unknown.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "fairmp reproduce unknown" in page
    assert "Bail" in page
    assert "| 20 % |" in (tmp_path / "table.md").read_text()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unknown, "QUICK", Setting(epochs=3, lr=0.02, splits=1, shares=(0.1, 1.0)))
    arguments = "reproduce unknown --quick --data embedded:500 --workers 1 --out u"
    monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 0
    shown = capsys.readouterr()
    assert "10 %" in shown.out
    assert (tmp_path / "u" / "report.html").is_file()
    monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 2
    assert "--overwrite" in capsys.readouterr().err
