from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairmp import audit
from fairmp.analysis.audits import Audit
from fairmp.datasets import social_network
from fairmp.report.audits import document, write
from fairmp.report.document import html


@pytest.fixture(scope="module")
def result() -> Audit:
    return audit(social_network(n=2000, average_degree=12), steps=2)


def test_document_makes_a_page(result: Audit) -> None:
    shown = html(document(result))
    for words in ("Edges stay within groups", "predictability", "Theorem 2, corrected", "<svg"):
        assert words in shown


def test_text_has_every_step_and_every_conclusion(result: Audit) -> None:
    text = str(result).replace("\n  ", " ")
    for bias in result.row:
        assert f"\n{bias.step}  " in text
    for sentence in result.verdict():
        assert sentence in text


def test_html_and_plot_show_the_steps(result: Audit) -> None:
    assert "Audit of embedded network" in result._repr_html_()
    steps = [100 * bias.predictability for bias in result.row]
    assert result.plot().lines[0].get_ydata() == pytest.approx(steps)


def test_written_record_is_that_of_the_audit(result: Audit, tmp_path: Path) -> None:
    data = social_network(n=2000, average_degree=12)
    record = write(result, data, tmp_path, command="fairmp audit", picture=False)
    stored = json.loads((tmp_path / "audit.json").read_text("utf8"))
    assert stored == json.loads(json.dumps(record))
    assert (tmp_path / "audit.txt").read_text("utf8") == f"{result}\n"
    assert not (tmp_path / "topology.png").exists()
    assert "fairmp audit" in (tmp_path / "report.html").read_text("utf8")
