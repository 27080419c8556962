"""The loops: that they are what runs, the identities they obey, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torch import Tensor, nn
from torch_geometric.nn import APPNP

from fairmp import FMP, PPR, FairClassifier
from fairmp.datasets import social_network
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, group_operator, stack
from fairmp.kernels import use
from fairmp.nn import solvers
from fairmp.nn.fmp import PULLS, SOLVERS
from fairmp.nn.solvers import (
    FrozenDuals,
    Solution,
    coupling_gradient,
    frozen_states,
    papc,
    paper,
    projection,
    propagate,
    released,
    skip_weights,
)
from tests.graphs import problems
from tests.nn.problems import largest_gap, no_edges, random_problem, ring

PROBLEM = tuple[Tensor, Tensor, Tensor]
Solver = Callable[..., Solution]
PRIMAL_DUAL = pytest.mark.parametrize("solver", [paper, papc])
CASES = pytest.mark.parametrize(
    ("classes", "groups", "soft"),
    [(2, 2, False), (2, 2, True), (3, 3, False), (3, 3, True)],
)

# What each step of the projection may be replaced by.
REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "aggregate": lambda f, x, graph, gamma: x,
    "solve_dual": lambda z, groups, target, temperature, start: solvers_solve(z, groups),
    "shift_groups": lambda z, dual: z,
}


def solvers_solve(z: Tensor, groups: GroupOperator) -> Any:
    from fairmp.nn.dual import solve_dual

    return solve_dual(z, groups, 1.0, 1.0)  # an open target: nothing is shifted


class TestTheLoopIsWhatRuns:
    @CASES
    @pytest.mark.parametrize("name", REPLACEMENTS)
    def test_replacing_a_step_changes_the_result(
        self, classes: int, groups: int, soft: bool, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        problem = random_problem(60, classes, groups, soft=soft)
        before = FMP()(problem.x, problem.edge_index, problem.sens)
        monkeypatch.setattr(solvers, name, REPLACEMENTS[name])
        after = FMP()(problem.x, problem.edge_index, problem.sens)
        assert float((after - before).abs().max()) > 1e-3

    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    @pytest.mark.parametrize("name", REPLACEMENTS)
    def test_replacing_a_step_changes_what_a_classifier_learns(
        self, classes: int, groups: int, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = social_network(n=300, seed=0)
        data.y = (data.y + torch.arange(300) % 2) % classes if classes > 2 else data.y
        data.sens = torch.arange(300) % groups if groups > 2 else data.sens

        def predictions() -> Tensor:
            model = FairClassifier(FMP(2), backbone="mlp", epochs=5, hidden=8)
            model.fit(data, bootstrap=0, progress=False)
            return model.predict_proba(data)

        before = predictions()
        monkeypatch.setattr(solvers, name, REPLACEMENTS[name])
        assert float((predictions() - before).abs().max()) > 1e-3

    @CASES
    @pytest.mark.parametrize("softmax_only", [False, True])
    def test_every_pass_takes_k_steps(
        self,
        classes: int,
        groups: int,
        soft: bool,
        softmax_only: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Forward through the loop's three names, backward through their gradients."""
        counts = dict.fromkeys(REPLACEMENTS, 0)
        gradients = dict.fromkeys(("aggregate", "shift_groups"), 0)

        def counting(name: str) -> Callable[..., Any]:
            function = getattr(solvers, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                counts[name] += 1
                result = function(*args, **kwargs)
                if isinstance(result, Tensor) and result.requires_grad:
                    result.grad_fn.register_prehook(lambda _: count_gradient(name))
                return result

            return call

        def count_gradient(name: str) -> None:
            gradients[name] += 1

        for name in REPLACEMENTS:
            monkeypatch.setattr(solvers, name, counting(name))
        problem = random_problem(60, classes, groups, soft=soft)
        x = problem.x.requires_grad_()
        f = FMP(4)(x, problem.edge_index, problem.sens, softmax_only=softmax_only)
        assert counts == dict.fromkeys(REPLACEMENTS, 4)
        f.square().sum().backward()
        assert gradients == {"aggregate": 4, "shift_groups": 4}
        with torch.no_grad():
            FMP(3)(x, problem.edge_index, problem.sens, softmax_only=softmax_only)
        assert counts == dict.fromkeys(REPLACEMENTS, 7)

    def test_plain_propagation_aggregates_k_times(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[float] = []

        def identity(f: Tensor, x: Tensor, graph: Adjacency, gamma: float) -> Tensor:
            calls.append(gamma)
            return f + 1

        monkeypatch.setattr(solvers, "aggregate", identity)
        problem = random_problem()
        f = PPR(3, 1.0)(problem.x, problem.edge_index)
        torch.testing.assert_close(f, problem.x + 3)
        assert calls == [0.5, 0.5, 0.5]


class TestIdentities:
    @given(problem=problems(), k=st.integers(1, 6), lambda_s=st.sampled_from([0.5, 1.0, 3.0, 20.0]))
    def test_without_fairness_it_is_appnp(self, problem: PROBLEM, k: int, lambda_s: float) -> None:
        x, edge_index, sens = problem
        expected = APPNP(k, alpha=1 / (1 + lambda_s))(x, edge_index)
        torch.testing.assert_close(PPR(k, lambda_s)(x, edge_index), expected)
        for solver in ("paper", "papc", "released"):
            layer = FMP(k, lambda_s, lambda_f=0.0, solver=solver)
            torch.testing.assert_close(layer(x, edge_index, sens), expected)
        torch.testing.assert_close(FMP(k, lambda_s, target=1.0)(x, edge_index, sens), expected)

    @given(problem=problems(), solver=st.sampled_from(SOLVERS), target=st.sampled_from([0.0, 0.05]))
    def test_permuting_nodes_permutes_the_output(
        self, problem: PROBLEM, solver: str, target: float
    ) -> None:
        x, edge_index, sens = problem
        order = torch.randperm(x.size(0))
        place = torch.argsort(order)
        layer = FMP(3, 2.0, lambda_f=0.5, solver=solver, target=target)
        moved = layer(x[order], place[edge_index], sens[order])
        assert_same_predictions(moved, layer(x, edge_index, sens)[order])

    @given(problem=problems(), solver=st.sampled_from(SOLVERS), target=st.sampled_from([0.0, 0.05]))
    def test_renaming_groups_changes_nothing(
        self, problem: PROBLEM, solver: str, target: float
    ) -> None:
        x, edge_index, sens = problem
        groups = int(sens.max()) + 1
        renamed = torch.where(sens >= 0, (sens + 1) % groups, sens)
        layer = FMP(3, 2.0, lambda_f=0.5, solver=solver, target=target)
        assert_same_predictions(layer(x, edge_index, sens), layer(x, edge_index, renamed))

    @given(problem=problems(), solver=st.sampled_from(SOLVERS))
    def test_a_node_of_unknown_group_is_never_shifted(self, problem: PROBLEM, solver: str) -> None:
        x, edge_index, sens = problem
        unknown = sens < 0
        # One step, so that nothing a neighbour was shifted by comes back.
        f = FMP(1, 1.0, lambda_f=0.5, solver=solver)(x, edge_index, sens)
        assert torch.equal(f[unknown], PPR(1, 1.0)(x, edge_index)[unknown])

    @given(problem=problems(), solver=st.sampled_from(SOLVERS))
    def test_inputs_are_not_modified(self, problem: PROBLEM, solver: str) -> None:
        before = [tensor.clone() for tensor in problem]
        x, edge_index, sens = problem
        f = FMP(2, 2.0, solver=solver)(x, edge_index, sens)
        f += 1
        assert all(torch.equal(a, b) for a, b in zip(problem, before, strict=True))

    def test_without_smoothing_the_result_is_a_copy(self) -> None:
        x = random_problem().x
        for graph in (ring(40, x.dtype), no_edges(40)):
            f = propagate(x, graph, K=2, lambda_s=0.0)
            torch.testing.assert_close(f.add_(1), x + 1)


def assert_same_predictions(one: Tensor, other: Tensor, atol: float = 1e-7) -> None:
    """Compare probabilities: large margins may differ without a difference to them."""
    torch.testing.assert_close(one.softmax(1), other.softmax(1), atol=atol, rtol=0)


class TestGradients:
    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("learned", [False, True])
    @pytest.mark.parametrize(
        ("classes", "groups", "soft", "target", "temperature"),
        [
            (2, 2, False, 0.0, 1.0),
            (2, 2, False, 0.03, 0.5),
            (2, 2, True, 0.03, 1.0),
            (3, 2, False, 0.0, 1.0),
            (3, 3, False, 0.0, 0.7),
            (3, 3, True, 0.05, 1.0),
            (4, 3, False, 0.05, 1.0),
            (2, 4, False, 0.02, 1.0),
        ],
    )
    def test_gradients_equal_finite_differences(
        self,
        solver: str,
        learned: bool,
        classes: int,
        groups: int,
        soft: bool,
        target: float,
        temperature: float,
    ) -> None:
        problem = random_problem(12, classes, groups, soft=soft, directed=True, seed=7)
        options = {"temperature": temperature} if solver == "projection" else {}
        lambda_s = "learned" if learned else 2.0
        layer = FMP(3, lambda_s, 0.3, solver, target, **options).double()
        parameters = {}
        if learned:
            parameters["theta"] = torch.tensor([0.3, -0.5, 0.1]).double().requires_grad_()

        def run(x: Tensor, *theta: Tensor) -> Tensor:
            inputs = (x, problem.edge_index, problem.sens, problem.population)
            return torch.func.functional_call(
                layer, dict(zip(parameters, theta, strict=True)), inputs
            )

        leaves = (problem.x.requires_grad_(), *parameters.values())
        assert torch.autograd.gradcheck(run, leaves, atol=1e-4)

    def test_gradients_of_plain_propagation_equal_finite_differences(self) -> None:
        problem = random_problem(12, directed=True)
        strength = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
        for softmax_only in (False, True):

            def run(x: Tensor, strength: Tensor, only: bool = softmax_only) -> Tensor:
                f = propagate(x, problem.graph, K=3, lambda_s=strength, softmax_only=only)
                return f.softmax(1)

            assert torch.autograd.gradcheck(run, (problem.x.requires_grad_(), strength))

    def test_gradient_of_a_strength_that_leaves_no_propagation(self) -> None:
        """At λ_s = 0 nothing is propagated, but would be for a larger one."""
        problem = random_problem(12)
        zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        f = propagate(problem.x, problem.graph, K=2, lambda_s=zero)
        assert torch.equal(f, problem.x)
        (grad,) = torch.autograd.grad(f.square().sum(), zero)
        step = torch.tensor([0.0, 1e-6], dtype=torch.float64)
        moved = propagate(problem.x, problem.graph, K=2, lambda_s=step)
        expected = (moved.square().sum() - f.detach().square().sum()) / 1e-6
        assert float(grad[1]) == pytest.approx(float(expected), rel=1e-4)

    def test_a_graph_of_gradients_can_be_walked_twice(self) -> None:
        problem = random_problem()
        x = problem.x.requires_grad_()
        f = projection(x, problem.graph, problem.groups, K=2, lambda_s=1.0).f
        first = torch.autograd.grad(f.sum(), x, retain_graph=True)
        assert torch.equal(first[0], torch.autograd.grad(f.sum(), x)[0])

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("classes", [2, 3])
    def test_an_input_modified_before_its_gradient_is_noticed_or_harmless(
        self, solver: str, classes: int
    ) -> None:
        problem = random_problem(12, classes)
        layer = FMP(2, 0.0, solver=solver)

        def gradient(modify: bool) -> Tensor | None:
            x = problem.x.clone().requires_grad_()
            features = 2 * x  # not a leaf: torch allows an in-place change
            loss = layer(features, problem.edge_index, problem.sens).square().sum()
            if modify:
                features.add_(1)
            with suppress(RuntimeError):  # torch's
                return torch.autograd.grad(loss, x)[0]
            return None

        expected, modified = gradient(modify=False), gradient(modify=True)
        assert expected is not None
        assert modified is None or torch.equal(modified, expected)


class TestProjection:
    @settings(max_examples=40)
    @given(
        n=st.integers(6, 60),
        seed=st.integers(0, 10**6),
        directed=st.booleans(),
        shape=st.sampled_from([(2, 2, False), (3, 2, False), (2, 3, False), (2, 2, True)]),
        target=st.sampled_from([0.0, 0.05, 0.9]),
        temperature=st.sampled_from([0.1, 1.0]),
        k=st.integers(1, 4),
    )
    def test_compiled_kernels_equal_the_reference(
        self,
        n: int,
        seed: int,
        directed: bool,
        shape: tuple[int, int, bool],
        target: float,
        temperature: float,
        k: int,
    ) -> None:
        classes, groups, soft = shape
        problem = random_problem(n, classes, groups, soft=soft, directed=directed, seed=seed)

        def run() -> tuple[Tensor, ...]:
            x = problem.x.clone().requires_grad_()
            options = {"K": k, "lambda_s": 2.0, "target": target, "temperature": temperature}
            solution = projection(x, problem.graph, problem.groups, **options)
            weight = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
            (grad,) = torch.autograd.grad((solution.f * weight).sum(), x)
            return solution.f.detach(), solution.duals, grad

        ours = run()
        with use("reference"):
            expected = run()
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_single_precision_is_near_double(self, weighted: bool) -> None:
        problem = random_problem(20_000, directed=True, seed=3)
        weight = torch.rand(problem.edge_index.size(1)) + 0.1 if weighted else None
        results = []
        for dtype in (torch.float32, torch.float64):
            graph = normalise(problem.edge_index, 20_000, weight, dtype)
            x = problem.x.to(dtype, copy=True).requires_grad_()
            groups = group_operator(problem.sens, problem.population, dtype=dtype)
            f = projection(x, graph, groups, K=5, lambda_s=3.0, target=0.01).f
            weights = torch.linspace(-1, 1, x.numel()).view_as(x)
            (grad,) = torch.autograd.grad((f * weights).sum(), x)
            results.append((f.detach(), grad))
        for single, double in zip(*results, strict=True):
            assert float((single - double).abs().max()) <= 1e-5 * float(double.abs().max())

    @pytest.mark.parametrize("learned", [False, True])
    @pytest.mark.parametrize("kind", [PPR, FMP])
    @pytest.mark.parametrize("device_order", [False, True])
    def test_softmax_only_has_the_same_softmax_and_gradients(
        self,
        kind: type[PPR],
        learned: bool,
        device_order: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if device_order:  # nodes keep their order, as on a GPU
            monkeypatch.setattr("fairmp.graph.MAX_RENUMBERED_EDGES", 0)
        # Enough nodes for several windows, and hubs that several chunks share.
        problem = random_problem(9_000, directed=True, seed=4)
        graph, groups = problem.graph, problem.groups
        layer = kind(3, "learned" if learned else 2.0).double()
        if learned:
            layer.theta = nn.Parameter(torch.tensor([0.1, -0.4, 0.3]))

        def run(**options: Any) -> list[Tensor]:
            x = problem.x.clone().requires_grad_()
            p = layer(x, graph, groups, **options).softmax(1)
            weight = torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view_as(p)
            return [p.detach(), *torch.autograd.grad((p * weight).sum(), [x, *layer.parameters()])]

        ours = run(softmax_only=True)
        with use("reference"):
            expected = run()
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other.to(one), rtol=1e-6, atol=1e-8)

    def test_duals_shift_the_logits(self) -> None:
        problem = random_problem(300)
        solution = projection(problem.x, no_edges(300), problem.groups, K=1, lambda_s=0.0)
        reach = problem.groups.rows @ problem.groups.membership.double().T
        torch.testing.assert_close(problem.x - reach.T @ solution.dual, solution.f)
        assert solution.residual is not None
        assert solution.residual <= 1e-12
        assert solution.duals.shape == (1, 1, 2)

    @pytest.mark.parametrize(("classes", "groups", "soft"), [(2, 2, False), (3, 3, True)])
    def test_iterations_count_the_passes_of_all_steps(
        self, classes: int, groups: int, soft: bool
    ) -> None:
        problem = random_problem(60, classes, groups, soft=soft)
        layer = FMP(3)
        solution = layer.solve(problem.x, problem.edge_index, problem.sens)
        assert solution.iterations is not None
        assert solution.iterations >= 3  # one pass per step at least
        open_target = FMP(3, target=1.0).solve(problem.x, problem.edge_index, problem.sens)
        assert open_target.iterations == 3

    def test_an_open_target_changes_nothing(self) -> None:
        x, sens = torch.randn(50, 3), torch.arange(50) % 3
        x[0] = 1e6  # nor are large logits rounded
        solution = projection(
            x, no_edges(50, x.dtype), group_operator(sens), K=1, lambda_s=0.0, target=1.0
        )
        assert torch.equal(solution.f, x)
        assert torch.equal(solution.dual, torch.zeros(3, 3))

    def test_more_is_shifted_for_smaller_targets(self) -> None:
        problem = random_problem(400)
        problem.x[:, 1] += 2 * problem.sens
        moved = []
        for target in (0.0, 0.05, 0.1, 0.2, 0.4):
            f = projection(
                problem.x, no_edges(400), problem.groups, K=1, lambda_s=0.0, target=target
            ).f
            moved.append(float((f - problem.x).abs().mean()))
        assert moved == sorted(moved, reverse=True)
        assert moved[0] > 0.1

    def test_a_small_temperature_closes_the_gap_of_decisions(self) -> None:
        sens = (torch.arange(4000) % 4 == 0).long()
        spread = 1 + 2 * sens.unsqueeze(1)
        x = torch.randn(4000, 2) * spread + sens.unsqueeze(1) * torch.tensor([0.0, 1.5])
        gaps = []
        for temperature in (1.0, 0.05):
            f = FMP(1, 0.0, temperature=temperature)(x, no_edges(4000, x.dtype), sens)
            decided = f.argmax(1).double()
            gaps.append(abs(float(decided[sens == 1].mean() - decided[sens == 0].mean())))
        assert gaps[1] < 0.01 < gaps[0]

    def test_the_correction_applies_beyond_the_population(self) -> None:
        problem = random_problem(600)
        f = projection(problem.x, no_edges(600), problem.groups, K=1, lambda_s=0.0).f
        shift = (f - problem.x)[:, 1] - (f - problem.x)[:, 0]
        for group in (0, 1):
            members = shift[problem.sens == group]
            assert float(members.abs().min()) > 0
            torch.testing.assert_close(members, members[:1].expand_as(members))
        gap = problem.groups.gap(f.softmax(1)).abs().max()
        assert float(gap) < 1e-9

    def test_soft_groups_weigh_the_means(self) -> None:
        problem = random_problem(500, 3, 3, soft=True)
        f = FMP(1, 0.0)(problem.x, no_edges(500), problem.sens)
        assert largest_gap(f, problem.sens) < 1e-9

    @pytest.mark.parametrize("excess", [0.9, 1.1])
    def test_a_missed_target_is_warned_about(
        self, excess: float, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
    ) -> None:
        """From an excess of 1e-4 on, and not below it."""
        problem, solve = random_problem(40, 3, 3), solvers.solve_dual

        def imprecise(*args: Any) -> Any:
            dual = solve(*args)
            dual.residual = 1e-4 * excess
            return dual

        monkeypatch.setattr(solvers, "solve_dual", imprecise)
        projection(problem.x, problem.graph, problem.groups, K=1, lambda_s=1.0)
        assert ["did not meet the target" in str(w.message) for w in recwarn] == (
            [True] if excess > 1 else []
        )


class RingOfOneDirection:
    """A graph with Ã = (3·identity + shift)/4, in place of an adjacency."""

    is_local = True

    def aggregate(self, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
        there = (3 * f + f.roll(1, 0)) / 4
        return (1 - gamma) * there if x is None else gamma * x + (1 - gamma) * there

    def aggregate_vjp(self, grad: Tensor, gamma: float) -> Any:
        from fairmp.kernels.types import AggregateGradient

        back = (1 - gamma) * (3 * grad + grad.roll(-1, 0)) / 4
        return AggregateGradient(back, gamma * grad)


def stacked_problem(
    n: int, classes: int, groups: int, *, stacked: bool = False, seed: int = 0, scale: float = 1.0
) -> tuple[Tensor, GroupOperator]:
    """Logits, and one or two attributes measured on populations of their own."""
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


def printed_steps(
    solver: Solver, x: Tensor, delta: GroupOperator, K: int, lambda_s: float, lambda_f: float
) -> tuple[Tensor, Tensor]:
    """The five printed steps, with dense matrices."""
    gamma, measured = 1 / (1 + lambda_s), delta.matrix
    beta, bound = 1 / (2 * gamma), lambda_f
    if solver is papc:
        norm = float(torch.linalg.matrix_norm(measured @ measured.T, ord=2))
        beta, bound = 4 / (gamma * norm), lambda_f / norm
    a = RingOfOneDirection().aggregate(torch.eye(len(x), dtype=torch.float64), None, 0.0)
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


class TestPrimalDual:
    @PRIMAL_DUAL
    @settings(max_examples=25)
    @given(
        classes=st.integers(2, 4),
        groups=st.integers(2, 4),
        stacked=st.booleans(),
        k=st.integers(1, 4),
        lambda_s=st.sampled_from([0.0, 0.5, 3.0]),
        lambda_f=st.sampled_from([0.0, 0.05, 1.0, 100.0]),
        scale=st.sampled_from([0.1, 1.0, 10.0]),
        seed=st.integers(0, 2**20),
    )
    def test_steps_and_gradients_equal_dense_matrices(
        self,
        solver: Solver,
        classes: int,
        groups: int,
        stacked: bool,
        k: int,
        lambda_s: float,
        lambda_f: float,
        scale: float,
        seed: int,
    ) -> None:
        x, delta = stacked_problem(15, classes, groups, stacked=stacked, seed=seed, scale=scale)
        x.requires_grad_()
        graph: Any = RingOfOneDirection()
        solution = solver(x, graph, delta, K=k, lambda_s=lambda_s, lambda_f=lambda_f)
        expected = printed_steps(solver, x, delta, k, lambda_s, lambda_f)
        weights = [torch.randn_like(part) for part in expected]
        gradients = []
        for pair in ((solution.f, solution.duals), expected):
            loss = sum((part * w).sum() for part, w in zip(pair, weights, strict=True))
            gradients.append(torch.autograd.grad(loss, x, retain_graph=True)[0])
        for ours, other in zip(
            (solution.f, solution.duals, gradients[0]), (*expected, gradients[1]), strict=True
        ):
            size = float(other.detach().abs().max())
            torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-11 * (1 + size))

    def test_stacked_groups_measure_and_reach_different_nodes(self) -> None:
        _, delta = stacked_problem(15, 2, 3, stacked=True)
        assert delta.codes is not None
        assert delta.population_codes is not None
        both = (delta.codes >= 0) & (delta.population_codes >= 0)
        assert (delta.codes != delta.population_codes)[both].any()

    @PRIMAL_DUAL
    @pytest.mark.parametrize("classes", [2, 3])
    def test_single_precision_is_near_double(self, solver: Solver, classes: int) -> None:
        problem = random_problem(2000, classes, seed=1)
        weights = torch.randn(problem.x.shape)
        results = []
        for logits in (problem.x.float().requires_grad_(), problem.x.requires_grad_()):
            graph = normalise(problem.edge_index, 2000, dtype=logits.dtype)
            solution = solver(logits, graph, problem.groups, K=5, lambda_s=3.0, lambda_f=2.0)
            assert solution.f.dtype == solution.duals.dtype == logits.dtype
            (grad,) = torch.autograd.grad((solution.f * weights).sum(), logits)
            results.append((solution.f, solution.duals, grad))
        for single, double in zip(*results, strict=True):
            error = float((single - double).detach().abs().max())
            assert error < 1e-5 * float(double.detach().abs().max())

    @PRIMAL_DUAL
    def test_certain_probabilities_equal_hard_groups(self, solver: Solver) -> None:
        problem = random_problem(20, 3, 3)
        hard = problem.groups
        soft = GroupOperator(hard.membership, hard.population, hard.rows)
        results = []
        for groups in (hard, soft):
            x = problem.x.clone().requires_grad_()
            options = {"K": 3, "lambda_s": 2.0, "lambda_f": 0.5, "trace": True}
            solution = solver(x, problem.graph, groups, **options)
            (grad,) = torch.autograd.grad(solution.f.square().sum() + solution.duals.sum(), x)
            gaps = torch.stack([step.gap for step in solution.steps])
            results.append((solution.f, solution.duals, grad, gaps))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)

    def test_paper_hardly_moves_and_papc_does(self) -> None:
        n = 2000
        sens = torch.arange(n) % 2
        x = torch.randn(n, 2, dtype=torch.float64)
        x[:, 1] += sens
        groups, graph = group_operator(sens, dtype=x.dtype), no_edges(n)
        options = {"K": 5, "lambda_s": 3.0, "lambda_f": 30.0}
        before = float(groups.gap(x.softmax(1)).abs().max())
        printed = paper(x, graph, groups, **options)
        assert abs(float(groups.gap(printed.f.softmax(1)).abs().max()) - before) < 0.01 * before
        assert float(printed.dual.abs().max()) < 30.0  # the step is small, not the bound λ_f
        sized = papc(x, graph, groups, **options)
        assert float(groups.gap(sized.f.softmax(1)).abs().max()) < 0.5 * before

    def test_papc_s_strength_means_the_same_at_every_size(self) -> None:
        """A node's result does not change when the whole population is repeated; paper's does."""
        sens = torch.arange(40) % 2
        x = torch.randn(40, 2, dtype=torch.float64) + sens.unsqueeze(1) * torch.tensor([0.0, 2.0])
        for solver, equal in ((papc, True), (paper, False)):
            outputs = []
            for copies in (1, 10):
                delta = group_operator(sens.repeat(copies), dtype=x.dtype)
                graph = no_edges(40 * copies)
                options = {"K": 5, "lambda_s": 1.0, "lambda_f": 0.4}
                outputs.append(solver(x.repeat(copies, 1), graph, delta, **options).f[:40])
            assert torch.allclose(*outputs, atol=1e-9) is equal

    @pytest.mark.parametrize("size", [1e-14, 1e-6])
    def test_papc_takes_an_operator_that_is_rounding_for_zero(self, size: float) -> None:
        """Groups whose means are equal whatever is predicted have nothing to correct."""
        problem = random_problem(20)
        hard = problem.groups
        tiny = GroupOperator(None, hard.population, size * hard.rows, codes=hard.codes)
        options = {"K": 3, "lambda_s": 1.0}
        f = papc(problem.x, problem.graph, tiny, lambda_f=1.0, **options).f
        plain = propagate(problem.x, problem.graph, **options)
        assert f.isfinite().all()
        assert torch.allclose(f, plain, atol=1e-6) == (size < 1e-10)

    def test_papc_of_one_node_shared_between_groups_is_finite(self) -> None:
        x = torch.randn(5, 2, dtype=torch.float64)
        sens = torch.zeros(5, 2, dtype=torch.float64)
        sens[2] = torch.tensor([0.3, 0.7])
        groups = group_operator(sens, dtype=x.dtype)
        solution = papc(x, ring(5, x.dtype), groups, K=3, lambda_s=1.0, lambda_f=1.0)
        assert solution.f.isfinite().all()


def dense_adjacency(edge_index: Tensor, n: int) -> np.ndarray:
    """Ã from its definition; parallel edges add up."""
    a = np.eye(n)
    np.add.at(a, (edge_index[1].numpy(), edge_index[0].numpy()), 1.0)
    root = np.sqrt(a.sum(1))
    return a / np.outer(root, root)


def dense_paper(
    x: np.ndarray, a: np.ndarray, sens: np.ndarray, K: int, lambda_s: float, lambda_f: float
) -> np.ndarray:
    """The five printed steps for two groups."""
    delta = ((sens == 1) / (sens == 1).sum() - (sens == 0) / (sens == 0).sum())[None]
    gamma = 1 / (1 + lambda_s)
    f, u = x, np.zeros((1, x.shape[1]))

    def gradient(f: np.ndarray, u: np.ndarray) -> np.ndarray:
        p, spread = softmax(f, axis=1), delta.T @ u
        return p * (spread - (spread * p).sum(1, keepdims=True))

    for _ in range(K):
        agg = gamma * x + (1 - gamma) * a @ f
        f_bar = agg - gamma * gradient(f, u)
        u = np.clip(u + delta @ softmax(f_bar, axis=1) / (2 * gamma), -lambda_f, lambda_f)
        f = agg - gamma * gradient(f, u)
    return f


def dense_released(
    x: np.ndarray, a: np.ndarray, sens: np.ndarray, K: int, lambda_s: float, lambda_f: float
) -> np.ndarray:
    """The steps of the authors' public code, for two groups; −1 is outside the population."""
    delta = ((sens == 1).astype(float) - (sens == 0))[None] / (sens >= 0).sum()
    gamma = 1 / (1 + lambda_s)
    beta, f = 1 / (2 * gamma), x

    def correction(z: np.ndarray) -> np.ndarray:
        v = delta.T @ z
        s = softmax(v, axis=1)
        return v * s - (v * s).sum(1, keepdims=True) * s

    for _ in range(K):
        y = gamma * x + (1 - gamma) * a @ f
        z = delta @ softmax(y, axis=1) / (gamma * delta @ delta.T)
        z_bar = z + beta * delta @ softmax(y - gamma * correction(z), axis=1)
        z = 2 * lambda_f / (2 * lambda_f + beta) * z_bar
        f = y - gamma * correction(z)
    return f


class TestReleasedAndPaperAgainstNumpy:
    @settings(max_examples=25)
    @given(
        n=st.integers(6, 30),
        classes=st.integers(2, 4),
        k=st.integers(1, 5),
        lambda_s=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
        lambda_f=st.sampled_from([0.0, 0.05, 1.0, 100.0]),
        seed=st.integers(0, 2**20),
    )
    def test_layer_equals_a_dense_reading(
        self, n: int, classes: int, k: int, lambda_s: float, lambda_f: float, seed: int
    ) -> None:
        problem = random_problem(n, classes, seed=seed)
        edges = problem.edge_index[:, problem.edge_index[0] != problem.edge_index[1]]
        a = dense_adjacency(edges, n)
        for solver, dense in (("paper", dense_paper), ("released", dense_released)):
            f = FMP(k, lambda_s, lambda_f, solver)(problem.x, edges, problem.sens)
            expected = dense(problem.x.numpy(), a, problem.sens.numpy(), k, lambda_s, lambda_f)
            assert np.abs(f.numpy() - expected).max() < 1e-9

    @settings(max_examples=25)
    @given(
        n=st.integers(6, 30),
        classes=st.integers(2, 4),
        k=st.integers(1, 5),
        lambda_s=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
        lambda_f=st.sampled_from([0.05, 1.0, 100.0]),
        seed=st.integers(0, 2**20),
    )
    def test_released_equals_a_dense_reading_where_some_groups_are_only_known(
        self, n: int, classes: int, k: int, lambda_s: float, lambda_f: float, seed: int
    ) -> None:
        """Nodes of known group outside the population count as those of unknown group."""
        problem = random_problem(n, classes, seed=seed)
        sens, population = problem.sens, problem.population
        sens[-2:], population[-2:] = torch.tensor([0, 1]), False
        edges = problem.edge_index[:, problem.edge_index[0] != problem.edge_index[1]]
        inside = torch.where(population, sens, -1).numpy()
        f = FMP(k, lambda_s, lambda_f, "released")(problem.x, edges, sens, population)
        a = dense_adjacency(edges, n)
        expected = dense_released(problem.x.numpy(), a, inside, k, lambda_s, lambda_f)
        assert np.abs(f.numpy() - expected).max() < 1e-9

    def test_nodes_outside_the_population_are_not_corrected(self) -> None:
        problem = random_problem(30)
        outside = ~problem.population
        options = {"K": 1, "lambda_s": 1.0}
        solution = released(problem.x, problem.graph, problem.groups, lambda_f=1.0, **options)
        plain = propagate(problem.x, problem.graph, **options)
        assert torch.equal(solution.f[outside], plain[outside])
        known = problem.population & (problem.sens >= 0)
        assert (solution.f[known] != plain[known]).all()

    def test_equal_means_of_unequal_groups_are_torn_apart(self) -> None:
        """Divided by all nodes, the larger group's mean counts more."""
        sens = torch.tensor([0] * 30 + [1] * 10)
        x = torch.tensor([0.0, 1.0]).double().expand(40, 2).contiguous()
        groups = group_operator(sens, dtype=x.dtype)
        solution = released(x, no_edges(40), groups, K=1, lambda_s=1.0, lambda_f=1.0)
        assert float(groups.gap(x.softmax(1)).abs().max()) < 1e-12
        assert float(groups.gap(solution.f.softmax(1)).abs().max()) > 0.01

    @pytest.mark.parametrize("soft", [False, True])
    def test_several_groups_use_a_pseudo_inverse(self, soft: bool) -> None:
        problem = random_problem(30, 2, 3, soft=soft)
        solution = released(problem.x, problem.graph, problem.groups, K=3, lambda_s=1.0, lambda_f=1)
        assert solution.f.isfinite().all()
        assert solution.group_duals.shape == (3, 3, 2)


class TestTrace:
    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
    def test_steps_are_those_of_shorter_runs(self, solver: str, classes: int, groups: int) -> None:
        problem = random_problem(30, classes, groups)
        inputs = (problem.x, problem.edge_index, problem.sens)
        traced = FMP(3, 2.0, 0.5, solver, 0.05).solve(*inputs, trace=True)
        assert torch.equal(FMP(3, 2.0, 0.5, solver, 0.05).solve(*inputs).f, traced.f)
        assert len(traced.steps) == 3
        for k, step in enumerate(traced.steps):
            after = FMP(k + 1, 2.0, 0.5, solver, 0.05).solve(*inputs)
            torch.testing.assert_close(step.dual, after.dual)
            torch.testing.assert_close(step.gap, after.groups.gap(after.f.softmax(1)))
            total = step.smoothness + step.fidelity + step.fairness
            assert step.objective == pytest.approx(total)

    def test_terms_are_those_of_the_objective(self) -> None:
        problem = random_problem(30)
        step = FMP(1, 2.0, 0.5, "papc").solve(
            problem.x, problem.edge_index, problem.sens, trace=True
        )
        f, (term,) = step.f, step.steps
        laplacian = torch.eye(30, dtype=torch.float64) - problem.graph @ torch.eye(30).double()
        assert term.smoothness == pytest.approx(2.0 / 2 * float((f * (laplacian @ f)).sum()))
        assert term.fidelity == pytest.approx(float((f - problem.x).square().sum()) / 2)
        assert term.fairness == pytest.approx(0.5 / step.groups.norm * float(term.gap.abs().sum()))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("classes", "groups", "soft"), [(2, 2, False), (3, 3, True)])
