"""A result of post-processing as text, HTML and plot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from fairmp import debias
from fairmp.postprocessing.debias_table import TableResult, TableSpec, debias_table
from fairmp.postprocessing.result import DebiasResult
from fairmp.report import corrections
from fairmp.report.from_results import from_corrected

RNG = np.random.default_rng(0)
SEX = np.where(RNG.random(500) < 0.5, "f", "m")
Y = (RNG.random(500) < np.where(SEX == "m", 0.7, 0.3)).astype(int)
P = 1 / (1 + np.exp(-2 * (2 * Y - 1) - RNG.normal(size=500)))


@pytest.fixture(scope="module")
def result() -> DebiasResult:
    corrected = debias(P, SEX, target=0.02, y=Y, full_output=True)
    assert isinstance(corrected, DebiasResult)
    return corrected


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_text_has_each_gap_beside_its_target(result: DebiasResult, on: str) -> None:
    header, parity, *_ = corrections._criteria(replace(result, on=on))
    (criterion, *_) = result.criteria
    assert header[1:8] == [
        "decided before", "after", "target", "ahead", "probability before", "after", "target",
    ]  # fmt: skip
    assert parity[2] == f"{100 * criterion.decisions_after:.1f}"
    assert parity[6] == f"{100 * criterion.after:.2f}"
    assert (parity[3], parity[7]) == (("2.00", "–") if on == "decisions" else ("–", "2.00"))
    assert corrections._criteria(result)[2][3] == "–"  # not requested


def test_text_starts_with_gaps_that_grew(result: DebiasResult) -> None:
    headline = corrections.text(result).split("\n\n")[0]
    assert "WORSE: the gap of equal opportunity" in headline
    assert f"{result.changed} decisions changed" in headline
    assert "accuracy on 500 labelled nodes" in headline


def test_text_and_html_show_the_same_notes() -> None:
    partly_known = np.where(np.arange(500) % 5 == 0, "", SEX)
    labels = np.where(np.arange(500) < 400, Y, -1)
    corrected = debias(P, partly_known, criterion="equal_opportunity", y=labels, full_output=True)
    lines = corrections.notes(corrected.criteria, corrected.group_uncertainty)
    assert any("100 nodes of unknown group" in line for line in lines)
    assert any("unlabelled nodes" in line for line in lines)
    page = corrections.html(corrected)
    for line in lines:
        assert line in corrections.text(corrected)
        assert line in page
    record = json.loads(json.dumps(corrected.to_dict()))
    people = corrections.notes(corrected.criteria, corrected.group_uncertainty, noun="person")
    assert corrections.notes_of_record(record) == people


def test_text_says_where_no_estimate_can_be_made() -> None:
    odd = np.where(SEX == "f", 1 - P, P)
    labels = np.where(np.arange(500) < 400, Y, -1)
    corrected = debias(odd, SEX, criterion="eo", y=labels, target=0.1, full_output=True)
    unlabelled = corrected.criteria[0].unlabelled
    assert unlabelled is not None
    words = "cannot be estimated" if not unlabelled.reliable else "estimated"
    assert words in corrections.text(corrected)


def test_title_names_the_attribute(result: DebiasResult) -> None:
    (criterion, *_) = result.criteria
    assert corrections.title(criterion) == "demographic parity"
    assert corrections.title(replace(criterion, attribute="sex")) == "demographic parity, sex"


def test_plot_draws_rates_before_and_after(result: DebiasResult) -> None:
    ax = corrections.plot(result)
    widths = [patch.get_width() / 100 for patch in ax.patches]
    rates = [group.decided_before[1] for group in result.groups]
    rates += [group.decided_after[1] for group in result.groups]
    assert sorted(widths) == pytest.approx(sorted(rates))


@pytest.fixture
def people(tmp_path: Path) -> Path:
    choice = np.where(P > 0.5, "take", "leave")
    frame = pd.DataFrame({"p": P.round(6), "sex": SEX, "paid": Y, "choice": choice})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_record_is_json_and_makes_a_document(people: Path) -> None:
    spec = TableSpec(people, ["sex"], probabilities="p", label="paid", target=[0.02])
    corrected = debias_table(spec)
    record = corrections.record(
        spec, corrected, file=Path("out.csv"), panel_command="again --target {target}"
    )
    record = json.loads(json.dumps(record, allow_nan=False))
    assert (record["data"], record["rows"], record["file"]) == ("people.csv", 500, "out.csv")
    assert record["panel"]["criteria"][0]["command"] == "again --target {target}"
    assert len(record["reliability"]) == 2
    document = from_corrected(record)
    assert document["metrics"][1]["target"] == 0.02
    assert corrections.advice(corrected) == []


def test_record_of_decisions_or_a_saved_correction_has_no_panel(
    people: Path, tmp_path: Path
) -> None:
    drawn = TableSpec(people, ["sex"], decision="choice")
    corrected = debias_table(drawn)
    assert "panel" not in corrections.record(drawn, corrected, file=Path("o.csv"), panel_command="")
    assert "by chance" in corrections.advice(corrected)[0]
    saving = TableSpec(people, ["sex"], probabilities="p", save=tmp_path / "c.json")
    fitted = debias_table(saving)
    assert "on 1,000 new rows" in corrections.expected_gap_text(fitted)


def test_advice_says_that_decisions_miss_the_target_of_probabilities(people: Path) -> None:
    spec = TableSpec(people, ["sex"], probabilities="p", target=[0.15], on="probabilities")
    corrected = debias_table(spec)
    (criterion,) = corrected.result.criteria
    assert bool(corrections.advice(corrected)) == (criterion.decisions_after > 0.16)
    assert from_corrected(corrected.result.to_dict())["metrics"][0]["target"] is None


def _corrected_table(result: DebiasResult) -> TableResult:
    return cast(TableResult, SimpleNamespace(result=result))


@pytest.mark.parametrize(("after", "said"), [(0.0366, False), (0.02, True)])
def test_advice_says_target_is_met_only_where_it_is(
    result: DebiasResult, after: float, said: bool
) -> None:
    criterion = replace(result.criteria[0], target=0.02, after=after, decisions_after=0.05)
    missed = replace(result, on="probabilities", criteria=(criterion,))
    assert bool(corrections.met_by_probabilities_only(missed)) == said


def test_expected_gap_is_that_of_the_requested_criterion(result: DebiasResult) -> None:
    opportunity = next(c for c in result.others if c.criterion == "equal_opportunity")
    text = corrections.expected_gap_text(_corrected_table(replace(result, criteria=(opportunity,))))
    expected = result.expected_gap(1000, "equal_opportunity")
    assert f"a gap of {100 * expected.mean:.1f} points (equal opportunity)" in text


def test_text_flags_a_change_of_sides(result: DebiasResult) -> None:
    first, second = (group for group in result.groups if group.known)
    swapped = (
        replace(first, decided_before=(0.7, 0.3), decided_after=(0.4, 0.6)),
        replace(second, decided_before=(0.5, 0.5), decided_after=(0.5, 0.5)),
    )
    headline = corrections.text(replace(result, groups=swapped)).split("\n\n")[0]
    expected = f"{second.group} by 20.0 before, {first.group} by 10.0 after"
    assert f"REVERSED: demographic parity, {expected}" in headline


def test_program_says_people_and_python_nodes(result: DebiasResult) -> None:
    assert "people" not in corrections.text(result)
    for_people = corrections.text(result, noun="person")
    assert "node" not in for_people
    assert for_people.count("people") == corrections.text(result).count("nodes")
