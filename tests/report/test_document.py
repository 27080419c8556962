"""A report is made of plain data, and tells what it is given, no more."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.report import Document, Section, page, summarise, tradeoff
from fairmp.report.document import (
    MAX_BYTES,
    cards,
    cautions,
    from_evaluations,
    html,
    read,
    summary,
    write,
)
from fairmp.report.figures import to_svg
from fairmp.report.formats import GAP_NOTE
from tests.report.documents import decided, document_for
from tests.report.records import RECORDS


def test_add_decisions_counts_by_group() -> None:
    sens, y, before, after = decided()
    document = document_for()
    for g, group in enumerate(document["groups"]):
        inside = sens == g
        assert group["nodes"] == inside.sum()
        assert group["after"][1] == pytest.approx((after.argmax(1)[inside] == 1).mean())
        assert group["before"][1] == pytest.approx((before.argmax(1)[inside] == 1).mean())
        changed = (after.argmax(1) != before.argmax(1))[inside]
        assert group["changed"] == changed.sum() == sum(m[2] for m in group["moves"])
        assert group["positives"] == (inside & (y == 1)).sum()
        assert group["true_positives"] == (inside & (y == 1) & (after.argmax(1) == 1)).sum()


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


def test_summary_and_cards_have_the_figures() -> None:
    document = document_for()
    dp = next(c for c in document["metrics"] if c["name"] == "ΔDP")
    text = summary(document)
    assert f"differ by {100 * dp['after']:.1f} per 100 people" in text
    assert f"without the correction by {100 * dp['before']:.1f}" in text
    assert [card.label for card in cards(document)] == [
        "accuracy",
        "gap between groups (ΔDP)",
        "gap at equal labels (ΔEO)",
        "decisions changed",
    ]
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


@pytest.mark.parametrize("groups", [2, 3])
def test_from_evaluations_keeps_the_target(groups: int) -> None:
    sens, y, before, after = decided(groups=groups)
    first, second = (evaluate(s, y, sens, bootstrap=0).to_dict() for s in (before, after))
    document = from_evaluations(second, first, target=0.1)
    [dp] = [metric for metric in document["metrics"] if metric["name"] == "ΔDP"]
    assert (document["target"], dp["target"]) == (0.1, 0.1)
    assert "≤ 10.0" in html({**document, "title": "t"})


def test_constant_decisions_are_noted() -> None:
    sens, y, _, after = decided(classes=3)
    after[:, 1] = 9.0
    found = evaluate(after, y, sens, bootstrap=50, class_names=["low", "mid", "high"]).to_dict()
    note, how = cautions(found)
    assert "'mid'" in note
    assert how == GAP_NOTE
    document: Document = {**from_evaluations(found), "title": "t"}
    assert note in document["notes"]
    assert summary(document).endswith(note)
    after[0, 0] = 99.0
    after[sens < 0, 0] = 99.0
    sens[0] = 0
    assert not evaluate(after, y, sens, bootstrap=0).notes
    assert cautions(evaluate(after, y, sens, bootstrap=0).to_dict()) == []


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
