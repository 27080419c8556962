from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.targets import GroupEncoder, Label
from fairmp.errors import InputError


def label(values, *, report=None, **options):
    series, report = pd.Series(values, name="y"), report or LoadReport()
    fitted = Label.fit(series, report, **options)
    return fitted.transform(series, report).tolist(), list(fitted.classes)


def groups(columns, *, bins=None, unknown=None, report=None, **rare):
    frame, report = pd.DataFrame(columns), report or LoadReport()
    fitted = GroupEncoder.fit(frame, bins, unknown, report, **rare)
    return fitted.transform(frame, report).tolist(), list(fitted.groups)


def test_label_sorts_classes():
    assert label([1, 0, 1]) == ([1, 0, 1], ["0", "1"])
    assert label([1.0, None, 0.0]) == ([1, -1, 0], ["0", "1"])
    assert label([10, 9, 2]) == ([2, 1, 0], ["2", "9", "10"])
    assert label(["no", "yes", "maybe"]) == ([1, 2, 0], ["maybe", "no", "yes"])
    assert label([True, False, True]) == ([1, 0, 1], ["False", "True"])


def test_label_minus_one_is_unknown_beside_two_others():
    report = LoadReport()
    assert label([-1, 0, 1, 2], report=report) == ([-1, 0, 1, 2], ["0", "1", "2"])
    assert "−1 counts as unknown (1 node)" in report.notes[0]
    assert report.unknown_labels == 1
    assert label([-1, 1, 1]) == ([0, 1, 1], ["-1", "1"])
    assert label([-1, 0, 1], unknown=()) == ([0, 1, 2], ["-1", "0", "1"])
    assert label(["a", "?", "b"], unknown=["?"]) == ([0, -1, 1], ["a", "b"])
    # Beside other numbers below 0 it is one of them.
    assert label([-2, -1, 0, 1]) == ([0, 1, 2, 3], ["-2", "-1", "0", "1"])
    assert label([9, 0, 1], unknown=["9"]) == ([-1, 0, 1], ["0", "1"])


def test_label_positive_is_class_one():
    assert label(["good", "bad"], positive="bad") == ([0, 1], ["good", "bad"])
    assert label([3, 1, None, 2], positive="3") == ([1, 0, -1, 0], ["not 3", "3"])
    assert label([True, False], positive="false") == ([0, 1], ["True", "False"])
    with pytest.raises(InputError, match=r"positive: 'x' .* a, b"):
        label(["a", "b"], positive="x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1, None], "label: column 'y' has only the value '1'; a classifier needs two classes"),
        ([None, None], "has no value at all"),
        (np.linspace(0, 1, 30), "has 30 different numbers, is it a quantity"),
        ([17 + k % 74 for k in range(900)], "has 74 different numbers, is it a quantity"),
        ([f"person {k}" for k in range(30)], "has 30 different values"),
    ],
)
def test_label_refuses_quantities_and_names(values, message):
    with pytest.raises(InputError, match=message):
        label(values)


def test_label_of_many_classes():
    y, names = label([k % 30 for k in range(300)], categorical=True)
    assert len(names) == 30
    assert max(y) == 29
    assert len(label([f"c{k % 30}" for k in range(300)])[1]) == 30
    assert label([k % 74 for k in range(900)], positive=3)[1] == ["not 3", "3"]


def test_groups_have_names():
    assert groups({"sex": ["f", "m", None]}) == ([0, 1, -1], ["f", "m"])
    assert groups({"white": [1, 0, 1]}) == ([1, 0, 1], ["white = 0", "white = 1"])


def test_crossed_groups_without_nodes_are_left_out():
    columns = {"sex": ["f", "m", "f", None], "region": ["north", "south", "south", "north"]}
    report = LoadReport()
    assert groups(columns, report=report) == (
        [0, 2, 1, -1],
        ["f × north", "f × south", "m × south"],
    )
    assert report.unknown_groups == 1


def test_bins_at_cut_points():
    s, names = groups({"age": [10, 25, 39, 40, None]}, bins=[25, 40])
    assert s == [0, 1, 1, 2, -1]
    assert names == ["age < 25", "25 ≤ age < 40", "age ≥ 40"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 90), min_size=8, max_size=80), st.integers(2, 5))
def test_quantile_bins_are_ordered_and_even(ages, count):
    assume(len(set(ages)) > 1)
    report = LoadReport()
    try:
        s, names = groups({"age": ages}, bins=count, report=report)
    except InputError as error:
        # Nearly everyone has the smallest age, so that no cut above it is left.
        assert "one group" in str(error)  # noqa: PT017
        assert np.quantile(ages, 1 - 1 / count, method="higher") == min(ages)
        return
    assert len(names) == max(s) + 1 <= count
    if len(names) < count:
        assert "instead of" in report.notes[0]
    order = np.argsort(ages, kind="stable")
    assert (np.diff(np.array(s)[order]) >= 0).all()
    if len(set(ages)) == len(ages):
        shares = np.bincount(s)
        assert shares.max() - shares.min() <= 1


