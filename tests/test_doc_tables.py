"""The tables of the documentation are those of the committed records."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def doc_tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "doc_tables", ROOT / "benchmarks" / "doc_tables.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_text_and_records_agree(doc_tables: ModuleType) -> None:
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "<!-- table:" in p.read_text("utf8")]
    assert pages
    for page in pages:
        text = page.read_text("utf8")
        assert doc_tables.rewritten(text) == text, f"{page.name}: run benchmarks/doc_tables.py"


def test_a_changed_number_is_noticed(doc_tables: ModuleType) -> None:
    text = "<!-- table: methods nba -->\n<!-- end -->\n"
    table = doc_tables.rewritten(text)
    assert "| MLP |" in table
    assert doc_tables.rewritten(table) == table
    assert doc_tables.rewritten(table.replace("69.6", "96.9")) == table
