from __future__ import annotations

import copy
import re

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.report import Document, Section
from fairmp.report.document import html
from fairmp.report.panel import reliability
from fairmp.report.sections import flags, page_sections
from fairmp.report.story import checks
from tests.report.documents import decided, document_for


def test_sections_without_data_are_omitted() -> None:
    whole = document_for()
    for key, title in (
        ("groups", "Decisions by group"),
        ("metrics", "Result"),
        ("assumptions", "Assumptions"),
        ("command", "How to rerun it"),
    ):
        part = copy.deepcopy(whole)
        del part[key]  # type: ignore[misc]
        assert title not in [section.title for section in page_sections(part)]
    with pytest.raises(InputError, match="is empty"):
        html({"title": "empty"})
    alone: Document = {"title": "t", "lines": Section("l", header=["a"], rows=[["b"]])}
    assert [section.title for section in page_sections(alone)] == ["l"]


def test_checks_name_small_groups() -> None:
    document = document_for()
    document["groups"][0]["nodes"] = 13
    assert any("one decision is 7.7 points" in line for line in checks(document))


def test_flags_name_gaps_that_grew() -> None:
    document: Document = {
        "title": "t",
        "metrics": [
            {"name": "accuracy", "key": "accuracy", "unit": "%", "before": 0.7, "after": 0.9},
            {"name": "ΔDP", "key": "dp", "label": "gap (ΔDP)", "before": 0.1, "after": 0.12},
            {"name": "ΔEO", "key": "eo", "label": "gap (ΔEO)", "before": 0.034, "after": 0.284},
        ],
    }
    (flag,) = flags(document)
    assert "ΔEO" in flag
    assert "from 3.4 to 28.4 points" in flag
    page = html(document)
    assert page.index('class="flag"') < page.index("<nav" if "<nav" in page else "<main>")
    document["metrics"][2]["after"] = None
    assert flags(document) == []
    assert 'class="flag"' not in html(document)


def test_reliability_section_has_the_calibration_error() -> None:
    sens, y, _, after = decided()
    p = 1 / (1 + np.exp(-after[:, 1]))
    document: Document = {"title": "t", "classes": ["no", "yes"]}
    document["reliability"] = reliability(np.where(np.isnan(p), 0.5, p), sens, y)
    (part,) = page_sections(document)
    assert [row[0] for row in part.rows] == ["0", "1"]
    labelled = (sens == 0) & (y >= 0)
    bins = np.minimum((10 * p[labelled]).astype(int), 9)
    error = sum(
        abs((p[labelled][bins == b] - (y[labelled][bins == b] == 1)).mean()) * (bins == b).mean()
        for b in np.unique(bins)
    )
    assert float(part.rows[0][2]) == pytest.approx(100 * error, abs=0.051)
    assert "<svg" in html(document)


def test_appendix_sections_come_last_and_collapsed() -> None:
    extra = Section("Theory", text=["m"], appendix=True)
    document: Document = {"title": "t", "assumptions": ["a"], "extra": [extra]}
    assert [part.title for part in page_sections(document)] == ["Assumptions", "Theory"]
    assert "<details><summary>For specialists</summary>" in html(document)


def test_tradeoff_mentions_bars_only_where_there_are_any() -> None:
    document = document_for()
    [section] = [s for s in page_sections(document) if s.title == "The trade-off"]
    assert "Bars" in section.caption
    for point in document["points"]:
        point["gap_interval"] = point["accuracy_interval"] = None
    [section] = [s for s in page_sections(document) if s.title == "The trade-off"]
    assert "Bars" not in section.caption


def test_result_says_in_short_who_is_ahead() -> None:
    document = document_for(groups=3)
    [section] = [s for s in page_sections(document) if s.title == "Result"]
    cells = [row[section.header.index("who is ahead")] for row in section.rows]
    assert re.fullmatch(r"group <\d> by \d+\.\d → group <\d> by \d+\.\d", cells[1])
