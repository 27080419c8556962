from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from experiments import grids, published
from experiments.rivals import NIFTY, FairGNN
from fairmp.comparison.grid import Setting
from tests.experiments.records import DP, records

QUOTED = {  # one row of each data set, as its source prints it
    "german+nifty": "FairVGNN | quoted: FairVGNN's README | per node"
    " | 70.2 | 72.4 | 82.1 | 1.7 | 0.9",
    "bail+nifty": "DAB-GNN | quoted: its README, one run | per node"
    " | 90.3 | 93.0 | 86.3 | 0.03 | 1.7",
    "credit+nifty": "FairGNN | quoted: PyGDebias | per node | 79.0 | 72.9 | 87.9 | 2.2 | 2.0",
}


def made_up_runs(data: str) -> list[dict[str, Any]]:
    runs = records(data, DP)
    for record in runs:
        record |= {"majority": 0.7, "positive": 0.7, "device": "cpu"}
        record["run"]["versions"] = {"fairmp": "0.1.0"}
    return runs


def test_published_rows_are_quoted_beside_ours() -> None:
    runs = made_up_runs("german+nifty")
    [table] = published.beside_ours(runs)
    rows = {row[0]: row[1:] for row in table.rows}
    # The constant answer is right for the larger class: F1 = 2·0.7 / 1.7.
    assert rows["constant answer"] == ["computed", "none", "70.0", "50.0", "82.4", "0.0", "0.0"]
    assert rows["FairVGNN"] == [
        "quoted: FairVGNN's README",
        "per node",
        "70.2",
        "72.4",
        "82.1",
        "1.7",
        "0.9",
    ]
    assert rows["FMP target=0"][:2] == ["this program", "none"]  # made up, without a mode


def test_page_has_the_published_rows_of_each_data_set_beside_ours(tmp_path: Path) -> None:
    never_published = "bail-without-time+nifty"
    runs = [record for data in (*QUOTED, never_published) for record in made_up_runs(data)]
    published.write(runs, tmp_path, command="python -m experiments published")
    text = (tmp_path / "table.md").read_text("utf8")
    page = html.unescape((tmp_path / "report.html").read_text("utf8"))
    sections = [section for section in text.split("### ") if "rows beside ours" in section]
    assert len(sections) == len(QUOTED) + 1
    for section, row in zip(sections, QUOTED.values(), strict=False):
        assert f"| {row} |" in section
        assert all(cell in page for cell in row.split(" | "))
        ours = next(line for line in section.splitlines() if line.startswith("| FMP target=0 |"))
        assert "| this program | none | 69.9 ± 0.2 | 80.0 ± 0.0 | 60.0 ± 0.0 |" in ours
    assert "quoted" not in sections[-1]


def test_command_sets_published_rows_beside_ours(
    experiments, made_up_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "QUICK", Setting(epochs=3, hidden=8, pretrain=1))
    for rival, epochs in ((FairGNN, 500), (NIFTY, 1000)):
        defaults = rival.__init__.__defaults__
        fewer = tuple(5 if value == epochs else value for value in defaults)
        monkeypatch.setattr(rival.__init__, "__defaults__", fewer)
    command = f"published --quick --data-dir {made_up_files} --out r --splits 1 --workers 1"
    status, out, err = experiments(command)
    assert status == 0, err
    assert "quoted: FairVGNN's README" in out
    text = (tmp_path / "r" / "table.md").read_text("utf8")
    assert "published rows beside ours" in text
    assert f"| {QUOTED['german+nifty']} |" in text
    for row in ("FMP target=0 | this program | batch", "FairGNN | rerun | per node"):
        assert f"| {row} |" in text
