"""The tables of the documentation are those of the committed records."""

from __future__ import annotations

from experiments import ROOT
from experiments.doc_tables import rewritten


def test_tables_of_the_documentation_are_those_of_the_records() -> None:
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "<!-- table:" in p.read_text("utf8")]
    assert pages
    for page in pages:
        text = page.read_text("utf8")
        name = page.relative_to(ROOT)
        assert rewritten(text) == text, f"{name}: run python -m experiments.doc_tables"


def test_changed_number_is_rewritten() -> None:
    text = "<!-- table: methods nba -->\n<!-- end -->\n"
    table = rewritten(text)
    assert "| MLP |" in table
    assert rewritten(table) == table
    assert rewritten(table.replace("69.6", "96.9")) == table
