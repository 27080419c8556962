"""A report is made of plain data, and tells what it is given, no more."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairmp.errors import InputError
from fairmp.report import Document, Section, page, summarise, tradeoff
from fairmp.report.document import (
    MAX_BYTES,
    cards,
    html,
    read,
    story_lines,
    summary,
    write,
)
from fairmp.report.figures import to_svg
from tests.report.documents import document_for
from tests.report.records import RECORDS


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 2), (6, 5), (2, 20)])
def test_html_has_every_section(classes: int, groups: int) -> None:
    document = document_for(classes, groups)
    page = html(document)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Result",
        "Decisions by group",
        "Changed decisions",
        "The trade-off",
        "Assumptions",
        "How to rerun it",
    ]
    assert "A &lt;graph&gt;" in page
    assert "group <" not in page.replace("<th scope", "")  # names are escaped, in charts too
    assert len(page) < MAX_BYTES
    assert page.count("<svg") == 3
    assert "fairmp train --out x" in page


def test_story_has_no_empty_brackets() -> None:
    document: Document = {
        "title": "x",
        "metrics": [{"key": "accuracy", "name": "accuracy", "after": 0.8}],
    }
    assert "accuracy: 80.0 points" in story_lines(document)


def test_summary_and_cards_have_the_figures() -> None:
    document = document_for()
    now, before = (
        [f"{100 * group[when][1]:.0f}" for group in document["groups"]]
        for when in ("after", "before")
    )
    document["groups"][1]["after"] = [0.4, 0.6]
    now[1] = "60"
    assert summary(document).startswith(
        f"'group <0>' gets 'class 1' {now[0]} times in 100, 'group <1>' {now[1]} times. "
        f"Before the correction it was {before[0]} and {before[1]}. Accuracy is "
    )
    for group in document["groups"]:
        group["after"] = [0.51, 0.49]
    assert summary(document).startswith("Both groups now get 'class 1' 49 times in 100. Before")
    assert [card.label for card in cards(document)] == [
        "accuracy",
        "gap between groups (ΔDP)",
        "gap at equal labels (ΔEO)",
        "decisions changed",
        "who pays",
    ]
    many = document_for(classes=3)
    dp = next(metric for metric in many["metrics"] if metric["name"] == "ΔDP")
    assert f"differ by up to {100 * dp['after']:.1f} points" in summary(many)
    assert summary({"title": "t"}) == ""
    assert summary({"title": "t", "summary": "mine"}) == "mine"


def test_write_read_round_trip(tmp_path: Path) -> None:
    document = document_for()
    write(document, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert read(tmp_path) == json.loads(json.dumps(document))
    assert html(read(tmp_path)) == (tmp_path / "report.html").read_text(encoding="utf-8")
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(InputError, match="is not a report"):
        read(tmp_path)


def test_html_omits_a_picture_that_is_too_large(tmp_path: Path) -> None:
    from fairmp.analysis.audits import audit
    from fairmp.datasets import social_network

    document: Document = {
        "title": "t",
        "graph": audit(social_network(n=200, average_degree=6), steps=1).to_dict(),
        "picture": "topology.svg",
    }
    (tmp_path / "topology.svg").write_text("<svg><title>small</title></svg>")
    assert "<title>small</title>" in html(document, tmp_path)
    (tmp_path / "topology.svg").write_text(f"<svg><!--{'x' * MAX_BYTES}--></svg>")
    assert len(html(document, tmp_path)) < MAX_BYTES
    assert "200 people" in html(document, tmp_path)


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


def test_page_fetches_nothing_and_escapes_text() -> None:
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


def test_card_of_a_ratio_has_two_digits_and_no_points() -> None:
    ratio = {"key": "impact_ratio", "name": "impact ratio", "unit": "ratio"}
    figures = {"before": 0.4, "after": 0.5, "after_interval": [0.095, 1.0]}
    document = {"title": "t", "metrics": [{**ratio, **figures}]}
    [card] = cards(document)  # type: ignore[arg-type]
    assert (card.value, card.note) == ("0.40 → 0.50", "95 % interval 0.10 to 1.00")
