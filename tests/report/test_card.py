"""A model card says what the records say."""

from __future__ import annotations

import pytest

from fairmp.errors import InputError
from fairmp.report.from_results import card, to_markdown
from fairmp.report.panel import reliability
from tests.report.test_document import decided, document_for


def test_a_card_is_filled_from_the_records() -> None:
    document = document_for()
    sens, y, _, _ = decided()
    document["reliability"] = reliability([0.3, 0.6] * 200, sens, y)
    sections = {section.title: section for section in card(document, "A person decides.")}
    assert list(sections) == [
        "Intended use",
        "Result",
        "Groups",
        "Criteria and gaps",
        "Calibration",
        "Limits",
        "Origin",
    ]
    assert sections["Intended use"].text[0] == "A person decides."
    assert [row[0] for row in sections["Groups"].rows] == ["group <0>", "group <1>"]
    dp = next(metric for metric in document["metrics"] if metric["name"] == "ΔDP")
    row = next(row for row in sections["Criteria and gaps"].rows if row[0] == "ΔDP")
    assert row[2].startswith(f"{100 * dp['after']:.1f} (")
    assert row[3:] == ["≤ 2.0"]
    assert any(line.startswith("ΔDP: ") for line in sections["Criteria and gaps"].bullets)
    text = to_markdown("T", list(sections.values()))
    assert text.startswith("# T\n\n## Intended use\n\nA person decides.")
    assert "```\nfairmp train --out x\n```" in text
    assert "- Groups are known." in text
    assert "Not stated" in to_markdown("T", card(document))


def test_a_card_needs_a_model() -> None:
    with pytest.raises(InputError, match="describes no model"):
        card({"title": "audit", "assumptions": ["none"]})
