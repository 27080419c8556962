from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairmp import InputError
from fairmp.groups import group_operator, stack


def brute_gap(p: torch.Tensor, sens: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    groups = int(sens.max()) + 1
    means = torch.stack([p[(sens == g) & inside].mean(0) for g in range(groups)])
    if groups == 2:
        return (means[1] - means[0]).unsqueeze(0)
    return means - p[(sens >= 0) & inside].mean(0)


@given(groups=st.integers(2, 5), nodes=st.integers(10, 40), seed=st.integers(0, 999))
def test_gap_is_a_difference_of_means(groups: int, nodes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sens = torch.randint(-1, groups, (nodes,), generator=generator)
    inside = torch.rand(nodes, generator=generator) < 0.7
    sens[:groups], inside[:groups] = torch.arange(groups), True
    p = torch.rand(nodes, 3, dtype=torch.float64, generator=generator)
    delta = group_operator(sens, inside, dtype=torch.float64)
    expected = brute_gap(p, sens, inside)
    torch.testing.assert_close(delta.gap(p), expected)
    torch.testing.assert_close(delta.matrix @ p, expected)
    assert torch.all(delta.matrix[:, (sens < 0) | ~inside] == 0)
    norm = torch.linalg.matrix_norm(delta.matrix, ord=2).item() ** 2
    assert delta.norm == pytest.approx(norm)


def test_norm_of_two_groups() -> None:
    sens = torch.tensor([0] * 30 + [1] * 10)
    assert group_operator(sens).norm == pytest.approx(1 / 30 + 1 / 10)


def test_a_dual_reaches_every_node_of_known_group() -> None:
    sens = torch.tensor([0, 1, 0, 1, -1])
    inside = torch.tensor([True, True, False, False, True])
    shift = group_operator(sens, inside).shift(torch.tensor([[2.0, -1.0]]))
    torch.testing.assert_close(shift[2], shift[0])
    torch.testing.assert_close(shift[3], shift[1])
    assert torch.all(shift[4] == 0)


def test_certain_probabilities_are_groups() -> None:
    sens = torch.tensor([0, 2, 1, -1, 1])
    probabilities = torch.zeros(5, 3)
    probabilities[torch.arange(5) != 3, sens[sens >= 0]] = 1
    torch.testing.assert_close(group_operator(probabilities).matrix, group_operator(sens).matrix)


def test_probabilities_weigh() -> None:
    s = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.1], [0.6], [0.3], [0.9]], dtype=torch.float64)
    mean = lambda g: (s[:, g] @ p[:, 0]) / s[:, g].sum()  # noqa: E731
    gap = group_operator(s, dtype=torch.float64).gap(p)
    torch.testing.assert_close(gap[0, 0], mean(1) - mean(0))


def test_the_largest_gap_is_between_the_groups_farthest_apart() -> None:
    sens, age = torch.tensor([0, 0, 1, 2, 2, -1]), torch.tensor([0, 1, 1, 0, 1, 1])
    p = torch.rand(6, 3, dtype=torch.float64)
    means = torch.stack([p[sens == g].mean(0) for g in range(3)])
    difference = p[age == 1].mean(0) - p[age == 0].mean(0)
    groups = group_operator(sens, dtype=p.dtype)
    torch.testing.assert_close(groups.largest_gap(p), means.amax(0) - means.amin(0))
    one_hot = torch.nn.functional.one_hot(sens.clamp_min(0), 3).double() * (sens >= 0).unsqueeze(1)
    torch.testing.assert_close(group_operator(one_hot).largest_gap(p), groups.largest_gap(p))
    both = stack(groups, group_operator(age, dtype=p.dtype))
    assert both.blocks == (3, 1)
    largest = torch.maximum(groups.largest_gap(p), difference.abs())
    torch.testing.assert_close(both.largest_gap(p), largest)
    torch.testing.assert_close((both.pair_matrix @ p).abs().amax(0), largest)


@pytest.mark.parametrize(
    ("sens", "population", "words"),
    [
        (torch.zeros(4, dtype=torch.long), None, ["sens", "1 group", "at least two"]),
        (torch.full((4,), -1), None, ["sens", "0 groups"]),
        (torch.tensor([0, 2, 2]), None, ["group 1", "nodes by group: 1, 0, 2"]),
        (torch.tensor([0, 1, 1]), torch.tensor([True, False, False]), ["group 1", "population"]),
        (torch.tensor([0, 1, -3]), None, ["-3", "-1 for unknown"]),
        (torch.tensor([0.0, 0.5]), None, ["0.5", "n×G"]),
        (torch.tensor([0, 1]), torch.tensor([1, 0]), ["population", "boolean"]),
        (torch.tensor([[0.4, 0.4]]), None, ["node 0", "0.8"]),
        (torch.tensor([[1.2, -0.2]]), None, ["for a probability"]),
        (torch.ones(3, 1), None, ["two or more"]),
        (torch.zeros(2, 2, 2), None, ["sens", "shape"]),
    ],
)
def test_wrong_groups_are_named(
    sens: torch.Tensor, population: torch.Tensor | None, words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        group_operator(sens, population)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
