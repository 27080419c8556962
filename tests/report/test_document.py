"""The report is made of plain data, and tells what it is given, no more."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.report import Section, figures
from fairmp.report.document import (
    MAX_BYTES,
    Document,
    add_decisions,
    cards,
    cautions,
    from_evaluations,
    html,
    point,
    read,
    summary,
    write,
)
from fairmp.report.panel import reliability
from fairmp.report.sections import flags, sections

N = 400


def decided(classes: int = 2, groups: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    sens = rng.integers(-1, groups, N)
    y = rng.integers(-1, classes, N)
    before = rng.normal(size=(N, classes))
    before[:, 0] -= sens
    return sens, y, before, rng.normal(size=(N, classes))


def document_for(classes: int = 2, groups: int = 2) -> Document:
    sens, y, before, after = decided(classes, groups)
    names = {
        "class_names": [f"class {c}" for c in range(classes)],
        "group_names": [f"group <{g}>" for g in range(groups)],
    }
    first, second = (evaluate(s, y, sens, bootstrap=50, **names).to_dict() for s in (before, after))
    document = from_evaluations(second, first, target=0.02)
    add_decisions(document, names["group_names"], sens, y, after.argmax(1), before.argmax(1))
    document |= {
        "title": "A <graph>",
        "points": [point("mine", "chosen", second), point("before", "before", first)],
        "curve": [{"gap": 0.0, "accuracy": 0.4}, {"gap": 0.2, "accuracy": 0.5}],
        "assumptions": ["Groups are known."],
        "command": "fairmp train --out x",
        "setting": {"epochs": 3},
        "versions": {"fairmp": "0"},
    }
    return document


def test_groups_are_told_with_counts_that_are_right() -> None:
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
def test_every_chapter_is_there(classes: int, groups: int) -> None:
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


def test_parts_that_are_not_there_are_left_out() -> None:
    whole = document_for()
    for key, title in (
        ("groups", "Decisions by group"),
        ("metrics", "Result"),
        ("assumptions", "Assumptions"),
        ("command", "How to rerun it"),
    ):
        part = copy.deepcopy(whole)
        del part[key]  # type: ignore[misc]
        assert title not in [section.title for section in sections(part)]
    with pytest.raises(InputError, match="is empty"):
        html({"title": "empty"})
    alone: Document = {"title": "t", "lines": {"header": ["a"], "rows": [["b"]]}}
    assert [section.title for section in sections(alone)] == ["Over several splits"]


def test_the_summary_says_what_the_figures_say() -> None:
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


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
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


def test_a_picture_that_is_too_large_is_left_out(tmp_path: Path) -> None:
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


def test_few_nodes_are_warned_of() -> None:
    document = document_for()
    document["groups"][0]["nodes"] = 13
    (part,) = [s for s in sections(document) if s.title == "Result"]
    assert "one decision is 7.7 points" in part.caption


def test_a_gap_that_was_opened_is_in_the_headline() -> None:
    document: Document = {
        "title": "t",
        "metrics": [
            {"name": "accuracy", "unit": "%", "before": 0.7, "after": 0.9},
            {"name": "ΔDP", "label": "gap (ΔDP)", "before": 0.1, "after": 0.12},
            {"name": "ΔEO", "label": "gap (ΔEO)", "before": 0.034, "after": 0.284},
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


def test_reliability_is_drawn_where_it_was_measured() -> None:
    sens, y, _, after = decided()
    p = 1 / (1 + np.exp(-after[:, 1]))
    document: Document = {"title": "t", "classes": ["no", "yes"]}
    document["reliability"] = reliability(np.where(np.isnan(p), 0.5, p), sens, y)
    (part,) = sections(document)
    assert [row[0] for row in part.rows] == ["0", "1"]
    own = (sens == 0) & (y >= 0)
    bins = np.minimum((10 * p[own]).astype(int), 9)
    error = sum(
        abs((p[own][bins == b] - (y[own][bins == b] == 1)).mean()) * (bins == b).mean()
        for b in np.unique(bins)
    )
    assert float(part.rows[0][2]) == pytest.approx(100 * error, abs=0.051)
    assert "<svg" in html(document)


def test_charts_follow_the_colours_of_the_page() -> None:
    svg = figures.to_svg(figures.curve(document_for()))
    assert "var(--paper, #ffffff)" in svg
    assert "fill: #ffffff" not in svg


def test_sections_for_specialists_come_last_and_closed() -> None:
    extra = Section("Theory", text=["m"], appendix=True).to_dict()
    document: Document = {"title": "t", "assumptions": ["a"], "extra": [extra]}
    assert [part.title for part in sections(document)] == ["Assumptions", "Theory"]
    assert "<details><summary>For specialists</summary>" in html(document)


def test_sections_survive_json() -> None:
    section = Section("t", text=["a"], header=["b"], rows=[["c"]], bullets=["d"], more="e")
    assert Section.from_dict(json.loads(json.dumps(section.to_dict()))) == section


def test_bars_and_whiskers_stand_where_the_figures_are() -> None:
    document = document_for()
    figure = figures.group_bars(document, [1])
    (axes,) = figure.axes
    shares = sorted(round(patch.get_width(), 6) for patch in axes.patches)
    expected = [100 * g[when][1] for g in document["groups"] for when in ("before", "after")]
    assert shares == pytest.approx(sorted(expected))
    assert axes.get_xlim() == (0, 100)
    assert "of 100 people" in axes.get_xlabel()
    curve = figures.curve(document)
    labels = [text.get_text() for text in curve.legends[0].get_texts()]
    assert "mine" in labels
    assert "target: at most 2 points" in labels


@pytest.mark.parametrize("groups", [2, 3])
def test_the_target_is_that_of_the_gap_for_any_number_of_groups(groups: int) -> None:
    sens, y, before, after = decided(groups=groups)
    first, second = (evaluate(s, y, sens, bootstrap=0).to_dict() for s in (before, after))
    document = from_evaluations(second, first, target=0.1)
    [dp] = [metric for metric in document["metrics"] if metric["name"] == "ΔDP"]
    assert (document["target"], dp["target"]) == (0.1, 0.1)
    assert "≤ 10.0" in html({**document, "title": "t"})


def test_one_decision_for_everyone_is_no_success() -> None:
    sens, y, _, after = decided(classes=3)
    after[:, 1] = 9.0
    found = evaluate(after, y, sens, bootstrap=50, class_names=["low", "mid", "high"]).to_dict()
    note, how = cautions(found)
    assert "'mid'" in note
    assert "biased upward" in how
    document: Document = {**from_evaluations(found), "title": "t"}
    assert note in document["notes"]
    assert summary(document).endswith(note)
    after[0, 0] = 99.0
    after[sens < 0, 0] = 99.0
    sens[0] = 0
    assert not evaluate(after, y, sens, bootstrap=0).notes
    assert cautions(evaluate(after, y, sens, bootstrap=0).to_dict()) == []
