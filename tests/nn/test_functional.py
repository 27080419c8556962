"""The settled mathematics: every identity, and what each solver promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch_geometric.nn import APPNP

from fairmp import FMP, PPR
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, group_operator
from fairmp.kernels import softmax
from fairmp.nn.dual import solve_dual
from fairmp.nn.fmp import SOLVERS
from fairmp.nn.solvers import coupling_gradient, papc, paper, projection
from tests.graphs import problems

PROBLEM = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def excess(f: torch.Tensor, sens: torch.Tensor, target: float, temperature: float = 1.0) -> float:
    """By how much two groups are farther apart than the target, computed in numpy."""
    p, codes = (f.double() / temperature).softmax(1).numpy(), sens.numpy()
    means = np.stack([p[codes == group].mean(0) for group in range(codes.max() + 1)])
    return float(np.ptp(means, axis=0).max()) - target


def alone(n: int) -> Adjacency:
    """The graph of nodes without neighbours, whose Ã is the identity."""
    return normalise(torch.empty(2, 0, dtype=torch.int64), n, dtype=torch.float64)


def assert_same_predictions(one: torch.Tensor, other: torch.Tensor, atol: float = 1e-7) -> None:
    """Compare probabilities: large margins may differ without a difference to them."""
    torch.testing.assert_close(one.softmax(1), other.softmax(1), atol=atol, rtol=0)


@given(problem=problems(), k=st.integers(1, 6), lambda_s=st.sampled_from([0.5, 1.0, 3.0, 20.0]))
def test_without_fairness_it_is_appnp(problem: PROBLEM, k: int, lambda_s: float) -> None:
    x, edge_index, sens = problem
    expected = APPNP(k, alpha=1 / (1 + lambda_s))(x, edge_index)
    torch.testing.assert_close(PPR(k, lambda_s)(x, edge_index), expected)
    for solver in ("paper", "papc"):
        layer = FMP(k, lambda_s, lambda_f=0.0, solver=solver)
        torch.testing.assert_close(layer(x, edge_index, sens), expected)
    torch.testing.assert_close(FMP(k, lambda_s, target=1.0)(x, edge_index, sens), expected)


@given(problem=problems(), solver=st.sampled_from(SOLVERS), target=st.sampled_from([0.0, 0.05]))
def test_permuting_nodes_permutes_the_output(problem: PROBLEM, solver: str, target: float) -> None:
    x, edge_index, sens = problem
    order = torch.randperm(x.size(0))
    place = torch.argsort(order)
    layer = FMP(3, 2.0, lambda_f=0.5, solver=solver, target=target)
    moved = layer(x[order], place[edge_index], sens[order])
    assert_same_predictions(moved, layer(x, edge_index, sens)[order])


@given(problem=problems(), solver=st.sampled_from(SOLVERS), target=st.sampled_from([0.0, 0.05]))
def test_the_groups_names_do_not_matter(problem: PROBLEM, solver: str, target: float) -> None:
    x, edge_index, sens = problem
    groups = int(sens.max()) + 1
    renamed = torch.where(sens >= 0, (sens + 1) % groups, sens)
    layer = FMP(3, 2.0, lambda_f=0.5, solver=solver, target=target)
    assert_same_predictions(layer(x, edge_index, sens), layer(x, edge_index, renamed))


@given(problem=problems(), solver=st.sampled_from(SOLVERS))
def test_a_node_of_unknown_group_is_never_shifted(problem: PROBLEM, solver: str) -> None:
    x, edge_index, sens = problem
    alone = FMP(1, 1.0, lambda_f=0.5, solver=solver)
    unknown = sens < 0
    # One step, so that nothing a neighbour was shifted by comes back.
    plain = PPR(1, 1.0)(x, edge_index)
    assert torch.equal(alone(x, edge_index, sens)[unknown], plain[unknown])


@given(problem=problems(), solver=st.sampled_from(SOLVERS))
def test_inputs_are_not_changed(problem: PROBLEM, solver: str) -> None:
    before = [tensor.clone() for tensor in problem]
    x, edge_index, sens = problem
    FMP(2, 2.0, solver=solver)(x, edge_index, sens)
    assert all(torch.equal(a, b) for a, b in zip(problem, before, strict=True))


@given(problem=problems(groups=2))
def test_one_row_or_two_rows_agree(problem: PROBLEM) -> None:
    x, _, sens = problem
    ring = torch.stack([torch.arange(len(x)), torch.arange(len(x)).roll(-1)])
    graph = normalise(ring, len(x), dtype=torch.float64)
    one = group_operator(sens, dtype=x.dtype)
    shares = one.rows[0].abs().diag()  # 1/n for each group
    rows = shares - 1 / shares.diag().reciprocal().sum()
    two = GroupOperator(None, one.population, rows, codes=one.codes, blocks=(2,), dtype=x.dtype)
    for target in (0.0, 0.05):
        first = projection(x, graph, one, K=3, lambda_s=2.0, target=target)
        second = projection(x, graph, two, K=3, lambda_s=2.0, target=target)
        # Two methods, each converged to a residual of 1e-6 or less.
        assert_same_predictions(first.f, second.f, atol=1e-5)
        # One multiplier per group, which sum to 0.
        assert second.duals.sum(1).abs().max() <= 1e-6 * (1 + second.duals.abs().max())
    # Unclipped, the right step size makes up for the different rows.
    first = papc(x, graph, one, K=3, lambda_s=2.0, lambda_f=1e9).f
    second = papc(x, graph, two, K=3, lambda_s=2.0, lambda_f=1e9).f
    torch.testing.assert_close(first, second)


@given(problem=problems(), seed=st.integers(0, 99))
def test_coupling_gradient_is_autograd_s(problem: PROBLEM, seed: int) -> None:
    x, _, _ = problem
    u = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    f = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((u * f.softmax(1)).sum(), f)
    torch.testing.assert_close(coupling_gradient(x, u), expected)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("classes", "groups", "target", "temperature"),
    [
        (2, 2, 0.0, 1.0),
        (2, 2, 0.03, 0.5),
        (3, 2, 0.0, 1.0),
        (3, 3, 0.0, 0.7),
        (4, 3, 0.05, 1.0),
        (3, 4, 0.1, 1.0),
        (2, 4, 0.02, 1.0),
    ],
)
def test_gradients(
    solver: str, classes: int, groups: int, target: float, temperature: float
) -> None:
    torch.manual_seed(7)
    n = 12
    x = torch.randn(n, classes, dtype=torch.float64, requires_grad=True)
    half = torch.randint(0, n, (2, 20))
    edge_index = torch.cat([half, half.flip(0)], 1)
    sens = torch.arange(n) % groups
    sens[-1] = -1
    population = torch.arange(n) < n - 2
    layer = FMP(3, 2.0, 0.3, solver, target, temperature if solver == "projection" else 1.0)
    assert torch.autograd.gradcheck(lambda x: layer(x, edge_index, sens, population), (x,))


def test_the_printed_steps() -> None:
    """The five steps written out with dense matrices, against the layer."""
    torch.manual_seed(0)
    n, gamma, lambda_f = 30, 0.25, 5.0
    x = torch.randn(n, 3, dtype=torch.float64)
    half = torch.randint(0, n, (2, 60))
    edge_index = torch.cat([half, half.flip(0)], 1)
    sens = torch.arange(n) % 2
    smooth = PPR(1, 1.0)
    a = lambda f: 2 * smooth(f, edge_index) - f  # noqa: E731  F ↦ ÃF, from one half-step
    row = torch.where(sens == 1, 1 / 15, -1 / 15).double().unsqueeze(0)
    for solver, beta, bound in (
        ("paper", 1 / (2 * gamma), lambda_f),
        ("papc", 4 / (gamma * (2 / 15)), lambda_f / (2 / 15)),
    ):
        f, u = x, torch.zeros(1, 3, dtype=torch.float64)
        for _ in range(4):
            agg = gamma * x + (1 - gamma) * a(f)
            p = f.softmax(1)
            pull = lambda u, p=p: p * (row.T @ u - ((row.T @ u) * p).sum(1, keepdim=True))  # noqa: E731
            f_bar = agg - gamma * pull(u)
            u = (u + beta * row @ f_bar.softmax(1)).clamp(-bound, bound)
            f = agg - gamma * pull(u)
        layer = FMP(4, 3.0, lambda_f, solver)
        torch.testing.assert_close(layer(x, edge_index, sens), f)


def test_paper_hardly_moves_and_the_trace_shows_it() -> None:
    torch.manual_seed(0)
    n = 2000
    sens = torch.arange(n) % 2
    x = torch.randn(n, 2, dtype=torch.float64)
    x[:, 1] += sens
    edge_index = torch.arange(n).repeat(2, 1)
    gaps = {}
    for solver in SOLVERS:
        steps = FMP(5, 3.0, 30.0, solver).solve(x, edge_index, sens, trace=True).steps
        assert len(steps) == 5
        for step in steps:
            total = step.smoothness + step.fidelity + step.fairness
            assert step.objective == pytest.approx(total)
        gaps[solver] = float(steps[-1].gap.abs().max())
        if solver == "paper":
            dual = float(steps[-1].dual.abs().max())
    start = float(group_operator(sens, dtype=x.dtype).gap(x.softmax(1)).abs().max())
    assert abs(gaps["paper"] - start) < 0.01 * start
    assert dual < 30.0  # the bound λ_f is never reached: it is the step that is small
    assert gaps["papc"] < 0.5 * start
    assert gaps["projection"] < 1e-9


@settings(max_examples=150)
@given(
    groups=st.integers(2, 5),
    classes=st.integers(2, 5),
    extra=st.integers(0, 30),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0, 50.0]),
    saturated=st.booleans(),
    lonely=st.booleans(),
    target=st.sampled_from([0.0, 1e-3, 0.02, 0.1, 0.5]),
    temperature=st.sampled_from([1.0, 0.1]),
    single=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_projection_holds_the_target(
    groups: int,
    classes: int,
    extra: int,
    scale: float,
    saturated: bool,
    lonely: bool,
    target: float,
    temperature: float,
    single: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = groups + extra
    x = scale * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    if saturated:
        x = 50 * x.sign()
    sens = torch.randint(0, 1 if lonely else groups, (n,), generator=generator)
    sens[:groups] = torch.arange(groups)  # with ``lonely`` all groups but one have one node
    x = x.float() if single else x
    layer = FMP(1, 0.0, target=target, temperature=temperature)
    solution = layer.solve(x, torch.empty(2, 0, dtype=torch.long), sens)
    assert torch.isfinite(solution.f).all()
    assert excess(solution.f, sens, target, temperature) <= 1e-4
    assert solution.residual is not None
    assert solution.residual <= 1e-4
    assert solution.iterations is not None
    assert solution.iterations >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [50.0, 1e4, 1e30])
@pytest.mark.parametrize("classes", [2, 3])
def test_projection_of_opposite_certainties(value: float, classes: int, dtype: torch.dtype) -> None:
    """Two nodes, two groups, each as sure as can be of something else."""
    x = torch.full((2, classes), -value, dtype=dtype)
    x[0, 0] = x[1, 1] = value
    sens = torch.tensor([0, 1])
    for target in (0.0, 0.25):
        f = FMP(1, 0.0, target=target)(x, torch.empty(2, 0, dtype=torch.long), sens)
        assert excess(f, sens, target) <= 1e-4


@settings(max_examples=25)
@given(problem=problems(), target=st.sampled_from([0.0, 0.01, 0.1]))
def test_projection_is_the_closest_in_divergence(problem: PROBLEM, target: float) -> None:
    """Brute force: a general solver on the primal problem finds no closer predictions."""
    x, _, sens = problem
    x = x.clamp(-6, 6)  # a general solver wants probabilities it can tell from 0
    delta = group_operator(sens, dtype=x.dtype)
    f = projection(x, alone(len(x)), delta, K=1, lambda_s=0.0, target=target).f
    inside = (sens >= 0).numpy()
    p, q = x.softmax(1).numpy()[inside], f.softmax(1).numpy()[inside]
    groups = int(sens.max()) + 1
    means = np.stack([(sens == g).numpy()[inside] / int((sens == g).sum()) for g in range(groups)])
    rows = np.stack([means[g] - means[h] for g in range(groups) for h in range(g)])
    kl = lambda q: float((q * (np.log(np.maximum(q, 1e-300)) - np.log(p))).sum())  # noqa: E731
    shape = p.shape
    found = minimize(
        lambda v: kl(v.reshape(shape)),
        np.full(p.size, 1 / shape[1]),
        jac=lambda v: (np.log(np.maximum(v.reshape(shape), 1e-300) / p) + 1).ravel(),
        bounds=[(1e-12, 1.0)] * p.size,
        constraints=[
            {"type": "eq", "fun": lambda v: v.reshape(shape).sum(1) - 1},
            {"type": "ineq", "fun": lambda v: (target + 1e-9 - rows @ v.reshape(shape)).ravel()},
            {"type": "ineq", "fun": lambda v: (target + 1e-9 + rows @ v.reshape(shape)).ravel()},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assume(found.success)
    assert kl(q) <= found.fun + 1e-5 * (1 + abs(found.fun))


def test_an_open_target_changes_nothing() -> None:
    x, sens = torch.randn(50, 3), torch.arange(50) % 3
    solution = FMP(1, 0.0, target=1.0).solve(x, torch.empty(2, 0, dtype=torch.long), sens)
    assert torch.equal(solution.f, x)
    assert torch.equal(solution.dual, torch.zeros(3, 3))


def test_more_is_asked_more_is_shifted() -> None:
    torch.manual_seed(3)
    sens = torch.arange(400) % 2
    x = torch.randn(400, 2) + sens.unsqueeze(1) * torch.tensor([0.0, 2.0])
    none = torch.empty(2, 0, dtype=torch.long)
    moved = [
        float((FMP(1, 0.0, target=t)(x, none, sens) - x).abs().mean())
        for t in (0.0, 0.05, 0.1, 0.2, 0.4)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0.1


def test_small_temperature_speaks_of_decisions() -> None:
    torch.manual_seed(4)
    sens = (torch.arange(4000) % 4 == 0).long()
    x = torch.randn(4000, 2) * (1 + 2 * sens.unsqueeze(1)) + sens.unsqueeze(1) * torch.tensor(
        [0.0, 1.5]
    )
    none = torch.empty(2, 0, dtype=torch.long)
    gaps = []
    for temperature in (1.0, 0.05):
        decided = FMP(1, 0.0, temperature=temperature)(x, none, sens).argmax(1).double()
        gaps.append(abs(float(decided[sens == 1].mean() - decided[sens == 0].mean())))
    assert gaps[1] < 0.01 < gaps[0]


def test_the_correction_reaches_beyond_the_population() -> None:
    torch.manual_seed(5)
    n = 600
    sens = torch.arange(n) % 2
    x = torch.randn(n, 2) + sens.unsqueeze(1) * torch.tensor([0.0, 1.0])
    inside = torch.arange(n) < 300
    f = FMP(1, 0.0)(x, torch.empty(2, 0, dtype=torch.long), sens, inside)
    shift = (f - x)[:, 1] - (f - x)[:, 0]
    for group in (0, 1):
        spread = shift[sens == group]
        torch.testing.assert_close(spread, spread[:1].expand_as(spread), atol=1e-5, rtol=0)
    gap = group_operator(sens, inside).gap(softmax(f)).abs().max()
    assert float(gap) < 1e-6


def test_probabilities_of_groups_take_part() -> None:
    torch.manual_seed(6)
    n = 500
    hard = torch.arange(n) % 3
    x = torch.randn(n, 3, dtype=torch.float64) + hard.unsqueeze(1)
    s = 0.2 / 3 + 0.8 * torch.nn.functional.one_hot(hard, 3).double()
    f = FMP(1, 0.0)(x, torch.empty(2, 0, dtype=torch.long), s)
    means = (s / s.sum(0)).T @ f.softmax(1)
    torch.testing.assert_close(means, means[:1].expand_as(means), atol=1e-9, rtol=0)


def test_the_dual_is_the_one_returned() -> None:
    torch.manual_seed(8)
    n = 300
    sens = torch.arange(n) % 2
    x = torch.randn(n, 2, dtype=torch.float64) + sens.unsqueeze(1)
    x[:, 1] += sens
    delta = group_operator(sens, dtype=x.dtype)
    solution = projection(x, alone(len(x)), delta, K=1, lambda_s=0.0)
    torch.testing.assert_close(x - delta.matrix.T @ solution.dual, solution.f)
    torch.testing.assert_close(solution.dual.sum(1), torch.zeros(1, dtype=x.dtype))
    again, statistics = solve_dual(x, delta, 0.0, 1.0, start=solution.dual)
    torch.testing.assert_close(again, solution.dual, atol=1e-9, rtol=0)
    assert int(statistics[1]) == 1  # a warm start at the solution takes one pass


def test_one_strength_means_the_same_at_every_size() -> None:
    """papc's result for a node does not change when the whole population is doubled."""
    torch.manual_seed(9)
    sens = torch.arange(40) % 2
    x = torch.randn(40, 2, dtype=torch.float64) + sens.unsqueeze(1) * torch.tensor([0.0, 2.0])
    for run, same in ((papc, True), (paper, False)):
        outputs = []
        for copies in (1, 10):
            delta = group_operator(sens.repeat(copies), dtype=x.dtype)
            graph = alone(len(x) * copies)
            f = run(x.repeat(copies, 1), graph, delta, K=5, lambda_s=1.0, lambda_f=0.4).f
            outputs.append(f[:40])
        close = torch.allclose(outputs[0], outputs[1], atol=1e-9)
        assert close is same


def test_softmax_is_torch_s() -> None:
    for classes in (2, 3, 16, 17):
        f = torch.randn(9, classes, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(softmax(f), f.softmax(1))
        assert torch.autograd.gradcheck(softmax, (f,))
    assert math.isclose(float(softmax(torch.tensor([[1e30, -1e30]]))[0, 0]), 1.0)
