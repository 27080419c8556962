from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from scipy import stats

from fairmp.report import Section, page, summarise, to_markdown, tradeoff
from fairmp.report.figures import to_svg
from fairmp.report.formats import cell_text


def record(name: str, accuracy: float, dp: float | None) -> dict[str, object]:
    test = {"accuracy": accuracy, "dp": dp, "eo": 0.1, "auc": 0.8}
    return {"name": name, "run": {"test": test, "seconds": 2.0}}


RECORDS = [record("A", 0.7, 0.2), record("B", 0.6, None), record("A", 0.8, 0.1)]


def test_lines_are_means_with_ranges_and_from_five_splits_on_intervals() -> None:
    a, b = summarise(RECORDS)
    assert (a.name, a.splits, b.splits) == ("A", 2, 1)
    assert a.figures["accuracy"].mean == pytest.approx(0.75)
    assert cell_text(a.figures["accuracy"]) == "75.0 [70.0, 80.0]"
    values = [0.7, 0.71, 0.72, 0.73, 0.74]
    [five] = summarise(record("C", value, 0.1) for value in values)
    half = 100 * stats.t.ppf(0.975, 4) * stats.sem(values)
    assert cell_text(five.figures["accuracy"]) == f"72.0 ± {half:.1f}"
    assert cell_text(b.figures["dp"]) == "n/a"
    assert cell_text(b.figures["accuracy"]) == "60.0"


def test_markdown() -> None:
    table = to_markdown(summarise(RECORDS)).splitlines()
    assert table[0].startswith("| method | accuracy % | ΔDP |")
    assert len(table) == 4
    assert all(row.count("|") == table[0].count("|") for row in table)


def test_the_picture_has_a_point_a_method_and_is_repeatable() -> None:
    lines = summarise(RECORDS)
    figure = tradeoff(lines, "title")
    (axes,) = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A"]
    assert "points" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    assert math.isclose(axes.containers[0].lines[0].get_xdata()[0], 15.0)
    assert to_svg(figure) == to_svg(tradeoff(lines, "title"))


class Outside(HTMLParser):
    """Collects whatever a page would fetch, and checks that tags close."""

    void = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.void:
            self.open.append(tag)
        for name, value in attrs:
            local = (value or "").startswith(("#", "data:"))
            if name in ("src", "href", "xlink:href", "data", "action") and not local:
                self.fetched.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()


def test_the_page_fetches_nothing_and_escapes() -> None:
    svg = to_svg(tradeoff(summarise(RECORDS)))
    text = page(
        "<script>alert(1)</script>",
        "a & b",
        [
            Section("One", text=["<i>"], header=["a", "b"], rows=[["x", "<td>"]], caption="c"),
            Section("Two", svg=svg, caption="a picture", code="fairmp demo"),
        ],
    )
    reader = Outside()
    reader.feed(text)
    assert reader.fetched == []
    assert reader.open == []
    assert "<script>" not in text
    assert "&lt;td&gt;" in text
    assert "<svg" in text
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
