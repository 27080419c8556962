from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairmp import groups
from fairmp.errors import InputError
from fairmp.groups import group_operator


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=30))
def test_codes_and_one_hot_probabilities_say_the_same(codes: list[int]) -> None:
    sens = torch.tensor(codes)
    one_hot = torch.nn.functional.one_hot(sens.clamp_min(0), 4).float() * (sens >= 0).unsqueeze(1)
    assert torch.equal(groups.known(one_hot), groups.known(sens))
    assert groups.likeliest(one_hot).tolist() == groups.certain(one_hot).tolist() == codes
    assert groups.soft(one_hot)
    assert not groups.soft(sens)


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=10))
def test_what_is_no_certainty(rows: list[list[float]]) -> None:
    sens = torch.tensor(rows)
    sens = sens / sens.sum(1, keepdim=True)
    groups.check_probabilities("sens", sens, len(rows))
    assert groups.certain(sens).tolist() == [-1] * len(rows)
    assert groups.known(sens).all()


@pytest.mark.parametrize(
    ("sens", "words"),
    [
        ([[0.5, 0.6]], "node 0 sum to 1.1"),
        ([[1.0, 0.0], [-0.5, 1.5]], "node 1 has -0.5"),
        ([[float("nan"), 1.0]], "node 0 has nan"),
        ([[1.0]], "two or more"),
    ],
)
def test_wrong_probabilities(sens: list[list[float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        groups.check_probabilities("sens", torch.tensor(sens), len(sens))
    with pytest.raises(InputError):  # what is refused here, the incidence refuses too
        group_operator(torch.tensor(sens))
