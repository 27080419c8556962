"""The page in a real browser: it asks for nothing, complains of nothing, and shows its charts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fairmp.comparison import training as single
from fairmp.datasets import social_network
from fairmp.report.document import html
from fairmp.training.classifier import build_classifier
from tests.fitted import one_split
from tests.report.documents import document_for


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a trained classifier, with the graph's picture."""
    folder = tmp_path_factory.mktemp("report")
    data = social_network(n=600, average_degree=8)
    make = lambda: build_classifier(  # noqa: E731
        target=0.02, K=3, epochs=5, backbone="mlp"
    )
    record, model = one_split("projection", make, data, split=0, bootstrap=100)
    single.write(data, [record], model, folder, command="fairmp train", picture=True)
    return folder / "report.html"


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_page_fetches_nothing_and_shows_all_charts(browser: Any, report: Path, width: int) -> None:
    asked: list[str] = []
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.wait_for_load_state("networkidle")
    charts = [chart.bounding_box() for chart in page.locator("figure svg").all()]
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert page.locator("h1").inner_text() == "embedded network: a trained classifier"
    assert page.locator("h2").all_inner_texts() == [
        "Result",
        "Decisions by group",
        "Changed decisions",
        "What each criterion would do",
        "Try another target",
        "The trade-off",
        "Can the probabilities be trusted?",
        "The graph",
        "Why these people?",
        "Assumptions",
        "How to rerun it",
    ]
    unnamed = page.locator("figure [role=img]:not([aria-label])").count()
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []
    assert len(charts) == 5
    for chart in charts:
        assert chart is not None
        assert min(600, 0.8 * width) < chart["width"] <= width  # whole, and as wide as can be
        assert chart["height"] > 80
    assert wide <= width  # nothing sticks out sideways
    assert unnamed == 0
    assert report.stat().st_size < 2_000_000


def test_headline_cards_and_panel_agree(browser: Any, report: Path) -> None:
    """Gap, accuracy and rates, before and after, are the same numbers wherever they stand."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(report.as_uri())
    cards = page.locator("header .cards .value").all_inner_texts()
    summary = page.locator(".summary").inner_text()
    head = [re.findall(r"[\d.]+", text) for text in cards[:3]]
    panel = [
        re.findall(r"[\d.]+", page.locator(f".panel [data-figure={key}]").inner_text())[0]
        for key in ("accuracy", "dp", "eo")
    ]
    notes = page.locator(".panel .cards .note").all_inner_texts()
    rates = page.locator(".panel [data-rate]").all_inner_texts()
    marks = page.locator(".panel .was").evaluate_all("all => all.map(e => e.style.left)")
    changed = page.locator(".panel [data-figure=changed]").inner_text()
    page.close()
    assert [after for _, after in head] == panel
    assert [before for before, _ in head] == [re.findall(r"[\d.]+", n)[0] for n in notes[:3]]
    assert f"Accuracy is {head[0][1]} %, before the correction {head[0][0]} %" in summary
    for share in [*rates, *marks]:
        assert f"{float(share.rstrip(' %')):.0f}" in summary
    document = json.loads(report.with_name("report.json").read_text())
    assert int(changed) == sum(group["changed"] for group in document["groups"])
    chosen = next(point for point in document["points"] if point["kind"] == "chosen")
    assert f"{100 * chosen['gap']:.1f}" == head[1][1]


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 1000)])
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (2, 5), (4, 5)])
def test_first_screen_answers_five_questions(
    browser: Any, tmp_path: Path, classes: int, groups: int, width: int, height: int
) -> None:
    """Gap before, gap now and who is ahead, cost, who pays, what to check."""
    document = document_for(classes, groups)
    document["checks"] = ["A service predicts one person at a time: ΔDP is then 3.0 points."]
    (tmp_path / "page.html").write_text(html(document), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto((tmp_path / "page.html").as_uri())
    labels = page.locator("header .cards .label").all_inner_texts()
    values = page.locator("header .cards .value").all_inner_texts()
    notes = page.locator("header .cards .note").all_inner_texts()
    bottom = page.locator("header").get_by_text("A service predicts").bounding_box()
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    shown = dict(zip(labels, zip(values, notes, strict=True), strict=True))
    gap = next(metric for metric in document["metrics"] if metric["key"] == "dp")
    value, note = shown["gap between groups (ΔDP)"]
    assert value == f"{100 * gap['before']:.1f} → {100 * gap['after']:.1f} points"
    assert "before: group <" in note
    assert "; now: group <" in note
    assert "→" in shown["accuracy"][0]
    assert shown["who pays"][0]
    assert bottom is not None
    assert bottom["y"] + bottom["height"] <= height
    assert wide <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser: Any, report: Path, scheme: str) -> None:
    """WCAG's contrast of 4.5 for all text on the page, read from what the browser computed."""
    page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme=scheme)
    page.goto(report.as_uri())
    ratios = page.evaluate("""() => {
        const light = (rgb) => {
            const [r, g, b] = rgb.map((v) => v / 255).map(
                (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const parse = (text) => text.match(/[\\d.]+/g).map(Number);
        const behind = (element) => {
            for (let e = element; e; e = e.parentElement) {
                const [r, g, b, a = 1] = parse(getComputedStyle(e).backgroundColor);
                if (a > 0) return [r, g, b];
            }
            return [255, 255, 255];
        };
        const all = 'h1, h2, p, li, th, td, a, span, pre, label, button, footer';
        return [...document.querySelectorAll(all)].map(
            (element) => {
                const front = light(parse(getComputedStyle(element).color).slice(0, 3));
                const back = light(behind(element));
                const [high, low] = [Math.max(front, back), Math.min(front, back)];
                return [(high + 0.05) / (low + 0.05), element.textContent.slice(0, 40)];
            });
    }""")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.close()
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert len(ratios) > 50
    assert [text for ratio, text in ratios if ratio < 4.5] == []


def test_page_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 680, "height": 900})
    page.goto(report.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    assert not page.locator("nav").is_visible()  # links are of no use on paper
    assert page.locator("figure svg").first.is_visible()
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    page.close()
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 12
