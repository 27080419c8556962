"""The dual of one step: the target is held, by the closest predictions, at any size of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from fairmp import FMP
from fairmp.groups import GroupOperator, group_operator
from fairmp.nn import dual as dual_module
from fairmp.nn.dual import BinaryDual, NewtonDual, clip_bounds, shift_groups, solve_dual, tolerance
from fairmp.nn.solvers import FrozenDuals, frozen_states, papc, projection, propagate
from tests.fuzz.promise import excess, gradient_is_finite
from tests.graphs import problems
from tests.nn.problems import largest_gap, no_edges, random_problem, ring, soften

PROBLEM = tuple[Tensor, Tensor, Tensor]
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


class TestTheTarget:
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
    def test_two_groups_are_no_farther_apart_than_the_target(
        self,
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
        x = 50 * x.sign() if saturated else x
        x = x.float() if single else x
        sens = torch.randint(0, 1 if lonely else groups, (n,), generator=generator)
        sens[:groups] = torch.arange(groups)  # with ``lonely`` all groups but one have one node
        solution = FMP(1, 0.0, target=target, temperature=temperature).solve(x, NO_EDGES, sens)
        assert torch.isfinite(solution.f).all()
        assert largest_gap(solution.f, sens, temperature) <= target + 1e-4
        assert solution.residual is not None
        assert solution.residual <= 1e-4

    def test_target_holds_for_random_problems(self) -> None:
        for seed in range(10_000, 10_040):
            over, kind, warned = excess(seed)
            assert over <= 1e-4, (seed, kind)
            assert not warned

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("value", [50.0, 1e4, 1e30])
    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("soft", [False, True])
    def test_target_holds_for_opposite_certain_nodes(
        self, value: float, classes: int, dtype: torch.dtype, soft: bool
    ) -> None:
        """Two nodes of two groups, each as sure as can be of something else."""
        x = torch.full((2, classes), -value, dtype=dtype)
        x[0, 0] = x[1, 1] = value
        codes = torch.tensor([0, 1])
        sens = soften(codes, 2) if soft else codes
        for target in (0.0, 0.25):
            for softmax_only in (False, True):
                f = FMP(1, 0.0, target=target)(x, NO_EDGES, sens, softmax_only=softmax_only)
                assert largest_gap(f, sens) <= target + 1e-4

    @pytest.mark.parametrize("seed", range(3))
    def test_target_holds_for_float32_logits_and_float64_groups(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = 10 * torch.randn(60, 3, generator=generator)
        edges = torch.randint(60, (2, 90), generator=generator)
        sens = (4 * torch.rand(60, 4, generator=generator, dtype=torch.float64)).softmax(1)
        f = FMP(target=0.0)(x, torch.cat([edges, edges.flip(0)], 1), sens)
        assert largest_gap(f, sens) <= 1e-4

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(("classes", "groups"), [(2, 3), (3, 2), (3, 3)])
    def test_parity_of_logits_thousands_of_temperatures_apart(
        self, classes: int, groups: int, seed: int
    ) -> None:
        torch.manual_seed(seed)
        sens = torch.randint(0, groups, (400,))
        x = 60 * torch.randn(400, classes, dtype=torch.float64) * torch.rand(400, 1).double()
        x[:, 0] += sens
        options: dict[str, Any] = {"K": 1, "lambda_s": 1.0, "temperature": 0.001}
        solution = projection(x, ring(400, x.dtype), group_operator(sens), **options)
        assert solution.residual is not None
        assert solution.residual <= 1e-4


class TestTheClosest:
    @settings(max_examples=25)
    @given(problem=problems(), target=st.sampled_from([0.0, 0.01, 0.1]))
    def test_a_general_solver_finds_no_closer_predictions(
        self, problem: PROBLEM, target: float
    ) -> None:
        x, _, sens = problem
        x = x.clamp(-6, 6)  # a general solver wants probabilities it can tell from 0
        delta = group_operator(sens, dtype=x.dtype)
        f = shift_groups(x, solve_dual(x, delta, target, 1.0))
        inside = (sens >= 0).numpy()
        p, q = x.softmax(1).numpy()[inside], f.softmax(1).numpy()[inside]
        groups, shape = int(sens.max()) + 1, p.shape
        members = [(sens == g).numpy()[inside] for g in range(groups)]
        means = np.stack([member / member.sum() for member in members])
        rows = np.stack([means[g] - means[h] for g in range(groups) for h in range(g)])

        def divergence(q: np.ndarray) -> float:
            return float((q * (np.log(np.maximum(q, 1e-300)) - np.log(p))).sum())

        def gaps(v: np.ndarray) -> np.ndarray:
            return rows @ v.reshape(shape)

        minimum = minimize(
            lambda v: divergence(v.reshape(shape)),
            np.full(p.size, 1 / shape[1]),
            jac=lambda v: (np.log(np.maximum(v.reshape(shape), 1e-300) / p) + 1).ravel(),
            bounds=[(1e-12, 1.0)] * p.size,
            constraints=[
                {"type": "eq", "fun": lambda v: v.reshape(shape).sum(1) - 1},
                {"type": "ineq", "fun": lambda v: (target + 1e-9 - gaps(v)).ravel()},
                {"type": "ineq", "fun": lambda v: (target + 1e-9 + gaps(v)).ravel()},
            ],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )
        assume(minimum.success)
        assert divergence(q) <= minimum.fun + 1e-5 * (1 + abs(minimum.fun))

    @given(problem=problems(groups=2))
    def test_one_row_and_a_block_of_two_agree(self, problem: PROBLEM) -> None:
        """Two groups as one gap, and as two rows that are compared with each other."""
        x, _, sens = problem
        graph, one = ring(len(x), torch.float64), group_operator(sens, dtype=x.dtype)
        shares = one.rows[0].abs().diag()  # 1/n for each group
        rows = shares - 1 / shares.diag().reciprocal().sum()
        two = GroupOperator(None, one.population, rows, codes=one.codes, blocks=(2,), dtype=x.dtype)
        for target in (0.0, 0.05):
            first = projection(x, graph, one, K=3, lambda_s=2.0, target=target)
            second = projection(x, graph, two, K=3, lambda_s=2.0, target=target)
            # Two methods, each converged to a residual of 1e-6 or less.
            torch.testing.assert_close(first.f.softmax(1), second.f.softmax(1), atol=1e-5, rtol=0)
            # One multiplier per group, which sum to 0.
            assert second.duals.sum(1).abs().max() <= 1e-6 * (1 + second.duals.abs().max())
        # Unclipped, the right step size makes up for the different rows.
        options = {"K": 3, "lambda_s": 2.0, "lambda_f": 1e9}
        torch.testing.assert_close(
            papc(x, graph, one, **options).f, papc(x, graph, two, **options).f
        )

    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_hard_groups_equal_certain_probabilities(self, classes: int, groups: int) -> None:
        problem = random_problem(60, classes, groups)
        hard = problem.groups
        soft = GroupOperator(hard.membership, hard.population, hard.rows, blocks=hard.blocks)
        for target in (0.0, 0.05):
            duals = [solve_dual(problem.x, delta, target, 0.5) for delta in (hard, soft)]
            torch.testing.assert_close(duals[0].u, duals[1].u, rtol=1e-6, atol=1e-7)
            moved = [shift_groups(problem.x, dual) for dual in duals]
            torch.testing.assert_close(*moved, rtol=1e-6, atol=1e-6)


class TestSolveDual:
    @pytest.mark.parametrize(("classes", "groups", "kind"), [
        (2, 2, BinaryDual), (2, 3, NewtonDual), (3, 2, NewtonDual),
    ])  # fmt: skip
    @pytest.mark.parametrize("temperature", [1.0, 0.3])
    def test_a_start_at_the_solution_takes_one_pass(
        self, classes: int, groups: int, kind: type, temperature: float
    ) -> None:
        problem = random_problem(200, classes, groups)
        first = solve_dual(problem.x, problem.groups, 0.01, temperature)
        assert isinstance(first, kind)
        assert first.passes > 1
        again = solve_dual(problem.x, problem.groups, 0.01, temperature, first)
        assert again.passes <= 2  # rows of the dual are centred, which rounds
        torch.testing.assert_close(again.u, first.u, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_a_start_at_another_temperature_is_the_same_shift(
        self, classes: int, groups: int
    ) -> None:
        problem = random_problem(200, classes, groups)
        first = solve_dual(problem.x, problem.groups, 0.01, 1.0)
        cold = solve_dual(problem.x, problem.groups, 0.01, 0.9)
        warm = solve_dual(problem.x, problem.groups, 0.01, 0.9, first)
        assert warm.passes < cold.passes
        torch.testing.assert_close(warm.u, cold.u, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_the_residual_is_within_the_tolerance(self, classes: int, groups: int) -> None:
        problem = random_problem(200, classes, groups)
        assert tolerance(torch.float64) == 1e-12
        assert tolerance(torch.float32) == 1e-7  # a gap of float32 logits has no more digits
        assert solve_dual(problem.x, problem.groups, 0.0, 1.0).residual <= 1e-12
        loose = solve_dual(problem.x, problem.groups, 0.0, 1.0, tol=1e-3)
        assert 1e-12 < loose.residual <= 1e-3

    def test_margins_have_the_dual_of_their_logits(self) -> None:
        problem = random_problem(200)
        margins = problem.x[:, 1:] - problem.x[:, :1]
        one, two = (solve_dual(z, problem.groups, 0.01, 0.7) for z in (margins, problem.x))
        torch.testing.assert_close(one.u, two.u)
        moved, pairs = shift_groups(margins, one), shift_groups(problem.x, two)
        torch.testing.assert_close(moved, pairs[:, 1:] - pairs[:, :1])

    def test_logits_are_not_modified(self) -> None:
        problem = random_problem(50, 3, 3)
        x = problem.x.clone().requires_grad_()
        shift_groups(x, solve_dual(x, problem.groups, 0.0, 1.0))
        assert torch.equal(x, problem.x)


class TestLargeLogits:
    def test_clip_bounds_follow_precision_and_temperature(self) -> None:
        """Beyond the limit, a shift as large as the logits would change the gap by over 1e-4."""
        for temperature in (1.0, 0.1):
            limit, floor = clip_bounds(torch.float32, temperature)
            assert floor == 1e6 * temperature
            assert 1e-4 <= torch.finfo(torch.float32).eps * limit / temperature <= 4e-4
            # float64 has digits left where margins are clipped.
            assert clip_bounds(torch.float64, temperature) == (floor / 2, floor)

    @pytest.mark.parametrize("temperature", [1.0, 0.01, 0.001, 0.0003])
    @pytest.mark.parametrize("classes", [2, 3])
    def test_rows_thousands_of_temperatures_apart_keep_their_softmax(
        self, temperature: float, classes: int
    ) -> None:
        """In float32 such logits are all but certain, and stay what they are."""
        sens = torch.randint(-1, 2, (300,), generator=torch.Generator().manual_seed(12))
        x, graph, delta = 3 * torch.randn(300, classes), ring(300), group_operator(sens)
        steps: dict[str, Any] = {"K": 2, "lambda_s": 1.0}
        for target in (0.0, 1.0):
            solution = projection(x, graph, delta, target=target, temperature=temperature, **steps)
            gap = delta.gap((solution.f / temperature).softmax(1)).abs().max()
            assert float(gap) <= target + 1e-4
            duals = FrozenDuals(delta.membership, solution.group_duals)
            again = frozen_states(x, graph, duals, lambda_s=1.0)[-1]
            torch.testing.assert_close(again.softmax(1), solution.f.softmax(1), atol=1e-5, rtol=0)
            if target:
                plain = propagate(x, graph, **steps)
                torch.testing.assert_close(solution.f.softmax(1), plain.softmax(1))

    def test_gradients_of_rows_far_apart_are_those_of_double_precision(self) -> None:
        sens = torch.randint(-1, 2, (400,), generator=torch.Generator().manual_seed(13))
        x, weight = 3 * torch.randn(400, 2), torch.randn(400, 2)
        gradients = []
        for dtype in (torch.float32, torch.float64):
            leaf = x.to(dtype, copy=True).requires_grad_()
            groups = group_operator(sens, dtype=dtype)
            options: dict[str, Any] = {"K": 2, "lambda_s": 1.0, "temperature": 0.0005}
            f = projection(leaf, ring(400, dtype), groups, **options).f
            (grad,) = torch.autograd.grad((f.softmax(1) * weight).sum(), leaf)
            gradients.append(grad.double())
        assert float(x.abs().max()) > clip_bounds(torch.float32, 0.0005).limit
        torch.testing.assert_close(*gradients, atol=2e-3, rtol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("soft", [False, True])
    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_gradients_are_finite(
        self, classes: int, groups: int, soft: bool, dtype: torch.dtype
    ) -> None:
        for seed in range(4):
            torch.manual_seed(seed)
            x = (1000 * torch.randn(60, classes)).to(dtype).requires_grad_()
            codes = torch.arange(60) % groups
            sens = soften(codes, groups) if soft else codes
            edges = torch.randint(0, 60, (2, 120))
            f = FMP(2, 1.0, target=0.02, temperature=0.1)(x, edges, sens)
            (grad,) = torch.autograd.grad(f.log_softmax(1).square().sum(), x)
            assert grad.isfinite().all()

    def test_gradients_of_random_problems_are_finite(self) -> None:
        for seed in range(10_000, 10_040):
            finite, kind = gradient_is_finite(seed)
            assert finite, (seed, kind)

    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_gaps_of_certain_groups_have_no_gradient(self, classes: int, groups: int) -> None:
        """Where every node is certain nothing moves, and rounding must not decide how much."""
        sens = torch.arange(12) % groups
        x = 40 * torch.nn.functional.one_hot(torch.arange(12) % classes, classes).double()
        x.requires_grad_()
        delta = group_operator(sens, dtype=x.dtype)
        f = shift_groups(x, solve_dual(x, delta, 0.0, 1.0))
        (grad,) = torch.autograd.grad(f[:, 0].sum(), x)
        expected = torch.zeros_like(grad)
        expected[:, 0] = 1
        torch.testing.assert_close(grad, expected, atol=1e-3, rtol=0)


def test_passes_over_nodes_are_those_of_the_binary_kernel_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One gap between two classes never reaches Newton's method."""
    monkeypatch.setattr(dual_module, "solve", lambda *_: pytest.fail("Newton's method was called"))
    problem = random_problem(40)
    solve_dual(problem.x, problem.groups, 0.0, 1.0)
    solve_dual(problem.x, random_problem(40, soft=True).groups, 0.0, 1.0)


def test_groups_without_a_gap_are_not_shifted() -> None:
    x, empty = torch.randn(30, 2, dtype=torch.float64), torch.zeros(30, dtype=torch.bool)
    codes = (torch.arange(30) % 2).int()
    rows = torch.zeros(1, 2, dtype=torch.float64)
    nothing = GroupOperator(None, empty, rows, codes=codes)
    f = projection(x, no_edges(30), nothing, K=2, lambda_s=0.0, target=0.1).f
    assert torch.equal(f, x)
