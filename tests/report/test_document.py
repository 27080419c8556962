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
from fairmp.report import Section, charts
from fairmp.report.document import LIMIT, Story, cards, html, read, summary, write
from fairmp.report.from_evaluation import add_decisions, cautions, from_evaluations, point
from fairmp.report.sections import part_of, section_of, sections

N = 400


def decided(classes: int = 2, groups: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    sens = rng.integers(-1, groups, N)
    y = rng.integers(-1, classes, N)
    before = rng.normal(size=(N, classes))
    before[:, 0] -= sens
    return sens, y, before, rng.normal(size=(N, classes))


def story_of(classes: int = 2, groups: int = 2) -> Story:
    sens, y, before, after = decided(classes, groups)
    names = {
        "class_names": [f"class {c}" for c in range(classes)],
        "group_names": [f"group <{g}>" for g in range(groups)],
    }
    first, second = (evaluate(s, y, sens, bootstrap=50, **names).to_dict() for s in (before, after))
    story = from_evaluations(second, first, target=0.02)
    add_decisions(story, names["group_names"], sens, y, after.argmax(1), before.argmax(1))
    story |= {
        "title": "A <graph>",
        "points": [point("mine", "chosen", second), point("before", "before", first)],
        "curve": [{"gap": 0.0, "accuracy": 0.4}, {"gap": 0.2, "accuracy": 0.5}],
        "assumptions": ["Groups are known."],
        "command": "fairmp train --out x",
        "setting": {"epochs": 3},
        "versions": {"fairmp": "0"},
    }
    return story


def test_groups_are_told_with_counts_that_are_right() -> None:
    sens, y, before, after = decided()
    story = story_of()
    for g, group in enumerate(story["groups"]):
        inside = sens == g
        assert group["nodes"] == inside.sum()
        assert group["after"][1] == pytest.approx((after.argmax(1)[inside] == 1).mean())
        assert group["before"][1] == pytest.approx((before.argmax(1)[inside] == 1).mean())
        changed = (after.argmax(1) != before.argmax(1))[inside]
        assert group["changed"] == changed.sum() == sum(m[2] for m in group["moves"])
        assert group["positives"] == (inside & (y == 1)).sum()
        assert group["found"] == (inside & (y == 1) & (after.argmax(1) == 1)).sum()


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 2), (6, 5), (2, 20)])
def test_every_chapter_is_there(classes: int, groups: int) -> None:
    story = story_of(classes, groups)
    page = html(story)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "What the model does to each group",
        "Before and after",
        "What changed for whom",
        "The trade-off",
        "What rests on assumptions",
        "How to rerun it",
    ]
    assert "A &lt;graph&gt;" in page
    assert "group <" not in page.replace("<th scope", "")  # names are escaped, in charts too
    assert len(page) < LIMIT
    assert page.count("<svg") == 3
    assert "fairmp train --out x" in page


def test_parts_that_are_not_there_are_left_out() -> None:
    whole = story_of()
    for key, title in (
        ("groups", "What the model does to each group"),
        ("criteria", "Before and after"),
        ("assumptions", "What rests on assumptions"),
        ("command", "How to rerun it"),
    ):
        part = copy.deepcopy(whole)
        del part[key]  # type: ignore[misc]
        assert title not in [section.title for section in sections(part)]
    with pytest.raises(InputError, match="nothing to tell"):
        html({"title": "empty"})
    alone: Story = {"title": "t", "lines": {"header": ["a"], "rows": [["b"]]}}
    assert [section.title for section in sections(alone)] == ["Over several splits"]


