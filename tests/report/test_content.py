from __future__ import annotations

import json

from fairmp.report import Section


def test_section_is_read_back_from_json() -> None:
    section = Section("t", text=["a"], header=["b"], rows=[["c"]], bullets=["d"], more="e")
    assert Section.from_dict(json.loads(json.dumps(section.to_dict()))) == section


def test_unknown_keys_of_a_section_are_ignored() -> None:
    assert Section.from_dict({"title": "t", "colour": "red"}) == Section("t")
