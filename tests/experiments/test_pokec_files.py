from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments import grids, pokec_files, table1
from fairmp.comparison import compare
from fairmp.comparison.grid import Setting


def test_table1_on_files_of_the_form_of_pokecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = Setting(epochs=2, hidden=4, eval_every=2)
    monkeypatch.setattr(grids, "PRINTED", short)
    monkeypatch.setattr(grids, "QUICK", short)
    for cls in pokec_files.CLASSES.values():
        monkeypatch.setattr(cls, "source", cls.source)  # restored afterwards
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["pokec_files", str(tmp_path), "--share", "0.005", "--quick"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as leave:
        pokec_files.main()
    assert leave.value.code == 0, capsys.readouterr().err
    records = compare.read(tmp_path / "table1" / "records.jsonl")
    assert not [record["failed"] for record in records if "failed" in record]
    assert len(table1.side_by_side(records)) == 4
    assert len(table1.claims(records)) == 16
    page = (tmp_path / "table1" / "report.html").read_text("utf8")
    assert "Pokec-z" in page
