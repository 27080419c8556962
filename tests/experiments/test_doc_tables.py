"""The tables of the documentation are those of the committed records."""

from __future__ import annotations

import re

from experiments import ROOT
from experiments.doc_tables import pages, rewritten


def test_tables_of_the_documentation_are_those_of_the_records() -> None:
    texts = {page: page.read_text("utf8") for page in pages()}
    assert any("<!-- table:" in text for text in texts.values())
    for page, text in texts.items():
        name = page.relative_to(ROOT)
        assert rewritten(text) == text, f"{name}: run python -m experiments.doc_tables"


def test_changed_number_is_rewritten() -> None:
    text = "<!-- table: methods nba -->\n<!-- end -->\n"
    table = rewritten(text)
    assert "| MLP |" in table
    assert rewritten(table) == table
    row = next(line for line in table.splitlines() if line.startswith("| MLP |"))
    number = re.search(r"\d+\.\d", row)
    assert number is not None
    changed = table.replace(row, row.replace(number[0], f"{float(number[0]) + 1:.1f}"))
    assert changed != table
    assert rewritten(changed) == table
