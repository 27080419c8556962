from __future__ import annotations

from pathlib import Path

import pytest

from experiments import grids, published
from fairmp.comparison.grid import Setting
from tests.experiments.records import DP, records


def test_published_rows_are_quoted_beside_ours() -> None:
    runs = records("german+nifty", DP)
    for record in runs:
        record |= {"majority": 0.7, "positive": 0.7}
    [table] = published.beside_ours(runs)
    rows = {row[0]: row[1:] for row in table.rows}
    # The constant answer is right for the larger class: F1 = 2·0.7 / 1.7.
    assert rows["constant answer"] == ["computed", "70.0", "50.0", "82.4", "0.0", "0.0"]
    assert rows["FairVGNN"] == ["quoted: FairVGNN's README", "70.2", "72.4", "82.1", "1.7", "0.9"]
    assert rows["FMP target=0"][0] == "this program"


def test_command_sets_published_rows_beside_ours(
    experiments, data_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "QUICK", Setting(epochs=3, hidden=8, pretrain=1))
    command = f"published --quick --data-dir {data_folder} --out r --splits 1 --workers 1"
    status, out, err = experiments(command)
    assert status == 0, err
    assert "quoted: FairVGNN's README" in out
    assert "published rows beside ours" in (tmp_path / "r" / "table.md").read_text("utf8")
