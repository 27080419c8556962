"""Newton's method on the dual, against scipy in split variables and from its definitions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from fairmp.nn import newton
from fairmp.nn.newton import DualProblem, DualSolution, Moments, implicit_gradient, solve
from fairmp.nn.quadratic import Array


class Nodes(DualProblem):
    """The passes over the nodes written out: logits z (n×C), Δ (G'×n), blocks of its rows."""

    def __init__(self, z: Array, delta: Array, blocks: tuple[int, ...]) -> None:
        self.z, self.delta, self.blocks = z, delta, blocks
        self.scale = np.abs(delta).max(1)
        self.scaled = delta / self.scale[:, None]
        self.shape = delta.shape[0], z.shape[1]

    @property
    def width(self) -> float:
        return float(np.ptp(self.z, axis=1).max())

    def moments(self, v: Array, temperature: float) -> Moments:
        logits = (self.z - self.scaled.T @ v) / temperature
        q = softmax(logits, axis=1)
        curvature = np.einsum("nc,cd->ncd", q, np.eye(q.shape[1])) - np.einsum("nc,nd->ncd", q, q)
        hessian = np.einsum("an,bn,ncd->acbd", self.scaled, self.scaled, curvature) / temperature
        return Moments(
            temperature * float(logsumexp(logits, axis=1).sum()),
            (self.scaled @ q).ravel(),
            hessian.reshape(2 * [v.size]),
        )

    def gram(self) -> Array:
        return np.asarray(self.scaled @ self.scaled.T)

    def shifted(self, u: Array) -> Array:
        return np.asarray(softmax(self.z - self.delta.T @ u, axis=1))

    def gap(self, u: Array) -> Array:
        return np.asarray(self.delta @ self.shifted(u))

    def largest_gap(self, u: Array) -> float:
        """Of rows on their own from 0, of the rows of a block from each other."""
        parts = np.split(self.gap(u), np.cumsum(self.blocks)[:-1])
        return max(
            float((np.abs(part) if len(part) == 1 else np.ptp(part, axis=0)).max())
            for part in parts
        )

    def solve(self, target: float, tol: float = 1e-10, start: Array | None = None) -> DualSolution:
        start = np.zeros(self.shape) if start is None else start
        return solve(self, start, self.width, target, tol)


@dataclass(frozen=True)
class Case:
    """Groups, classes and how far logits lie apart."""

    groups: int
    classes: int
    soft: bool = False
    scale: float = 1.0
    n: int = 60

    def nodes(self, seed: int = 0) -> Nodes:
        """Two groups as one gap, more as a block of deviations from the mean of all."""
        rng = np.random.default_rng(seed)
        codes = np.arange(self.n) % self.groups
        z = self.scale * rng.standard_normal((self.n, self.classes))
        z[:, 0] += self.scale * codes
        membership = np.eye(self.groups)[codes]
        if self.soft:
            membership = 0.7 * membership + 0.3 * rng.dirichlet(np.ones(self.groups), self.n)
        means = membership / membership.sum(0)  # a group's mean is a column's sum with q
        if self.groups == 2:
            return Nodes(z, (means[:, :1] - means[:, 1:]).T, (1,))
        return Nodes(z, (means - 1 / self.n).T, (self.groups,))

    def two_attributes(self) -> Nodes:
        """A gap between two groups beside a block of three."""
        one, block = Case(2, self.classes).nodes(), self.nodes()
        delta = np.vstack([one.delta, block.delta])
        return Nodes(block.z, delta, (*one.blocks, *block.blocks))


PROBLEMS = {
    "two groups, three classes": Case(2, 3).nodes(),
    "three groups, two classes": Case(3, 2).nodes(),
    "four groups, four classes": Case(4, 4).nodes(),
    "soft, two groups, three classes": Case(2, 3, soft=True).nodes(),
    "soft, three groups, three classes": Case(3, 3, soft=True).nodes(),
    "wide, two groups, three classes": Case(2, 3, scale=15).nodes(),
    "wide, three groups, three classes": Case(3, 3, scale=15).nodes(),
    "wide, soft, three groups, two classes": Case(3, 2, soft=True, scale=15).nodes(),
    "two attributes": Case(3, 3).two_attributes(),
}
problems = pytest.mark.parametrize("nodes", PROBLEMS.values(), ids=PROBLEMS)


def hard_problem(seed: int) -> Nodes:
    """Logits far apart, groups of a single node, predictions that are all but certain."""
    rng = np.random.default_rng(seed)
    groups, classes = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    classes = max(classes, 3) if groups == 2 else classes
    n = int(rng.integers(groups, 60))
    codes = rng.integers(0, groups if rng.random() < 0.7 else 1, n)
    codes[:groups] = np.arange(groups)
    scale = float(rng.choice([0.1, 5.0, 50.0, 500.0, 5000.0, 1e5]))
    z = scale * rng.standard_normal((n, classes))
    z = 50 * np.sign(z) if rng.random() < 0.3 else z
    z[:, 0] += scale * codes * rng.random()
    means = np.eye(groups)[codes] / np.bincount(codes)
    if groups == 2:
        return Nodes(z, (means[:, :1] - means[:, 1:]).T, (1,))
    return Nodes(z, (means - 1 / n).T, (groups,))


def moves(nodes: Nodes) -> Array:
    """What a dual is made of, at the price of the target: a row up or down, or two of a block."""
    identity = np.eye(nodes.shape[0])
    columns: list[Array] = []
    for block in np.split(np.arange(nodes.shape[0]), np.cumsum(nodes.blocks)[:-1]):
        rows = identity[block]
        if len(rows) == 1:
            columns += [rows[0], -rows[0]]
        else:
            columns += [a - b for a, b in permutations(rows, 2)]
    return np.array(columns).T


def scipy_dual(nodes: Nodes, target: float) -> Array:
    """The dual u that L-BFGS-B finds, over non-negative moves."""
    directions = moves(nodes)
    shape = directions.shape[1], nodes.shape[1]
    unit = nodes.scale.max()  # of the order of 1/n, so that moves are of the order of 1

    def objective(flat: Array) -> tuple[float, Array]:
        u = directions @ flat.reshape(shape) / unit
        value = logsumexp(nodes.z - nodes.delta.T @ u, axis=1).sum() + target * flat.sum() / unit
        gradient = directions.T @ -nodes.gap(u) + target
        return float(value), (gradient / unit).ravel()

    size = shape[0] * shape[1]
    options = {"maxiter": 100_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    result = minimize(
        objective, np.zeros(size), jac=True, bounds=[(0, None)] * size, options=options
    )
    return np.asarray(directions @ result.x.reshape(shape) / unit)


class TestSolve:
    @problems
    @pytest.mark.parametrize("target", [0.0, 0.02, 0.1])
    def test_predictions_are_those_of_scipys_minimum(self, nodes: Nodes, target: float) -> None:
        solution = nodes.solve(target)
        assert solution.residual <= 1e-10
        assert nodes.largest_gap(solution.u) <= target + 1e-9
        expected = nodes.shifted(scipy_dual(nodes, target))
        np.testing.assert_allclose(nodes.shifted(solution.u), expected, atol=2e-5)

    @problems
    def test_held_gaps_are_at_the_target_and_others_within_it(self, nodes: Nodes) -> None:
        target = 0.05
        solution = nodes.solve(target)
        gap, stop = nodes.gap(solution.u), np.cumsum(nodes.blocks)
        for size, end in zip(nodes.blocks, stop, strict=True):
            part, held = gap[end - size : end], solution.active[end - size : end]
            if size == 1:
                np.testing.assert_allclose(np.abs(part[held]), target, atol=1e-8)
                continue
            for values, active in zip(part.T, held.T, strict=True):
                # A held row is at one of the two ends of its class's band of width t.
                ends = np.minimum(np.abs(values - values.min()), np.abs(values - values.max()))
                assert ends[active].max(initial=0) <= 1e-8
                if active.any():
                    assert np.ptp(values) == pytest.approx(target, abs=1e-8)

    @problems
    def test_wide_enough_target_leaves_predictions_alone(self, nodes: Nodes) -> None:
        solution = nodes.solve(1.0)
        assert not solution.u.any()
        assert not solution.active.any()
        assert solution.residual == 0

    @problems
    @pytest.mark.parametrize("target", [0.0, 0.02])
    def test_start_at_the_solution_saves_passes(self, nodes: Nodes, target: float) -> None:
        solution = nodes.solve(target)
        again = nodes.solve(target, tol=1e-8, start=solution.u)
        assert again.passes < solution.passes
        np.testing.assert_allclose(nodes.gap(again.u), nodes.gap(solution.u), atol=1e-7)

    @pytest.mark.parametrize("target", [0.0, 0.02])
    def test_hopeless_start_is_given_up(self, target: float) -> None:
        nodes = Case(3, 3, scale=15).nodes()
        start = 1e6 * np.random.default_rng(0).standard_normal(nodes.shape)
        solution = nodes.solve(target, start=start - start.mean(0))
        assert solution.residual <= 1e-10
        np.testing.assert_allclose(
            nodes.shifted(solution.u), nodes.shifted(nodes.solve(target).u), atol=1e-6
        )

    @problems
    def test_rows_of_the_dual_sum_to_zero_and_so_do_blocks(self, nodes: Nodes) -> None:
        u = nodes.solve(0.02).u
        size = 1 + np.abs(u).max()
        np.testing.assert_allclose(u.sum(1) / size, 0, atol=1e-9)
        for part in np.split(u, np.cumsum(nodes.blocks)[:-1]):
            if len(part) > 1:
                np.testing.assert_allclose(part.sum(0) / size, 0, atol=1e-9)


def violation(nodes: Nodes, u: Array, target: float) -> float:
    """The largest violation of the optimality conditions at u, row by row or pair by pair."""
    gap, largest, end = nodes.gap(u), 0.0, 0
    for size in nodes.blocks:
        rows, end = range(end, end + size), end + size
        for c in range(nodes.shape[1]):
            if size == 1:
                value, multiplier = gap[rows[0], c], u[rows[0], c]
                free = max(abs(value) - target, 0)
                held = abs(value - np.sign(multiplier) * target)
                largest = max(largest, held if multiplier else free)
            for g, h in permutations(rows, 2):
                apart = gap[g, c] - gap[h, c]
                largest = max(largest, apart - target)
                if u[g, c] > 0 and u[h, c] < 0:  # held apart by the target
                    largest = max(largest, target - apart)
                elif u[g, c] > 0 or u[h, c] < 0:  # g is at the upper end, or h at the lower one
                    largest = max(largest, -apart)
    return float(largest)


class TestResidual:
    @problems
    @pytest.mark.parametrize("target", [0.0, 0.03])
    def test_residual_is_the_largest_violation(self, nodes: Nodes, target: float) -> None:
        rng = np.random.default_rng(1)
        for scale in (1.0, 5.0):
            u = scale * rng.standard_normal(nodes.shape) / nodes.scale.max()
            u *= rng.random(nodes.shape) < 0.7  # some multipliers are 0
            u[:, -1] -= u.sum(1)
            solution = nodes.solve(target, tol=10.0, start=u)  # so loose that u itself will do
            np.testing.assert_allclose(solution.u, u, atol=1e-9 / nodes.scale.max())
            assert solution.residual == pytest.approx(violation(nodes, u, target), abs=1e-9)

    @problems
    def test_residual_of_a_loose_solution_is_within_the_tolerance(self, nodes: Nodes) -> None:
        solution = nodes.solve(0.0, tol=1e-3)
        assert 0 < solution.residual <= 1e-3
        assert solution.residual == pytest.approx(nodes.largest_gap(solution.u), abs=1e-9)


class Rounded(Nodes):
    """Nodes of three groups and classes whose gaps are known to some digits only."""

    def __init__(self, rounding: float) -> None:
        nodes = Case(3, 3).nodes()
        super().__init__(nodes.z, nodes.delta, nodes.blocks)
        self.unit = rounding / self.scale.repeat(3)

    def moments(self, v: Array, temperature: float) -> Moments:
        moments = super().moments(v, temperature)
        return moments._replace(gradient=np.round(moments.gradient / self.unit) * self.unit)


# In turn: ordinary ones, stages left too early, and steps that go there and back.
SEEDS = [*range(40), 1028, 1243, 1285, 1100]


class TestConvergence:
    @pytest.mark.parametrize("target", [0.0, 0.02])
    def test_hard_problems_are_solved(self, target: float) -> None:
        """By the method itself: where it falls back on scaling, no gap is held."""
        for seed in SEEDS:
            nodes = hard_problem(seed)
            solution = nodes.solve(target)
            assert solution.residual <= 1e-6, seed
            assert solution.active.any() or not solution.u.any(), seed
            assert nodes.largest_gap(solution.u) <= target + 1e-6, seed

    @pytest.mark.parametrize(("rounding", "converges"), [(1e-5, False), (1e-7, True)])
    def test_rounding_decides_whether_it_converged(self, rounding: float, converges: bool) -> None:
        """A residual of 1e-6 is as good as rounding allows, a larger one is not."""
        nodes, target = Rounded(rounding), 0.02 + rounding / 3  # between two digits
        solution = nodes.solve(target)
        assert solution.active.any() == converges
        assert nodes.largest_gap(solution.u) <= target + 2 * rounding


class TestScaleBackParity:
    @problems
    @pytest.mark.parametrize("target", [0.02, 0.1])
    def test_result_is_feasible(self, nodes: Nodes, target: float) -> None:
        """Full parity times a number: as far as the target allows, and not quite the closest."""
        point = newton.DenseNewton(nodes, target, nodes.width).scale_back_parity(
            np.zeros(nodes.shape).ravel(), 1e-10
        )
        u = point.v.reshape(nodes.shape) / nodes.scale[:, None]
        assert nodes.largest_gap(u) == pytest.approx(target, abs=1e-9)
        assert point.residual <= 1e-9
        parity = nodes.solve(0.0).u
        share = (u * parity).sum() / (parity * parity).sum()
        assert 0 < share < 1
        np.testing.assert_allclose(nodes.gap(u), nodes.gap(share * parity), atol=1e-6)

    def test_solve_scales_back_parity_if_newton_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the method does not converge, the target is held, and the dual has no gradient."""
        nodes, target = Case(3, 3).nodes(), 0.02
        monkeypatch.setattr(newton, "penalised_minimum", _give_up)
        solution = nodes.solve(target)
        assert solution.residual <= 1e-9
        assert nodes.largest_gap(solution.u) == pytest.approx(target, abs=1e-9)
        assert not solution.active.any()


def _give_up(*_: object, **__: object) -> Array:
    raise RuntimeError("too many iterations")


@problems
@pytest.mark.parametrize("target", [0.0, 0.05])
def test_implicit_gradient_is_the_difference_quotient(nodes: Nodes, target: float) -> None:
    """Of a loss of u that a constant per row does not change, along a change of the logits."""
    rng = np.random.default_rng(2)
    change = rng.standard_normal(nodes.z.shape)
    incoming = rng.standard_normal(nodes.shape)
    # Only what u does to predictions is determined: the loss is linear in Δᵀu.
    incoming = nodes.delta @ (nodes.delta.T @ (incoming - incoming.mean(1, keepdims=True)))
    solution = nodes.solve(target, tol=1e-12)
    w = implicit_gradient(solution, nodes.scale, incoming)
    q, pull = nodes.shifted(solution.u), nodes.scaled.T @ w
    gradient = q * (pull - (pull * q).sum(1, keepdims=True))
    step = 1e-5
    ends = [
        Nodes(nodes.z + sign * step * change, nodes.delta, nodes.blocks).solve(target, tol=1e-12).u
        for sign in (1, -1)
    ]
    quotient = (incoming * (ends[0] - ends[1])).sum() / (2 * step)
    assert (gradient * change).sum() == pytest.approx(quotient, rel=1e-4, abs=1e-6)