def test_the_summary_says_what_the_figures_say() -> None:
    story = story_of()
    dp = next(c for c in story["criteria"] if c["name"] == "ΔDP")
    text = summary(story)
    assert f"differ by {100 * dp['after']:.1f} of 100 people" in text
    assert f"would be {100 * dp['before']:.1f}" in text
    assert [card.label for card in cards(story)] == [
        "right decisions (accuracy)",
        "gap between groups (ΔDP)",
        "gap among the truly positive (ΔEO)",
        "decisions changed",
    ]
    assert summary({"title": "t"}) == ""
    assert summary({"title": "t", "summary": "mine"}) == "mine"


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    story = story_of()
    write(story, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "story.json"]
    assert read(tmp_path) == json.loads(json.dumps(story))
    assert html(read(tmp_path)) == (tmp_path / "report.html").read_text(encoding="utf-8")
    (tmp_path / "story.json").write_text("{")
    with pytest.raises(InputError, match="can not be read"):
        read(tmp_path)
    (tmp_path / "story.json").write_text("[]")
    with pytest.raises(InputError, match="no story"):
        read(tmp_path)


def test_a_picture_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    from fairmp.analysis.audits import audit
    from fairmp.datasets import social_network

    story: Story = {
        "title": "t",
        "graph": audit(social_network(n=200, average_degree=6), steps=1).to_dict(),
        "picture": "topology.svg",
    }
    (tmp_path / "topology.svg").write_text("<svg><title>small</title></svg>")
    assert "<title>small</title>" in html(story, tmp_path)
    (tmp_path / "topology.svg").write_text(f"<svg><!--{'x' * LIMIT}--></svg>")
    assert len(html(story, tmp_path)) < LIMIT
    assert "200 people" in html(story, tmp_path)


def test_few_nodes_are_warned_of() -> None:
    story = story_of()
    story["groups"][0]["nodes"] = 13
    (part,) = [s for s in sections(story) if s.title == "Before and after"]
    assert "one decision there is 7.7 points" in part.caption


def test_sections_survive_json() -> None:
    section = Section("t", text=["a"], header=["b"], rows=[["c"]], bullets=["d"], more="e")
    assert section_of(json.loads(json.dumps(part_of(section)))) == section


def test_bars_and_whiskers_stand_where_the_figures_are() -> None:
    story = story_of()
    figure = charts.group_bars(story, [1])
    (axes,) = figure.axes
    shares = sorted(round(patch.get_width(), 6) for patch in axes.patches)
    expected = [100 * g[when][1] for g in story["groups"] for when in ("before", "after")]
    assert shares == pytest.approx(sorted(expected))
    assert axes.get_xlim() == (0, 100)
    assert "of 100 people" in axes.get_xlabel()
    curve = charts.curve(story)
    labels = [text.get_text() for text in curve.axes[0].get_legend().get_texts()]
    assert "mine" in labels
    assert "asked for: at most 2 points" in labels


def test_what_a_target_asks_of_the_gap() -> None:
    for groups, gap, within in ((2, 0.1, None), (3, 0.2, 0.1)):
        sens, y, before, after = decided(groups=groups)
        first, second = (evaluate(s, y, sens, bootstrap=0).to_dict() for s in (before, after))
        story = from_evaluations(second, first, within=0.1)
        [dp] = [criterion for criterion in story["criteria"] if criterion["name"] == "ΔDP"]
        assert (story["target"], dp["target"], dp["within"]) == (gap, gap, within)
        page = html({**story, "title": "t"})
        assert f"≤ {100 * gap:.1f}" in page
        assert ("each group within 10.0 points of the whole" in page) == (groups > 2)


def test_one_decision_for_everyone_is_no_success() -> None:
    sens, y, _, after = decided(classes=3)
    after[:, 1] = 9.0
    found = evaluate(after, y, sens, bootstrap=50, class_names=["low", "mid", "high"]).to_dict()
    note, how = cautions(found)
    assert note == "Everyone is decided 'mid': a gap of 0 is no success, as nobody is told apart."
    assert "largest difference" in how
    story: Story = {**from_evaluations(found), "title": "t"}
    assert note in story["notes"]
    assert summary(story).endswith(note)
    after[0, 0] = 99.0
    after[sens < 0, 0] = 99.0
    sens[0] = 0
    assert not evaluate(after, y, sens, bootstrap=0).notes
    assert cautions(evaluate(after, y, sens, bootstrap=0).to_dict()) == []
