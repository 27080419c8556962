"""The steps of ``paper`` and ``papc`` against the same steps with dense matrices and autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairmp.groups import GroupOperator, group_operator, stack
from fairmp.kernels import use
from fairmp.nn.solvers import Solution, papc, paper

Solver = Callable[..., Solution]
PAPER_AND_PAPC = pytest.mark.parametrize("solver", [paper, papc])


class Ring:
    """A graph of one direction, Ã = (3·identity + shift)/4."""

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        there = (3 * f + f.roll(-1 if transposed else 1, 0)) / 4
        return there if x is None else gamma * x + (1 - gamma) * there


def problem(
    n: int, classes: int, groups: int, *, stacked: bool = False, seed: int = 0, scale: float = 1.0
) -> tuple[Tensor, GroupOperator]:
    """Logits, and groups of which some are unknown and a part is the population."""
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, classes, dtype=torch.float64, generator=generator)
    deltas = []
    for count in (groups, 2)[: 1 + stacked]:
        sens = torch.randint(-1, count, (n,), generator=generator)
        sens[:count] = torch.arange(count)
        population = torch.rand(n, generator=generator) < 0.6
        population[:count] = True
        deltas.append(group_operator(sens, population, dtype=torch.float64))
    return x, stack(*deltas)


def dense(
    solver: Solver, x: Tensor, delta: GroupOperator, K: int, lambda_s: float, lambda_f: float
) -> tuple[Tensor, Tensor]:
    """The five printed steps."""
    gamma, measured = 1 / (1 + lambda_s), delta.matrix
    beta, bound = 1 / (2 * gamma), lambda_f
    if solver is papc:
        norm = float(torch.linalg.matrix_norm(measured @ measured.T, ord=2))
        beta, bound = 4 / (gamma * norm), lambda_f / norm
    a = Ring().aggregate(torch.eye(len(x), dtype=torch.float64), None, 0.0)
    reach = delta.rows @ delta.membership.double().T
    f, u, duals = x, x.new_zeros(len(delta.rows), x.size(1)), []

    def pull(u: Tensor, p: Tensor) -> Tensor:
        there = reach.T @ u
        return p * (there - (there * p).sum(1, keepdim=True))

    for _ in range(K):
        agg = gamma * x + (1 - gamma) * a @ f
        p = f.softmax(1)
        u = (u + beta * measured @ (agg - gamma * pull(u, p)).softmax(1)).clamp(-bound, bound)
        f = agg - gamma * pull(u, p)
        duals.append(u)
    return f, torch.stack(duals)


@PAPER_AND_PAPC
@settings(max_examples=25)
@given(
    classes=st.integers(2, 4),
    groups=st.integers(2, 4),
    stacked=st.booleans(),
    k=st.integers(1, 4),
    lambda_s=st.sampled_from([0.0, 0.5, 3.0]),
    lambda_f=st.sampled_from([0.0, 0.05, 1.0, 100.0]),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    kernels=st.sampled_from(["reference", "fastest"]),
    seed=st.integers(0, 2**20),
)
def test_equals_dense_matrices_and_autograd(
    solver: Solver,
    classes: int,
    groups: int,
    stacked: bool,
    k: int,
    lambda_s: float,
    lambda_f: float,
    scale: float,
    kernels: str,
    seed: int,
) -> None:
    x, delta = problem(15, classes, groups, stacked=stacked, seed=seed, scale=scale)
    generator = torch.Generator().manual_seed(seed)
    found: list[list[Tensor]] = []
    for by_hand in (False, True):
        x = x.detach().requires_grad_()
        if by_hand:
            f, duals = dense(solver, x, delta, k, lambda_s, lambda_f)
        else:
            with use(kernels):
                solution = solver(x, Ring(), delta, K=k, lambda_s=lambda_s, lambda_f=lambda_f)
            f, duals = solution.f, solution.duals
            weights = [torch.randn(t.shape, generator=generator).double() for t in (f, duals)]
        with use(kernels):
            (grad,) = torch.autograd.grad((f * weights[0]).sum() + (duals * weights[1]).sum(), x)
        found.append([f, duals, grad])
    for ours, theirs in zip(*found, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11 * (1 + scale))


@pytest.mark.parametrize("kernels", ["reference", "fastest"])
@pytest.mark.parametrize(
    ("solver", "classes", "groups", "stacked", "lambda_s", "lambda_f"),
    [
        (papc, 2, 2, False, 2.0, 0.3),
        (papc, 3, 3, False, 2.0, 100.0),
        (papc, 2, 2, True, 0.0, 0.3),
        (paper, 3, 2, True, 2.0, 100.0),
    ],
)
def test_gradients_of_logits_and_duals(
    kernels: str,
    solver: Solver,
    classes: int,
    groups: int,
    stacked: bool,
    lambda_s: float,
    lambda_f: float,
) -> None:
    x, delta = problem(6, classes, groups, stacked=stacked)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        solution = solver(x, Ring(), delta, K=3, lambda_s=lambda_s, lambda_f=lambda_f)
        return solution.f, solution.duals

    with use(kernels):
        assert torch.autograd.gradcheck(run, (x.requires_grad_(),))
        # Of the duals alone, and of one of them.
        assert torch.autograd.gradcheck(lambda x: run(x)[1][1], (x,))


def test_stacked_incidences_measure_and_reach_different_cells() -> None:
    _, delta = problem(15, 2, 3, stacked=True)
    assert delta.codes is not None
    assert delta.population_codes is not None
    both = (delta.codes >= 0) & (delta.population_codes >= 0)
    assert (delta.codes != delta.population_codes)[both].any()


@PAPER_AND_PAPC
@pytest.mark.parametrize("classes", [2, 3])
def test_single_precision_is_near_double(solver: Solver, classes: int) -> None:
    x, delta = problem(2000, classes, 2, scale=3.0)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for logits in (x.float().requires_grad_(), x.requires_grad_()):
        solution = solver(logits, Ring(), delta, K=5, lambda_s=3.0, lambda_f=2.0)
        assert solution.f.dtype == solution.duals.dtype == logits.dtype
        (grad,) = torch.autograd.grad((solution.f * weights).sum(), logits)
        found.append((solution.f, solution.duals, grad))
    for ours, theirs in zip(*found, strict=True):
        error = float((ours - theirs).detach().abs().max())
        assert error < 1e-5 * float(theirs.detach().abs().max())


@PAPER_AND_PAPC
def test_one_hot_shares_are_groups(solver: Solver) -> None:
    """Nodes shared between groups are walked through by autograd; here each share is whole."""
    x, codes = problem(20, 3, 3)
    shares = GroupOperator(codes.membership, codes.population, codes.rows)
    options = {"K": 3, "lambda_s": 2.0, "lambda_f": 0.5}
    results = []
    for delta in (codes, shares):
        logits = x.clone().requires_grad_()
        solution = solver(logits, Ring(), delta, **options, trace=True)
        (solution.f.square().sum() + solution.duals.sum()).backward()
        results.append((solution.f, solution.duals, logits.grad, *_figures(solution)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def _figures(solution: Solution) -> tuple[Tensor, ...]:
    steps = solution.steps
    assert len(steps) == 3
    return (
        torch.tensor([step.objective for step in steps]),
        torch.stack([step.gap for step in steps]),
        torch.stack([step.dual for step in steps]),
    )


def test_a_trace_shows_the_steps_and_changes_nothing() -> None:
    x, delta = problem(20, 2, 2)
    x.requires_grad_()
    options = {"lambda_s": 2.0, "lambda_f": 0.5}
    traced = papc(x, Ring(), delta, K=3, **options, trace=True)
    assert torch.equal(papc(x, Ring(), delta, K=3, **options).f, traced.f)
    with torch.no_grad():
        assert torch.equal(papc(x, Ring(), delta, K=3, **options).f, traced.f)
    for k, step in enumerate(traced.steps):
        after = papc(x, Ring(), delta, K=k + 1, **options)
        assert torch.equal(step.dual, after.dual)
        torch.testing.assert_close(step.gap, delta.gap(after.f.softmax(1)).detach())
    (traced.f.sum() + traced.dual.sum()).backward()
    assert x.grad is not None


def test_what_gradients_need_is_given_back_after_use() -> None:
    x, delta = problem(20, 2, 2)
    f = papc(x.requires_grad_(), Ring(), delta, K=2, lambda_s=1.0, lambda_f=1.0).f
    f.sum().backward(retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    f.sum().backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        f.sum().backward()