def test_frozen_duals_repeat_the_solution(
    solver: str, classes: int, groups: int, soft: bool
) -> None:
    problem = random_problem(30, classes, groups, soft=soft)
    layer = FMP(4, 2.0, 0.5, solver)
    solution = layer.solve(problem.x, problem.edge_index, problem.sens)
    duals = FrozenDuals(solution.groups.membership, solution.group_duals, PULLS[layer.solver])
    again = frozen_states(problem.x, problem.graph, duals, lambda_s=2.0)[-1]
    torch.testing.assert_close(again, solution.f)


@given(problem=problems(), seed=st.integers(0, 99))
def test_coupling_gradient_equals_autograd(problem: PROBLEM, seed: int) -> None:
    x, _, _ = problem
    u = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    f = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((u * f.softmax(1)).sum(), f)
    torch.testing.assert_close(coupling_gradient(x, u), expected)


def test_skip_weights_take_one_strength_or_one_per_step() -> None:
    assert skip_weights(1.0, 3) == (0.5, 0.5, 0.5)
    assert skip_weights([0.0, 3.0], 2) == (1.0, 0.25)
    learned = torch.tensor([1.0, 3.0], requires_grad=True)
    weights = skip_weights(learned, 2)
    assert isinstance(weights, Tensor)
    assert weights.requires_grad
    assert weights.tolist() == [0.5, 0.25]
    assert skip_weights(torch.tensor(1.0), 2).tolist() == [0.5, 0.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("solver", ["propagate", *SOLVERS])
def test_a_strength_per_step_equals_a_tensor_of_them(solver: str) -> None:
    problem = random_problem(20)

    def run(lambda_s: Any) -> Tensor:
        if solver == "propagate":
            return propagate(problem.x, problem.graph, K=3, lambda_s=lambda_s)
        options = {} if solver == "projection" else {"lambda_f": 0.5}
        solve = getattr(solvers, solver)
        solution = solve(
            problem.x, problem.graph, problem.groups, K=3, lambda_s=lambda_s, **options
        )
        return solution.f

    strengths = [0.5, 1.0, 2.0]
    torch.testing.assert_close(run(strengths), run(torch.tensor(strengths).double()))
    torch.testing.assert_close(run(2.0), run(torch.tensor(2.0).double()))


@pytest.mark.gpu
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("solver", ["propagate", *SOLVERS])
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 4)])
def test_loops_on_cuda_equal_the_reference(
    solver: str, classes: int, groups: int, learned: bool
) -> None:
    problem = random_problem(5000, classes, groups)
    graph, delta = problem.graph.to("cuda"), group_operator(problem.sens.cuda())
    strength = torch.full((4,), 3.0, dtype=torch.float64, device="cuda", requires_grad=learned)
    weights = torch.randn(5000, classes, dtype=torch.float64, device="cuda")
    results = []
    for kernels in ("fastest", "reference"):
        x = problem.x.cuda().requires_grad_()
        with use(kernels):
            if solver == "propagate":
                f = propagate(x, graph, K=4, lambda_s=strength if learned else 3.0)
            else:
                options = {"target": 0.01} if solver == "projection" else {"lambda_f": 2.0}
                f = getattr(solvers, solver)(
                    x, graph, delta, K=4, lambda_s=strength if learned else 3.0, **options
                ).f
            leaves = [x, strength] if learned else [x]
            results.append((f, *torch.autograd.grad((f * weights).sum(), leaves)))
    for ours, expected in zip(*results, strict=True):
        error = float((ours - expected).detach().abs().max())
        assert error < 1e-6 * float(expected.detach().abs().max())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("solver", ["projection", "papc"])
def test_the_host_never_waits_on_cuda(solver: str) -> None:
    problem = random_problem(5000)
    graph, delta = problem.graph.to("cuda"), group_operator(problem.sens.cuda())
    x = problem.x.cuda().requires_grad_()
    options = {} if solver == "projection" else {"lambda_f": 1.0}
    for mode in ("default", "error"):  # the first time kernels are compiled and hubs looked for
        torch.cuda.set_sync_debug_mode(mode)
        try:
            f = getattr(solvers, solver)(x, graph, delta, K=3, lambda_s=1.0, **options).f
            f.sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
