"""``fairmp report``: pages made again from folders of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmp.report import Document
from fairmp.report.document import write

METRIC = {"key": "dp", "name": "ΔDP", "before": 0.2, "after": 0.01, "unit": "points"}
GROUP = {"name": "a", "nodes": 10, "after": [0.4, 0.6]}
MODEL = {"title": "Mine", "classes": ["no", "yes"], "metrics": [METRIC], "groups": [GROUP]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    document: Document = {"title": "Mine", "assumptions": ["The labels are the truth."]}
    (tmp_path / "run").mkdir()
    write(document, tmp_path / "run")
    return tmp_path / "run"


def test_report_renders_results_again(fairmp, results: Path, tmp_path: Path) -> None:
    before = (results / "report.html").read_text(encoding="utf-8")
    (results / "report.html").unlink()
    status, out, err = fairmp("report run")
    assert (status, err) == (0, "")
    kilobytes = len((results / "report.html").read_bytes()) / 1000
    assert out == f"{kilobytes:,.0f} kB. Open run/report.html.\n"
    assert (results / "report.html").read_text(encoding="utf-8") == before
    status, _, err = fairmp("report run")
    assert status == 2
    assert err == "fairmp: --out: run/report.html exists; give another name, or add --overwrite\n"
    assert fairmp("report run --overwrite")[0] == 0
    assert fairmp("report run run --out both.html")[0] == 0
    assert (tmp_path / "both.html").read_text(encoding="utf-8").count(">Mine<") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere", ["RESULTS: nowhere does not exist"]),
        ("run --card", ["RESULTS:", "describes no model"]),
        ("watched --card", ["RESULTS: 'Mine'", "describes no model", "train, debias"]),
        ("run run --card", ["RESULTS: 2 directories"]),
        ("run --use mine", ["--use:", "add --card"]),
        ("run --out page.pdf", ["--out: page.pdf does not end in .html"]),
        ("run --out no/page.html", ["--out:", "is not a directory"]),
        ("empty", ["RESULTS: empty has none of report.json"]),
        ("broken", ["RESULTS: ", "report.json cannot be read"]),
    ],
)
def test_wrong_input_is_one_line(fairmp, results: Path, tmp_path: Path, arguments, words) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    (tmp_path / "watched").mkdir()
    write({**MODEL, "describes_model": False}, tmp_path / "watched")
    before = sorted(tmp_path.rglob("*"))
    status, out, err = fairmp(f"report {arguments}")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert sorted(tmp_path.rglob("*")) == before


def test_card_writes_markdown_and_html(fairmp, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(MODEL, tmp_path / "run")
    assert fairmp("report run --card")[0] == 0
    text = (tmp_path / "run" / "model-card.md").read_text(encoding="utf-8")
    assert "| ΔDP | 20.0 | 1.0 |" in text
    assert "Model card: Mine" in (tmp_path / "run" / "model-card.html").read_text(encoding="utf-8")
    (tmp_path / "run" / "model-card.html").unlink()
    assert "model-card.md exists" in fairmp("report run --card")[2]
    assert fairmp("report run --card --overwrite")[0] == 0