@pytest.mark.parametrize("bins", [[30, 60], 2])
@pytest.mark.parametrize(
    ("none", "unknown"), [(-1, [-1]), (-1, ["-1"]), (-1, None), (999, [999]), ("n/a", ["n/a"])]
)
def test_unknown_values_are_in_no_bin(bins, none, unknown):
    ages = [20, 25, 33, 41, 55, 62, 70]
    expected, names = groups({"age": [*ages, None, None]}, bins=bins)
    report = LoadReport()
    encoded = groups(
        {"age": [*ages, none, none]}, bins={"age": bins}, unknown=unknown, report=report
    )
    assert encoded == (expected, names)
    assert encoded[0][-2:] == [-1, -1]
    assert report.unknown_groups == 2
    assert len(report.notes) == (unknown is None)


def test_bins_of_negative_numbers():
    assert groups({"balance": [-1, 5, 9]}, bins=[0], unknown=())[0] == [0, 1, 1]
    assert groups({"balance": [-7, -1, 5, 9]}, bins=[0])[0] == [0, 0, 1, 1]


def test_bins_of_one_column_among_several():
    columns = {"age": [20, 30, 50, 60], "sex": ["f", "m", "f", "m"]}
    s, names = groups(columns, bins=2)
    assert s == [0, 1, 2, 3]
    assert names[0] == "age < 50 × f"
    assert groups(columns, bins={"age": [40]})[0] == s
    with pytest.raises(InputError, match=r"x, y all do; name it, as in {'age': \[25, 40\]}"):
        groups({"x": [1, 2], "y": [1, 2]}, bins=2)
    with pytest.raises(InputError, match="no sensitive column holds numbers"):
        groups({"sex": ["f", "m"]}, bins=2)
    with pytest.raises(InputError, match=r"'agee' .* age, sex"):
        groups(columns, bins={"agee": 2})
    with pytest.raises(InputError, match="'sex' does not hold numbers"):
        groups(columns, bins={"sex": 2})


@pytest.mark.parametrize("bins", [[], [40, 25], [25, 25], [float("nan")], 1, 0])
def test_bins_refuse_wrong_cuts(bins):
    with pytest.raises(InputError, match="sensitive_bins: "):
        groups({"age": [10, 20, 30]}, bins=bins)


def test_groups_refuse_a_quantity_without_bins():
    with pytest.raises(InputError, match=r"sensitive: column 'age' has 30 different numbers; cut"):
        groups({"age": range(30)})
    with pytest.raises(InputError, match="nearly one per row"):
        groups({"name": [f"person {k}" for k in range(30)]})


def test_groups_refuse_a_single_group():
    with pytest.raises(InputError, match="sensitive: 'sex' gives one group, 'f'; a gap needs two"):
        groups({"sex": ["f", "f", None]})
    with pytest.raises(InputError, match="'age' gives one group, 'age < 99'"):
        groups({"age": [1, 2]}, bins=[99])
    with pytest.raises(InputError, match="no known value"):
        groups({"sex": [None, None]})


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["approved", "rejected"], ("rejected", "approved")),
        (["Hired", "no"], ("no", "Hired")),
        (["high", "low"], ("high", "low")),
    ],
)
def test_label_guesses_the_good_decision(values: list[str], classes: tuple[str, str]) -> None:
    report = LoadReport()
    label = Label.fit(pd.Series(values * 3, name="y"), report)
    assert label.classes == classes
    first = report.lines()[0]
    assert f"the positive class is {classes[1]!r}" in first
    assert ("guessed" in first) == (classes[1] != "low")


@pytest.mark.parametrize("values", [[0, 1], ["0", "1"], [False, True], ["a", "b", "c"]])
def test_label_that_needs_no_guess_has_no_note(values: list[object]) -> None:
    report = LoadReport()
    Label.fit(pd.Series(values * 3, name="y"), report)
    assert report.guess == ""


@pytest.mark.parametrize("word", ["none", "Unknown", " not stated ", "N.A.", "prefer not to say"])
def test_groups_that_may_be_unknown_are_asked_about(word: str) -> None:
    cells = ["f", "m", word, "m"]
    with pytest.raises(InputError, match=r"\(1 node\): a group, or not known\? Say unknown="):
        groups({"sex": cells})
    assert groups({"sex": cells}, unknown=[word]) == ([0, 1, -1, 1], ["f", "m"])
    codes, names = groups({"sex": cells}, unknown=[""])
    assert sorted(names) == sorted({*cells})
    assert -1 not in codes


def test_rare_groups_are_one() -> None:
    report = LoadReport()
    cells = ["a"] * 5 + ["b"] * 4 + ["c", "d", "d", None]
    codes, names = groups({"s": cells}, min_group=3, report=report)
    assert names == ["a", "b", "other"]
    assert codes == [0] * 5 + [1] * 4 + [2] * 3 + [-1]
    assert report.notes == ["groups of fewer than 3 nodes are 'other': c 1, d 2"]
    # Labelled nodes are counted, and a group called other takes the rare ones in.
    labelled = np.array([True] * 5 + [False] * 4 + [True] * 3)
    cells = ["a"] * 5 + ["b"] * 4 + ["other"] * 3
    codes, names = groups({"s": cells}, min_group=3, labelled=labelled)
    assert (codes, names) == ([0] * 5 + [1] * 7, ["a", "other"])
    crossed = {"s": list("aabbb"), "t": list("xxyxz")}
    assert groups(crossed, min_group=2) == ([0, 0, 1, 1, 1], ["a × x", "other"])
    with pytest.raises(InputError, match="min_group: c 1: 1 labelled node together, fewer than 2"):
        groups({"s": ["a", "a", "b", "b", "c"]}, min_group=2)
