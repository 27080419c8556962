"""Sensitive groups, and the operator Δ against its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairmp import InputError, groups
from fairmp.groups import GroupOperator, group_operator, memberships, stack


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=30))
def test_codes_and_one_hot_probabilities_say_the_same(codes: list[int]) -> None:
    sens = torch.tensor(codes)
    one_hot = torch.nn.functional.one_hot(sens.clamp_min(0), 4).float() * (sens >= 0).unsqueeze(1)
    assert torch.equal(groups.known_mask(one_hot), groups.known_mask(sens))
    assert groups.most_likely_group(one_hot).tolist() == codes
    assert groups.certain_group(one_hot).tolist() == codes
    assert groups.is_soft(one_hot)
    assert not groups.is_soft(sens)


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=10))
def test_uncertain_probabilities_are_known_and_not_certain(rows: list[list[float]]) -> None:
    sens = torch.tensor(rows)
    sens = sens / sens.sum(1, keepdim=True)
    groups.check_probabilities("sens", sens, len(rows))
    assert groups.certain_group(sens).tolist() == [-1] * len(rows)
    assert groups.known_mask(sens).all()


def test_certainty_allows_for_rounding_alone() -> None:
    sens = torch.tensor([[1 - 1e-7, 1e-7], [1 - 1e-4, 1e-4]], dtype=torch.float64)
    assert groups.certain_group(sens).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("sens", "words"),
    [
        ([[0.5, 0.6]], "node 0 sum to 1.1"),
        ([[0.5, 0.505]], "node 0 sum to 1.005"),
        ([[1.0, 0.0], [-0.5, 1.5]], "node 1 has -0.5"),
        ([[float("nan"), 1.0]], "node 0 has nan"),
        ([[1.0]], "two or more"),
    ],
)
def test_wrong_probabilities_are_named(sens: list[list[float]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        groups.check_probabilities("sens", torch.tensor(sens), len(sens))
    with pytest.raises(InputError):
        group_operator(torch.tensor(sens))


def test_probabilities_may_miss_their_sum_by_rounding() -> None:
    groups.check_probabilities("sens", torch.tensor([[0.5, 0.5004], [0.3, 0.7]]), 2)


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


def test_shift_reaches_every_node_of_known_group() -> None:
    sens = torch.tensor([0, 1, 0, 1, -1])
    inside = torch.tensor([True, True, False, False, True])
    shift = group_operator(sens, inside).shift(torch.tensor([[2.0, -1.0]]))
    torch.testing.assert_close(shift[2], shift[0])
    torch.testing.assert_close(shift[3], shift[1])
    assert torch.all(shift[4] == 0)


def test_certain_probabilities_equal_codes() -> None:
    sens = torch.tensor([0, 2, 1, -1, 1])
    probabilities = torch.zeros(5, 3)
    probabilities[torch.arange(5) != 3, sens[sens >= 0]] = 1
    torch.testing.assert_close(group_operator(probabilities).matrix, group_operator(sens).matrix)


def test_gap_of_probabilities_is_a_difference_of_weighted_means() -> None:
    s = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.1], [0.6], [0.3], [0.9]], dtype=torch.float64)
    mean = lambda g: (s[:, g] @ p[:, 0]) / s[:, g].sum()  # noqa: E731
    gap = group_operator(s, dtype=torch.float64).gap(p)
    torch.testing.assert_close(gap[0, 0], mean(1) - mean(0))


def test_largest_gap_is_between_the_groups_farthest_apart() -> None:
    sens, age = torch.tensor([0, 0, 1, 2, 2, -1]), torch.tensor([0, 1, 1, 0, 1, 1])
    p = torch.rand(6, 3, dtype=torch.float64)
    means = torch.stack([p[sens == g].mean(0) for g in range(3)])
    difference = p[age == 1].mean(0) - p[age == 0].mean(0)
    delta = group_operator(sens, dtype=p.dtype)
    torch.testing.assert_close(delta.largest_gap(p), means.amax(0) - means.amin(0))
    one_hot = torch.nn.functional.one_hot(sens.clamp_min(0), 3).double() * (sens >= 0).unsqueeze(1)
    torch.testing.assert_close(group_operator(one_hot).largest_gap(p), delta.largest_gap(p))
    both = stack(delta, group_operator(age, dtype=p.dtype))
    assert both.blocks == (3, 1)
    largest = torch.maximum(delta.largest_gap(p), difference.abs())
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
def test_group_operator_names_wrong_groups(
    sens: torch.Tensor, population: torch.Tensor | None, words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        group_operator(sens, population)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_groups_are_ignored_on_request() -> None:
    sens = torch.tensor([0, 2, 2, -1])
    delta = group_operator(sens, absent="ignore")
    p = torch.tensor([[0.2], [0.5], [0.7], [0.9]])
    assert float(delta.gap(p)[0, 0]) == pytest.approx(0.4)
    assert not group_operator(torch.zeros(3).long(), absent="ignore").rows.any()


@pytest.mark.parametrize("soft", [False, True])
def test_stack_measures_each_attribute_on_its_own_population(soft: bool) -> None:
    first, second = torch.tensor([0, 1, 0, 1, -1]), torch.tensor([1, 1, 0, 0, 1])
    inside = torch.tensor([True, True, False, True, True])
    sens = torch.nn.functional.one_hot(second, 2) * 0.9 + 0.05 if soft else second
    parts = [
        group_operator(first, inside, dtype=torch.float64),
        group_operator(sens, dtype=torch.float64),
    ]
    both = stack(*parts)
    p = torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(both.gap(p), torch.cat([part.gap(p) for part in parts]))
    torch.testing.assert_close(both.matrix, torch.cat([part.matrix for part in parts]))
    u = torch.rand(2, 2, dtype=torch.float64)
    expected = parts[0].shift(u[:1]) + parts[1].shift(u[1:])
    torch.testing.assert_close(both.shift(u), expected)
    assert stack(parts[0]) is parts[0]


def test_stack_refuses_nothing_and_operators_of_other_nodes() -> None:
    for operators in (
        (),
        (group_operator(torch.tensor([0, 1])),) * 1 + (group_operator(torch.tensor([0, 1, 1])),),
    ):
        with pytest.raises(InputError) as error:
            stack(*operators)
        assert error.value.argument == "stack"


@pytest.mark.parametrize("soft", [False, True])
def test_subtract_leaves_unknown_groups_alone(soft: bool) -> None:
    codes = torch.tensor([0, 1, -1])
    sens = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.0, 0.0]]) if soft else codes
    table = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    z = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    moved = group_operator(sens, dtype=z.dtype).subtract(z, table)
    expected = -sens.double() @ table if soft else -torch.tensor([[1.0, 0], [0, 2], [0, 0]])
    torch.testing.assert_close(moved, expected.double())
    (grad,) = torch.autograd.grad(moved.sum(), z)
    assert torch.equal(grad, torch.ones_like(z))


def test_binary_groups_are_those_of_one_gap_between_hard_groups() -> None:
    sens, inside = torch.tensor([0, 1, 0, 1, -1]), torch.tensor([True, True, True, False, True])
    binary = group_operator(sens, inside).binary
    assert binary is not None
    assert binary.scale == 1.0
    assert binary.weight.tolist() == [-0.5, 1.0]
    assert binary.column.tolist() == [-0.5, 1.0, -0.5, 1.0, 0.0]
    assert binary.codes.tolist() == [0, 1, 0, -1, -1]
    assert (binary.nodes.tolist(), binary.starts.tolist()) == ([0, 2, 1], [0, 2, 3])
    assert group_operator(torch.tensor([0, 1, 2])).binary is None
    assert group_operator(torch.tensor([[0.4, 0.6], [0.5, 0.5]])).binary is None


def test_reorder_moves_every_part() -> None:
    order = torch.tensor([2, 0, 3, 1])
    sens, inside = torch.tensor([0, 1, 2, -1]), torch.tensor([True, True, True, True])
    soft = torch.tensor([[0.4, 0.6], [0.5, 0.5], [0.0, 0.0], [0.9, 0.1]])
    for groups_ in (sens, soft):
        delta = group_operator(groups_, inside)
        moved = delta.reorder(order)
        assert torch.equal(moved.matrix, delta.matrix[:, order])
        assert torch.equal(moved.known, delta.known[order])


def test_memberships_have_a_column_for_each_group() -> None:
    assert memberships(torch.tensor([1, -1]), 3).tolist() == [[0, 1, 0], [0, 0, 0]]
    soft = torch.tensor([[0.4, 0.6]])
    assert memberships(soft, 2) is soft
    for sens in (torch.tensor([2]), soft):
        with pytest.raises(InputError) as error:
            memberships(sens, 2 if sens.dim() == 1 else 3)
        assert error.value.argument == "sens"


def test_an_operator_needs_memberships_or_codes() -> None:
    with pytest.raises(InputError) as error:
        GroupOperator(None, torch.ones(2, dtype=torch.bool), torch.ones(1, 2))
    assert error.value.argument == "membership"
