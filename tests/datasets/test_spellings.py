from __future__ import annotations

import pandas as pd
import pytest

from fairmp import InputError
from fairmp.datasets import from_tables
from fairmp.datasets.spellings import spelling_notes

N = 24
EDGES = pd.DataFrame({"a": range(N - 1), "b": range(1, N)})


def notes(**columns: list[object]) -> list[str]:
    people = pd.DataFrame({"y": [0, 1] * (N // 2), "s": list("uvvu") * (N // 4), "x": range(N)})
    people = people.assign(**{name: (N * cells)[:N] for name, cells in columns.items()})
    return from_tables(people, EDGES, id=None, label="y", sensitive="s").report.notes


@pytest.mark.parametrize("role", ["s", "y"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Jos\u00e9", "Jose\u0301"),  # NFC and NFD
        ("north", "north "),
        ("north", "North"),
        ("new town", "new\u00a0town"),
        ("new town", "new  town"),
        ("a\u200bb", "ab"),
        ("\ufb01ne", "fine"),
        ("Stra\u00dfe", "STRASSE"),
    ],
)
def test_spellings_are_named_with_their_counts(role: str, one: str, other: str) -> None:
    [note] = [note for note in notes(**{role: [one, other, one, "else"]}) if "apart" in note]
    assert f"{N // 2} nodes" in note
    assert f"{N // 4} nodes" in note


@pytest.mark.parametrize(
    "values", [["a", "b"], ["e", "\u00e9"], ["1", "10"], [1, 2], ["a b", "ab"]]
)
def test_other_values_are_not_named(values: list[object]) -> None:
    assert not [note for note in notes(s=values) if "apart" in note]


def test_number_of_notes_is_limited() -> None:
    counts = {f"{case}{k}": 1 for k in range(50) for case in "aA"}
    assert len(spelling_notes(counts, "label 'x'")) == 6


def groups(values: list[object], tmp_path) -> list[str]:
    people = pd.DataFrame({"y": [0, 1] * (N // 2), "s": (N * values)[:N], "x": range(N)})
    people.to_csv(tmp_path / "people.csv", index=False)
    data = from_tables(tmp_path / "people.csv", EDGES, id=None, label="y", sensitive="s")
    return data.group_names


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (["01", "1", "2"], 3),
        (["1E3", "1000", "7"], 3),
        (["true", "1", "0"], 3),
        (["1.0", "1", "2"], 2),  # one number
        (["0.10", "0.1", ".1", "0.2"], 2),
        (["True", "true", "FALSE"], 2),
        (["-0", "0", "1"], 2),
    ],
)
def test_distinct_values_of_a_file_stay_distinct(values, count: int, tmp_path) -> None:
    assert len(groups(values, tmp_path)) == count


@pytest.mark.parametrize(
    "values", [("a \u00d7", "b", "a", "\u00d7 b"), ("a \u00d7 b", "c", "a", "b \u00d7 c")]
)
def test_crossed_groups_never_merge(values: tuple[str, str, str, str]) -> None:
    one, other = list(values[::2]), list(values[1::2])
    people = pd.DataFrame({"y": [0, 1] * (N // 2), "s": one * (N // 2), "t": other * (N // 2)})
    people["x"] = range(N)
    with pytest.raises(InputError) as error:
        from_tables(people, EDGES, id=None, label="y", sensitive=["s", "t"])
    assert error.value.argument == "sensitive"
