"""Who is ahead, who pays, and what to check."""

from __future__ import annotations

import numpy as np
import pytest

from fairmp.metrics import evaluate
from fairmp.report.document import cards, summary
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
    missed, *others = checks(document)
    assert "target of 2.0 points is missed" in missed
    assert others == ["one", "two"]


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


def _by_counts(counts: list[list[int]], n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Groups of n people, and their decisions: counts of each class by group."""
    decisions = [np.repeat(np.arange(len(row)), row) for row in counts]
    assert all(len(group) == n for group in decisions)
    return np.repeat(np.arange(len(counts)), n), np.concatenate(decisions)


def test_reversal_of_five_groups_is_about_one_pair() -> None:
    before = [[40, 60], [70, 30], [50, 50], [50, 50], [48, 52]]
    after = [[50, 50], [50, 50], [40, 60], [50, 50], [52, 48]]
    sens, was = _by_counts(before)
    _, now = _by_counts(after)
    names = {"class_names": ["no", "yes"], "group_names": list("abcde"), "bootstrap": 0}
    results = [
        evaluate(now * 0 + 1, np.eye(2)[d], sensitive_features=sens, **names) for d in (now, was)
    ]
    (flag,) = [text for text in flags(from_evaluations(*results)) if "(ΔDP)" in text]
    assert "before: e ahead of c by 2.0; now: c ahead of e by 12.0" in flag


@pytest.mark.parametrize(
    ("criterion", "key"), [("demographic_parity", "dp"), ("equal_opportunity", "eo")]
)
def test_gap_above_its_target_is_said(criterion: str, key: str) -> None:
    sens, y, before, after = reversed_rates()
    names = {"class_names": ["no", "hired"], "group_names": ["men", "women"], "bootstrap": 0}
    results = [evaluate(y, np.eye(2)[d], sensitive_features=sens, **names) for d in (after, before)]
    missed = from_evaluations(*results, 0.02, criterion)
    (line,) = checks(missed)
    assert line.startswith("The target of 2.0 points is missed")
    assert f"Δ{key.upper()}" in line
    assert "10.0" in line
    assert checks(from_evaluations(*results, 0.1, criterion)) == []
    by_one = checks(from_evaluations(*results, 0.095, criterion))
    assert ("One person of the smallest group is 1.0 points" in by_one[0]) == (key == "dp")


def test_summary_is_about_the_criterion() -> None:
    sens, y, before, after = reversed_rates()
    y[:20] = y[100:120] = 0
    names = {"class_names": ["no", "hired"], "group_names": ["men", "women"], "bootstrap": 0}
    results = [evaluate(y, np.eye(2)[d], sensitive_features=sens, **names) for d in (after, before)]
    of_all, of_labelled = (
        summary(from_evaluations(*results, 0.02, criterion))
        for criterion in ("demographic_parity", "equal_opportunity")
    )
    assert of_all.startswith("'men' gets 'hired' 82 times in 100, 'women' 72 times.")
    assert of_labelled.startswith("Of those labelled 'hired': 'men' gets 'hired' 78 times in 100")
    assert "Accuracy is" in of_labelled
