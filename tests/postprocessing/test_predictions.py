from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp.postprocessing.predictions import Attribute, attributes


@pytest.mark.parametrize(
    "sens",
    [
        ["f", "m", "", "f"],
        ["f", "m", None, "f"],
        ["f", "m", "NA", "f"],
        np.array(["f", "m", "", "f"]),
        pd.Series(["f", "m", None, "f"]),
        pd.Series(["f", "m", None, "f"], dtype="category"),
        pd.Series(["f", "m", pd.NA, "f"], dtype="string"),
    ],
)
def test_names_become_groups(sens: object) -> None:
    (attribute,) = attributes(sens, 4)
    assert attribute.groups == ("f", "m")
    assert attribute.sens.tolist() == [0, 1, -1, 0]
    assert attribute.known.tolist() == [True, True, False, True]
    assert attribute.membership.tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(
    "sens",
    [
        [0, 1, -1, 0],
        np.array([0.0, 1.0, np.nan, 0.0]),
        torch.tensor([0, 1, -1, 0], dtype=torch.int8),
        pd.Series([0, 1, None, 0], dtype="Int64"),
        pd.Series([0, 1, -1, 0], dtype=object),
    ],
)
def test_numbers_are_groups(sens: object) -> None:
    (attribute,) = attributes(sens, 4)
    assert attribute.sens.tolist() == [0, 1, -1, 0]
    assert attribute.groups == ("0", "1")


def test_numbers_as_text_sort_as_numbers() -> None:
    (attribute,) = attributes(["10", "9", "-1", "10"], 4)
    assert attribute.groups == ("9", "10")
    assert attribute.sens.tolist() == [1, 0, -1, 1]
    (attribute,) = attributes(["10", "9", "other", ""], 4)
    assert attribute.groups == ("9", "10", "other")
    assert attribute.sens.tolist() == [1, 0, 2, -1]


def test_probabilities_are_soft_groups() -> None:
    shares = np.array([[0.2, 0.8], [1.0, 0.0], [0.0, 0.0], [0.5, 0.5]])
    for sens in (shares, shares.tolist(), torch.from_numpy(shares), pd.DataFrame(shares)):
        (attribute,) = attributes(sens, 4)
        assert attribute.hard.tolist() == [1, 0, -1, 0]
        assert attribute.estimated.tolist() == [True, False, False, True]
    named = pd.DataFrame(shares, columns=["f", "m"])
    assert attributes(named, 4)[0].groups == ("f", "m")


def test_several_attributes_keep_their_names() -> None:
    sex, age = ["f", "m", "f", "m"], [0, 0, 1, 1]
    for sens in (
        {"sex": sex, "age": age},
        pd.DataFrame({"sex": sex, "age": age}),
    ):
        named = attributes(sens, 4)
        assert [attribute.name for attribute in named] == ["sex", "age"]
    listed = attributes([np.array(sex), age], 4)
    assert [attribute.name for attribute in listed] == ["sens 1", "sens 2"]
    assert attributes(list(listed), 4) == listed
    # Two attributes of two nodes, or two nodes of two groups: floats are probabilities.
    assert len(attributes([[0.5, 0.5], [1.0, 0.0]], 2)) == 1
    assert len(attributes([np.array([0, 1]), np.array([1, 0])], 2)) == 2
    assert isinstance(named[0], Attribute)


@pytest.mark.parametrize("convert", [str, lambda value: value, lambda value: f" {value}"])
def test_large_integers_are_distinct_groups(convert) -> None:
    values = [2**53 + 1, 2**53 + 2, 2**53 + 3, 2**53 + 4]
    groups = np.array([convert(value) for value in values] + [""], dtype=object)
    [attribute] = attributes(groups, 5)
    assert attribute.groups == tuple(map(str, values))
    assert attribute.sens.tolist() == [0, 1, 2, 3, -1]


@pytest.mark.parametrize(
    "groups",
    [
        ("1", "01", "2A"),
        ("7", "8", "007"),
        ("1000", "1E3", "2A"),
        ("2", "12345678901234567", "0x2"),
    ],
)
def test_groups_that_differ_as_text_stay_apart(groups: tuple[str, ...]) -> None:
    (attribute,) = attributes([*groups, "", groups[0]], 5)
    assert attribute.groups == groups
    assert attribute.sens.tolist() == [0, 1, 2, -1, 0]


def test_group_keeps_its_name_where_the_other_groups_are_absent() -> None:
    (everyone,) = attributes(["01", "2A", "1E3"], 3)
    (some,) = attributes(["01", "1E3"], 2)
    assert set(some.groups) <= set(everyone.groups)
    (missing,) = attributes(["", None], 2)
    assert missing.sens.tolist() == [-1, -1]
