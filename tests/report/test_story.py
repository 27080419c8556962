"""Who is ahead, who pays, and what to check."""

from __future__ import annotations

import numpy as np
import pytest

from fairmp.metrics import evaluate
from fairmp.report.document import cards
from fairmp.report.evaluations import add_decisions, from_evaluations
from fairmp.report.from_results import card
from fairmp.report.sections import flags, page_sections
from fairmp.report.story import checks, direction, payers, turned
from tests.report.documents import decided, document_for


def reversed_rates() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two groups of 100 with all labels positive: 69 and 84 are found before, 82 and 72 after."""
    sens = np.repeat([0, 1], 100)
    before, after = (
        np.concatenate([np.arange(100) < count for count in counts]).astype(int)
        for counts in ((69, 84), (82, 72))
    )
    return sens, np.ones(200, dtype=int), before, after


def test_change_of_sides_is_a_flag() -> None:
    sens, y, before, after = reversed_rates()
    names = {"class_names": ["no", "hired"], "group_names": ["men", "women"], "bootstrap": 0}
    evaluations = [
        evaluate(y, np.eye(2)[d], sensitive_features=sens, **names) for d in (after, before)
    ]
    document = from_evaluations(*evaluations)
    opportunity = direction(document, "eo")
    assert opportunity is not None
    assert opportunity.changed_sides
    assert opportunity.before is not None
    assert opportunity.after is not None
    assert (opportunity.before.ahead, opportunity.after.ahead) == ("women", "men")
    assert any("women ahead by 15.0; now: men ahead by 10.0" in flag for flag in flags(document))
    same = from_evaluations(evaluations[0], evaluations[0])
    assert flags(same) == []


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (2, 5), (4, 2), (4, 5)])
def test_direction_names_the_extreme_groups(classes: int, groups: int) -> None:
    document = document_for(classes, groups)
    sens, _, before, after = decided(classes, groups)
    found = direction(document, "dp")
    assert found is not None
    for lead, scores in ((found.before, before), (found.after, after)):
        assert lead is not None
        c = int(lead.class_name.removeprefix("class "))
        rates = [(scores.argmax(1) == c)[sens == g].mean() for g in range(groups)]
        assert lead.ahead == f"group <{int(np.argmax(rates))}>"
        assert lead.behind == f"group <{int(np.argmin(rates))}>"
        assert lead.gap == pytest.approx(max(rates) - min(rates))
    assert page_sections(document)


def test_payers_are_counted_by_label() -> None:
    document = document_for()
    sens, y, before, after = decided()
    was, now = before.argmax(1), after.argmax(1)
    labelled = (sens >= 0) & (y >= 0)
    lost, gained = labelled & (was > now), labelled & (was < now)
    paid = payers(document)
    assert paid is not None
    assert (paid.lost, paid.lost_with_label) == (lost.sum(), (lost & (y == 1)).sum())
    assert (paid.gained, paid.gained_without_label) == (gained.sum(), (gained & (y == 0)).sum())
    assert payers(document_for(classes=4)) is None
    alone = document_for()
    for group in alone["groups"]:
        del group["paid"]
    add_decisions(alone, ["group <0>", "group <1>"], sens, y, now)
    assert payers(alone) is None


def test_every_card_names_the_split() -> None:
    document = document_for()
    document["sample"] = "split 1 of 3"
    assert all(card.note.endswith("split 1 of 3") for card in cards(document))


def test_checks_are_at_most_three() -> None:
    document = document_for(groups=5)
    document["checks"] = ["one", "two", "three", "four"]
    assert checks(document) == ["one", "two", "three"]


def test_people_whose_decision_turned_wrong_are_counted_with_several_classes() -> None:
    document = document_for(4, 5)
    sens, y, before, after = decided(4, 5)
    rows = (sens >= 0) & (y >= 0)
    was_right, is_right = (scores.argmax(1) == y for scores in (before, after))
    found = turned(document)
    assert found is not None
    assert found.wrong_now == (rows & was_right & ~is_right).sum()
    assert found.right_now == (rows & ~was_right & is_right).sum()
    assert any(card.label == "who pays" for card in cards(document))


def test_one_flag_per_gap_and_none_for_odds() -> None:
    sens, y, before, after = reversed_rates()
    y = np.tile([1, 1, 1, 0], 50)
    names = {"class_names": ["no", "hired"], "group_names": ["men", "women"], "bootstrap": 0}
    document = from_evaluations(
        *(evaluate(y, d, sensitive_features=sens, **names) for d in (after, before))
    )
    found = flags(document)
    for label in ("ΔDP", "ΔEO", "ΔFPR"):
        assert sum(label in flag for flag in found) <= 1
    assert not any("Δodds" in flag for flag in found)


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (4, 5)])
def test_result_and_card_have_the_figures_people_must_report(classes: int, groups: int) -> None:
    document = document_for(classes, groups)
    result = next(s for s in page_sections(document) if s.title == "Result")
    rows = {row[0]: row for row in result.rows}
    ratio = next(metric for metric in document["metrics"] if metric["key"] == "impact_ratio")
    low, high = ratio["after_interval"]
    assert rows["impact ratio"][2] == f"{ratio['after']:.2f} ({low:.2f} to {high:.2f})"
    gaps = next(section for section in card(document) if section.title == "Criteria and gaps")
    names = {row[0] for row in gaps.rows}
    assert {"ΔFPR", "ΔPPV", "Δaccuracy", "calibration error", "impact ratio"} <= names
    by_group = next(s for s in page_sections(document) if s.title == "Decisions by group")
    assert "accuracy %" in by_group.header
    assert ("precision %" in by_group.header) == (classes == 2)
