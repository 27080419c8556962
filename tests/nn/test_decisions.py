"""Equal rates of decisions: within one node of the target, also where scores tie."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp import FMP, InputError
from fairmp.groups import GroupOperator, group_operator
from fairmp.nn.decisions import MIN_MARGIN, DecisionRule, close_decision_gap, equal_rates

NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def rates(
    decided: torch.Tensor, sens: torch.Tensor, inside: torch.Tensor, classes: int
) -> np.ndarray:
    """Share of each class among the decisions of each group, in numpy."""
    d, s, p = decided.numpy(), sens.numpy(), inside.numpy()
    return np.stack(
        [[np.mean(d[(s == g) & p] == c) for c in range(classes)] for g in range(s.max() + 1)]
    )


@settings(max_examples=100)
@given(
    groups=st.integers(2, 5),
    classes=st.integers(2, 5),
    extra=st.integers(0, 120),
    scale=st.sampled_from([0.1, 1.0, 100.0, 1e4]),
    rounded=st.booleans(),
    target=st.sampled_from([0.0, 0.02, 0.1]),
    single=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_close_decision_gap_is_within_one_node_of_the_target(
    groups: int,
    classes: int,
    extra: int,
    scale: float,
    rounded: bool,
    target: float,
    single: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = 2 * groups + extra
    sens = torch.randint(-1, groups, (n,), generator=generator)
    sens[:groups] = torch.arange(groups)
    inside = torch.rand(n, generator=generator) < 0.7
    inside[:groups] = True
    x = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    x += torch.randn(groups, classes, generator=generator).double()[sens]
    x = (2 * x).round() / 2 if rounded else x
    x = x.float() if single else x
    result = close_decision_gap(x, group_operator(sens, inside, dtype=x.dtype), target)
    decided = result.logits.argmax(1)
    gap = float(np.ptp(rates(decided, sens, inside, classes), axis=0).max())
    smallest = min(int(((sens == g) & inside).sum()) for g in range(groups))
    assert gap <= target + 1 / smallest + 1e-9
    if (groups, classes, rounded) == (2, 2, False):
        assert gap <= max(target, 0.5 / smallest) + 1e-9
    assert result.gap == pytest.approx(gap, abs=1e-9)
    assert torch.equal(result.logits[sens < 0], x[sens < 0])
    again = close_decision_gap(x, group_operator(sens, inside, dtype=x.dtype), target)
    assert torch.equal(again.logits, result.logits)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("target", [0.0, 0.05])
def test_close_decision_gap_moves_no_more_than_the_target_needs(size: float, target: float) -> None:
    sens = (torch.rand(2000) < 0.3).long()
    x = torch.randn(2000, 2, dtype=torch.float64)
    x[:, 1] += sens
    result = close_decision_gap(size * x, group_operator(sens, dtype=x.dtype), target)
    rate = rates(result.logits.argmax(1), sens, sens >= 0, 2)[:, 1]
    one_node = 1 / int(sens.sum())
    # Nothing lies beyond the target but half of a step over it.
    assert target - one_node <= rate[1] - rate[0] <= max(target, one_node / 2) + 1e-9
    assert result.drawn == 0
    # The shift is along the projection's path: opposite, and in proportion to 1/n.
    margin = result.shift[:, 1] - result.shift[:, 0]
    assert float(margin[0] / margin[1]) == pytest.approx(-int(sens.sum()) / int((sens == 0).sum()))


def test_close_decision_gap_keeps_logits_within_the_target() -> None:
    sens, x = torch.arange(100) % 2, torch.randn(100, 2)
    result = close_decision_gap(x, group_operator(sens), target=1.0)
    assert torch.equal(result.logits, x)
    assert not result.shift.any()


@pytest.mark.parametrize("classes", [2, 3])
def test_close_decision_gap_draws_or_keeps_ties(classes: int) -> None:
    """All of a group have the same score, so that only a draw can split them."""
    sens = torch.arange(1000) % 2
    x = torch.zeros(1000, classes)
    x[:, 1] = torch.where(sens == 1, 1.0, -1.0)
    x[::20, 1] = 3.0
    x[::20, 0] = torch.rand(50)
    groups = group_operator(sens)
    drawn = close_decision_gap(x, groups, seed=1)
    assert drawn.gap <= 1 / 500 + 1e-9
    assert drawn.drawn >= 400
    assert not torch.equal(drawn.logits, close_decision_gap(x, groups, seed=2).logits)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        undrawn = close_decision_gap(x, groups, ties="keep")
    assert undrawn.drawn == 0
    assert bool(caught) == (undrawn.gap > 1 / 500 + 1e-9)
    assert caught or classes == 3
    decided = undrawn.logits.argmax(1)
    for group in (0, 1):
        tied = (sens == group) & (x[:, 1] < 3)
        assert decided[tied].unique().numel() == 1
    with pytest.raises(InputError) as error:
        close_decision_gap(x, groups, ties="split")  # type: ignore[arg-type]
    assert error.value.argument == "ties"


def test_close_decision_gap_draws_or_keeps_ties_of_more_groups() -> None:
    sens = torch.arange(900) % 3
    x = torch.zeros(900, 2)
    x[:, 1] = torch.tensor([-1.0, 0.5, 1.0])[sens]
    groups = group_operator(sens)
    whole = close_decision_gap(x, groups)
    assert (whole.drawn, whole.gap) == (0, 0.0)  # the first group changes sides as a whole
    drawn = close_decision_gap(x, groups, 0.6, seed=1)
    assert (drawn.drawn, drawn.gap) == (300, pytest.approx(0.6))
    assert not torch.equal(drawn.logits, close_decision_gap(x, groups, 0.6, seed=2).logits)
    undrawn = close_decision_gap(x, groups, 0.6, ties="keep")
    assert (undrawn.drawn, undrawn.gap) == (0, 0.0)  # as a whole again
    # Half of the first group has its plain decision, which is nearer than everyone at one side.
    x[:, 1] = torch.tensor([1.0, 0.5, -0.5])[sens]
    x[::6, 1] = -1.0
    with pytest.warns(UserWarning, match="tied scores"):
        missed = close_decision_gap(x, groups, 0.1, ties="keep")
    assert (missed.drawn, missed.gap) == (0, 0.5)


def test_close_decision_gap_with_soft_groups() -> None:
    torch.manual_seed(3)
    hard = torch.arange(600) % 2
    x = torch.randn(600, 2) + hard.unsqueeze(1) * torch.tensor([0.0, 1.0])
    shares = 0.1 + 0.8 * torch.nn.functional.one_hot(hard, 2).float()
    shares[0] = 0
    groups = group_operator(shares)
    assert close_decision_gap(x, groups).gap <= 0.01
    assert torch.equal(close_decision_gap(x, groups).logits[0], x[0])


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (2, 4), (3, 4)])
def test_layer_closes_gap_of_decisions(classes: int, groups: int) -> None:
    torch.manual_seed(4)
    sens = torch.randint(-1, groups, (2000,))
    x = torch.randn(2000, classes, dtype=torch.float64)
    x += 0.7 * torch.randn(groups, classes).double()[sens]
    edges = torch.randint(0, 2000, (2, 6000))
    layer = FMP(3, 1.0)
    solution = layer.solve(x, edges, sens, decisions=True)
    assert solution.decisions is not None
    assert solution.decisions.gap <= 1 / int(torch.bincount(sens[sens >= 0]).min()) + 1e-9
    assert torch.equal(layer(x, edges, sens, decisions=True), solution.f)
    # The shift is part of what is applied per node, but for the decisions changed one by one.
    again = layer.frozen(x, edges, sens, solution.group_duals)
    assert (again.argmax(1) == solution.f.argmax(1)).double().mean() > 0.99
    plain = layer.solve(x, edges, sens)
    assert plain.decisions is None
    torch.testing.assert_close(plain.group_duals[:-1], solution.group_duals[:-1])


def brute_force_path(
    margin: np.ndarray, sens: np.ndarray, inside: np.ndarray, target: float
) -> np.ndarray:
    """Decisions at the smallest w of a path along which both groups move, of all that differ.

    Those before it, where that w leaves a larger gap to the other side.
    """
    sizes = [int(((sens == g) & inside).sum()) for g in (0, 1)]
    delta = np.where(sens < 0, 0.0, np.where(sens == 1, 1 / sizes[1], -1 / sizes[0]))
    gap = float((delta * inside)[margin > 0].sum())
    delta = delta * np.sign(gap)
    ways = np.abs(margin[delta != 0] / delta[delta != 0])
    before, left = margin > 0, abs(gap)
    for w in np.sort(np.concatenate([[0.0], ways * (1 + 1e-12)])):
        decided = margin > w * delta
        gap = float((delta * inside)[decided].sum())
        if gap <= target + 1e-9:
            return before if -gap > max(target, left) + 1e-9 else decided
        before, left = decided, gap
    raise AssertionError


@settings(max_examples=60)
@given(extra=st.integers(0, 60), target=st.sampled_from([0.0, 0.05, 0.2]), seed=st.integers(0, 999))
def test_close_decision_gap_of_two_groups_equals_search_over_every_shift(
    extra: int, target: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = 6 + extra
    sens, inside = rng.integers(-1, 2, n), rng.random(n) < 0.7
    sens[:2], inside[:2] = [0, 1], True
    margin = rng.normal(size=n) + sens
    x = torch.from_numpy(np.stack([np.zeros(n), margin], 1))
    groups = group_operator(torch.from_numpy(sens), torch.from_numpy(inside))
    decided = close_decision_gap(x, groups, target).logits.argmax(1).bool().numpy()
    np.testing.assert_array_equal(decided, brute_force_path(margin, sens, inside, target))


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=3, max_size=4),
    target=st.sampled_from([0.0, 0.1, 0.34]),
    rounded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_close_decision_gap_of_more_groups_changes_least(
    sizes: list[int], target: float, rounded: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sens = np.repeat(np.arange(len(sizes)), sizes)
    margin = rng.normal(size=len(sens)) + 2 * rng.normal(size=len(sizes))[sens]
    margin = margin.round() if rounded else margin
    groups = group_operator(torch.from_numpy(sens))
    x = torch.from_numpy(np.stack([np.zeros(len(sens)), margin], 1))
    decided = close_decision_gap(x, groups, target).logits.argmax(1).bool().numpy()
    ours = float(np.abs(margin)[decided != (margin > 0)].sum())

    def cost(group: int, count: int) -> float:
        ordered = np.sort(margin[sens == group])[::-1]
        return float(np.abs(ordered)[(np.arange(len(ordered)) < count) != (ordered > 0)].sum())

    allowed = [
        sum(map(cost, range(len(sizes)), counts))
        for counts in itertools.product(*(range(size + 1) for size in sizes))
        if np.ptp(np.array(counts) / sizes) <= target + 1e-9
    ]
    assert ours <= min(allowed) + 1e-9
    rate = [decided[sens == group].mean() for group in range(len(sizes))]
    assert np.ptp(rate) <= target + 1 / min(sizes) + 1e-9


@pytest.mark.parametrize("rounded", [False, True])
def test_close_decision_gap_is_the_same_over_processes(rounded: bool) -> None:
    """There it bisects instead of sorting."""

    class Spread(GroupOperator):
        is_local = False

    sens = torch.randint(-1, 2, (300,))
    x = torch.randn(300, 2, dtype=torch.float64) + sens.unsqueeze(1) * torch.tensor([0.0, 1.0])
    x = x.round() if rounded else x
    local = group_operator(sens, dtype=x.dtype)
    spread = Spread(None, local.population, local.rows, codes=local.codes)
    result, expected = close_decision_gap(x, spread, 0.01), close_decision_gap(x, local, 0.01)
    assert torch.equal(result.logits.argmax(1), expected.logits.argmax(1))
    assert result.drawn == expected.drawn
    torch.testing.assert_close(result.shift, expected.shift)


@given(
    n=st.integers(4, 60),
    seed=st.integers(0, 10_000),
    target=st.sampled_from([0.0, 0.05, 0.3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    unknown=st.booleans(),
)
def test_close_decision_gap_is_the_same_with_gradients(
    n: int, seed: int, target: float, dtype: torch.dtype, unknown: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sens = torch.randint(0, 2, (n,), generator=generator)
    sens[:4] = torch.tensor([0, 0, 1, 1])
    if unknown:
        sens[4:][torch.rand(n - 4, generator=generator) < 0.3] = -1
    population = torch.rand(n, generator=generator) < 0.7
    population[:4] = True
    logits = torch.randn(n, 2, generator=generator, dtype=dtype)
    logits[:, 1] += sens
    groups = group_operator(sens, population)
    result = close_decision_gap(logits, groups, target)
    x = logits.clone().requires_grad_()
    wanted = close_decision_gap(x, groups, target)
    grad = torch.randn(logits.shape, generator=generator, dtype=dtype)
    wanted.logits.backward(grad)
    assert torch.equal(x.grad, grad)  # the shift is a constant
    assert torch.equal(result.logits.argmax(1), wanted.logits.argmax(1))
    assert torch.allclose(result.logits, wanted.logits.detach())
    assert torch.allclose(result.shift, wanted.shift)
    assert result.gap == pytest.approx(wanted.gap, abs=1e-12)
    assert result.drawn == wanted.drawn


def rate_by_group(decided: np.ndarray, group: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.array(
        [np.average(decided[group == g], weights=weight[group == g]) for g in np.unique(group)]
    )


@settings(max_examples=60)
@given(
    groups=st.integers(2, 4),
    extra=st.integers(0, 60),
    target=st.sampled_from([0.0, 0.05, 0.3]),
    weighted=st.booleans(),
    rounded=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equal_rates_meets_the_target_within_one_node(
    groups: int, extra: int, target: float, weighted: bool, rounded: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    group = np.r_[np.arange(groups), rng.integers(0, groups, groups + extra)]
    margin = rng.normal(size=len(group)) + rng.normal(size=groups)[group]
    margin = margin.round() if rounded else margin
    weight = rng.random(len(group)) + 0.1 if weighted else np.ones(len(group))
    rule = equal_rates(margin, group, target=target, weight=weight)
    shifted, drawn = rule.apply(margin, group, seed=3)
    rates = rate_by_group(shifted > 0, group, weight)
    one_node = max(weight[group == g].max() / weight[group == g].sum() for g in range(groups))
    if not (weighted and drawn):  # the weights of those drawn are known on average only
        assert np.ptp(rates) <= target + one_node + 1e-6
        assert rule.gap == pytest.approx(np.ptp(rates), abs=1e-6)
    assert drawn == ((margin == rule.thresholds[group]) & (rule.tie_rates[group] > 0)).sum()
    assert (np.abs(shifted) >= MIN_MARGIN).all()


@pytest.mark.parametrize("groups", [2, 3])
def test_equal_rates_decides_as_close_decision_gap(groups: int) -> None:
    rng = np.random.default_rng(groups)
    group = rng.integers(-1, groups, 500)
    margin = rng.normal(size=500) + 0.8 * group
    x = torch.from_numpy(np.stack([-margin / 2, margin / 2], 1))
    operator = group_operator(torch.from_numpy(group), dtype=x.dtype)
    for target in (0.0, 0.1):
        shifted, _ = equal_rates(margin, group, target=target).apply(margin, group)
        batch = close_decision_gap(x, operator, target).logits.argmax(1).numpy()
        np.testing.assert_array_equal(shifted > 0, batch == 1)


def test_equal_rates_with_weights_counts_like_repeated_nodes() -> None:
    rng = np.random.default_rng(0)
    group, weight = rng.integers(0, 3, 200), rng.integers(1, 4, 200)
    margin = rng.normal(size=200) + group
    once = equal_rates(margin, group, weight=weight.astype(float), ties="keep")
    often = equal_rates(np.repeat(margin, weight), np.repeat(group, weight), ties="keep")
    np.testing.assert_allclose(once.thresholds, often.thresholds)
    assert once.rate == pytest.approx(often.rate)


def test_equal_rates_leaves_groups_without_weight_alone() -> None:
    margin, group = np.array([1.0, 2.0, -2.0, 1.0, 3.0, -1.0]), np.array([0, 0, 1, 1, 2, 2])
    weight = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    rule = equal_rates(margin, group, weight=weight)
    assert rule.thresholds.tolist() == [1.5, 0.0, 0.0]
    alone = equal_rates(margin, group, weight=weight * (group == 0))
    assert not alone.thresholds.any()


def test_decision_rule_keeps_unknown_groups_and_draws_their_share() -> None:
    rule = DecisionRule(np.array([0.5, 0.0]), np.array([0.25, 0.0]))
    margin, group = np.full(4001, 0.5), np.zeros(4001, dtype=np.int64)
    group[0] = -1
    shifted, drawn = rule.apply(margin, group, seed=1)
    assert shifted[0] == 0.5
    assert drawn == 4000
    assert (shifted[1:] > 0).sum() == 1000
    assert (shifted > 0).sum() == (rule.apply(margin, group, seed=2)[0] > 0).sum()
    assert not np.array_equal(shifted, rule.apply(margin, group, seed=2)[0])


def test_decision_rule_moves_margins_little_and_survives_float32() -> None:
    """Margins next to the threshold, of logits that float32 rounds by 4e-6."""
    rule = DecisionRule(np.array([0.5]), np.array([0.5]))
    margin = 0.5 + np.array([-1e-7, 1e-7, -1e-12, 1e-12, 0.0, 0.0, -1.0, 2.0])
    shifted, drawn = rule.apply(margin, np.zeros(8, dtype=np.int64))
    assert drawn == 2
    assert np.abs(shifted - (margin - 0.5)).max() <= 1.1e-4
    logits = torch.tensor(np.stack([np.full(8, 50.0), 50 + shifted], 1), dtype=torch.float32)
    assert torch.equal(logits[:, 1] > logits[:, 0], torch.from_numpy(shifted > 0))
    assert (shifted > 0).tolist()[:4] == [False, True, False, True]
    assert (shifted > 0).sum() == 4


def test_drawn_nodes_keep_their_probabilities_and_decisions_in_half_precision() -> None:
    sens = torch.arange(1000) % 2
    x = torch.zeros(1000, 2)
    x[:, 1] = torch.where(sens == 1, 1.0, -1.0)
    groups = group_operator(sens)
    result = close_decision_gap(x, groups, seed=1)
    assert result.drawn >= 400
    decided = result.logits.argmax(1)
    assert torch.equal(result.logits.half().argmax(1), decided)
    top = result.logits.topk(2).values
    split = decided != close_decision_gap(x, groups, seed=2).logits.argmax(1)
    assert bool(split.any())
    assert float((top[split, 0] - top[split, 1]).max()) < 1e-5


@pytest.mark.parametrize("groups", [2, 3])
def test_gap_equal_to_the_target_is_within_it(groups: int) -> None:
    """In floating point 8/10 − 7/10 is more than 1/10."""
    for size in range(2, 21):
        sens = torch.arange(size * groups) % groups
        place = torch.arange(size * groups) // groups
        for more, fewer in itertools.combinations(range(size, -1, -1), 2):
            selected = place < torch.tensor([more, *[fewer] * (groups - 1)])[sens]
            x = torch.stack([torch.zeros(len(sens)), selected.float() - 0.5], 1)
            target = (more - fewer) / size
            assert torch.equal(close_decision_gap(x, group_operator(sens), target).logits, x)
            rule = equal_rates((x[:, 1]).double().numpy(), sens.numpy(), target=target)
            assert not rule.thresholds.any()


def test_shift_of_more_classes_nearly_closes_the_gap() -> None:
    """Few nodes are left that have to change one by one."""
    sens = torch.arange(6000) % 3
    x = 3 * torch.randn(6000, 3)
    x[:, 0] += sens
    x[:, 1] -= 2.0 * sens
    groups = group_operator(sens)
    result = close_decision_gap(x, groups)
    shifted = groups.subtract(x.double(), result.shift).argmax(1)
    gaps = np.ptp(rates(shifted, sens, torch.ones(6000, dtype=torch.bool), 3), axis=0)
    assert gaps.max() < 0.005


@pytest.mark.parametrize("groups", [2, 3])
def test_gap_of_many_nodes_is_closed_to_the_last(groups: int) -> None:
    sens = torch.arange(groups * 20_000) % groups
    x = torch.randn(len(sens), 2) + 0.3 * sens.unsqueeze(1) * torch.tensor([0.0, 1.0])
    assert close_decision_gap(x, group_operator(sens)).gap < 1e-9
