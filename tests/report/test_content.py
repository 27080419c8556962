from __future__ import annotations

import json
from pathlib import Path

from fairmp.report import Document, Section
from fairmp.report.document import read, write


def test_sections_are_read_back_from_json(tmp_path: Path) -> None:
    section = Section("t", text=["a"], header=["b"], rows=[["c"]], bullets=["d"], more="e")
    document: Document = {"title": "page", "lines": section, "extra": [section, Section("u")]}
    write(document, tmp_path)
    assert read(tmp_path) == document


def test_unknown_keys_of_a_section_are_ignored(tmp_path: Path) -> None:
    document = {"title": "page", "lines": {"title": "t", "colour": "red"}}
    (tmp_path / "report.json").write_text(json.dumps(document))
    assert read(tmp_path)["lines"] == Section("t")
