from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fairmp.cli import main
from fairmp.reproduction import synthetic
from fairmp.reproduction.synthetic import Setting


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same experiments on a handful of small graphs."""

    def designs(quick: bool) -> dict[str, tuple[int, list[tuple[str, Setting]]]]:
        assert quick
        series = {"panels": ("density", "nodes", "ratio"), "depth": ("row", "symmetric")}
        return {
            name: (
                2,
                [
                    (kind, Setting(400, 0.03, eps, 0.5, normalisation=normalisation))
                    for kind in series.get(name, (name,))
                    for normalisation in ("symmetric" if kind == "symmetric" else "row",)
                    for eps in (0.5, 0.9)
                ],
            )
            for name in ("panels", "agreement", "phase", "depth")
        }

    monkeypatch.setattr(synthetic, "designs", designs)
    monkeypatch.setattr(synthetic, "COUNTEREXAMPLE", Setting(400, 0.03, 0.64, 0.5))


def test_synthetic_writes_records_figures_and_a_page(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty))
    arguments = ["reproduce", "synthetic", "--quick", "--out", "s", "--data-dir", str(empty)]
    monkeypatch.setattr(sys, "argv", ["fairmp", *arguments])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 0
    shown = capsys.readouterr()
    assert "two cores" in shown.err
    assert "counterexample" in shown.out
    assert "files were not found: NBA" in shown.out
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert {"records.jsonl", "summary.json", "phase.png", "report.html"} <= names
    for line in (tmp_path / "s" / "records.jsonl").read_text().splitlines():
        json.loads(line)
    page = (tmp_path / "s" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page
