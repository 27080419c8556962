"""Propagations: layers without parameters that turn each node's logits into its neighbourhood's."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fairmp.errors import InputError
from fairmp.graph import Adjacency, AdjacencyCache, compute_dtype
from fairmp.groups import GroupOperator, group_operator, memberships
from fairmp.kernels.cuda.graphs import CUDAGraphCache
from fairmp.nn import functional as solvers
from fairmp.nn.functional import Solution

Solver = Literal["projection", "papc", "paper"]
Temperature = float | Literal["decisions", "roughly decisions"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
DECISIONS = ("decisions", "roughly decisions")


class PPR(nn.Module):
    r"""Plain propagation, by personalised PageRank.

    .. math::
        F^{k+1} = \gamma X + (1-\gamma) \tilde{A} F^k, \qquad F^0 = X, \quad
        \gamma = \frac{1}{1+\lambda_s},

    the iteration that minimises :math:`\frac{λ_s}{2} tr(F^⊤ \tilde{L} F) + ½\|F - X\|^2`, and the
    same as ``torch_geometric.nn.APPNP(K, alpha=gamma)``.

    Args:
        K: number of steps.
        lambda_s: strength of the smoothing.

    Shapes:
        - **input:** logits :math:`(n, C)`, edge indices :math:`(2, E)`
        - **output:** logits :math:`(n, C)`

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> PPR(K=1, lambda_s=1.0)(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), edge_index)
        tensor([[0.5000, 1.5000],
                [1.5000, 0.5000]])
    """

    needs_groups = False

    def __init__(self, K: int = 5, lambda_s: float = 1.0) -> None:
        super().__init__()
        if isinstance(K, bool) or not isinstance(K, int) or K < 1:
            raise InputError(
                "K", f"{K!r} is not a number of steps", "give a whole number, 1 or more"
            )
        self.K = K
        self.lambda_s = _not_negative("lambda_s", lambda_s)
        self._adjacencies = AdjacencyCache()
        self._recordings = CUDAGraphCache()

    @torch.compiler.disable
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Propagate; ``sens`` and ``population`` are accepted and not looked at."""
        given, x = x.dtype, _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        return solvers.propagate(
            x, adjacency, K=self.K, lambda_s=self.lambda_s, recordings=self._recordings
        ).to(given)

    def config(self) -> dict[str, object]:
        """The arguments that make an equal propagation."""
        return {"K": self.K, "lambda_s": self.lambda_s}

    @torch.compiler.disable
    def _adjacency(
        self, x: Tensor, edge_index: Tensor | Adjacency, edge_weight: Tensor | None
    ) -> Adjacency:
        if not isinstance(edge_index, Adjacency):
            return self._adjacencies.get(edge_index, x.size(0), edge_weight, x.dtype)
        if edge_index.num_nodes != x.size(0):
            raise InputError(
                "edge_index",
                f"an adjacency of {edge_index.num_nodes} nodes for {x.size(0)} rows of x",
                "normalise the graph x belongs to",
            )
        if edge_weight is not None:
            raise InputError(
                "edge_weight", "an Adjacency is weighted already", "give the weights to normalise()"
            )
        return edge_index

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.config().items())})"


class FMP(PPR):
    r"""Fair message passing: propagate, and take the groups' gap out inside the propagation.

    The paper's problem is

    .. math::
        \min_F \frac{λ_s}{2} tr(F^⊤ \tilde{L} F) + ½\|F - X\|^2
        + λ_f \|Δ\, \mathrm{softmax}(F)\|_1,

    with the incidence :math:`Δ` of the sensitive groups (:mod:`fairmp.groups`). Each step
    propagates, :math:`\mathrm{agg} = γX + (1-γ)\tilde{A}F`, :math:`γ = 1/(1+λ_s)`, and corrects:

    - ``"projection"`` (the default) replaces the pull by a promise. It shifts the logits of each
      group, :math:`F = \mathrm{agg} - τΔ^⊤u`, to the predictions closest to
      :math:`\mathrm{softmax}(\mathrm{agg}/τ)` in Kullback-Leibler divergence among those with
      :math:`|Δ Q| ≤` ``target``. On the population the gap of :math:`\mathrm{softmax}(F/τ)` is
      within ``target`` to 1e-4, whatever the network does.
    - ``"papc"`` runs the paper's primal-dual iteration with the step size its operator needs and
      a ``lambda_f`` that means the same at every size.
    - ``"paper"`` runs it as printed. It hardly moves: :math:`‖ΔΔ^⊤‖ ≈ 4/n`, and its step size takes
      that for 2. Ask :meth:`solve` for a trace to see it.

    The group of a node must be known, or estimated, to correct it: a node whose group is unknown
    (−1) is propagated and never shifted. For more than two groups the gap is each group's mean
    minus the population's, class by class.

    Args:
        K: number of steps.
        lambda_s: strength of the smoothing.
        lambda_f: strength of the pull towards parity (``papc`` and ``paper``).
        solver: ``"projection"``, ``"papc"`` or ``"paper"``.
        target: the largest gap allowed, 0.02 for two points (``projection``).
        temperature: τ; the gap is that of :math:`\mathrm{softmax}(F/τ)`. A small τ speaks of
            decisions rather than probabilities (``projection``).

    Half precision is computed in float32 and rounded back at the end, which the promise of 1e-4
    does not survive; :meth:`solve` does not round.

    Shapes:
        - **input:** logits :math:`(n, C)`, edge indices :math:`(2, E)`, groups :math:`(n)` or
          probabilities of groups :math:`(n, G)`
        - **output:** logits :math:`(n, C)`

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        >>> sens = torch.tensor([0, 0, 1, 1])
        >>> p = FMP(target=0.02)(x, edge_index, sens).softmax(1)[:, 1]
        >>> bool((p[2:].mean() - p[:2].mean()).abs() < 0.0201)
        True
    """

    needs_groups = True

    def __init__(
        self,
        K: int = 5,
        lambda_s: float = 1.0,
        lambda_f: float = 1.0,
        solver: Solver = "projection",
        target: float = 0.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(K, lambda_s)
        if solver not in SOLVERS:
            names = ", ".join(map(repr, SOLVERS))
            raise InputError("solver", f"{solver!r} is unknown", f"choose one of {names}")
        if not (_is_number(target) and 0 <= target <= 1):
            raise InputError(
                "target",
                f"{target!r} is outside [0, 1]",
                "give the largest gap you accept, 0.02 for two points",
            )
        _check_temperature(temperature)
        self.lambda_f = _not_negative("lambda_f", lambda_f)
        self.solver = solver
        self.target = float(target)
        self.temperature = float(temperature)

    @torch.compiler.disable
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Propagate fairly.

        Args:
            x: logits (n×C).
            edge_index: edges (2×E), a torch sparse tensor (n×n), or an
                :class:`~fairmp.graph.Adjacency`.
            sens: group of each node (n; −1 unknown), probabilities of groups (n×G), or an
                :class:`~fairmp.groups.GroupOperator` made once for many calls.
            population: nodes whose gap is closed (n, bool); all of known group by default. The
                correction reaches every node of known group.
            edge_weight: weight of each edge (E).
            temperature: another τ for this call, or ``"decisions"`` for the largest τ at which
                decisions keep the target (:func:`fairmp.nn.functional.decisions`; ``"roughly
                decisions"`` searches less).
        """
        solution = self.solve(x, edge_index, sens, population, edge_weight, temperature=temperature)
        return solution.f.to(x.dtype)

    def solve(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        temperature: Temperature | None = None,
        trace: bool = False,
    ) -> Solution:
        """Propagate fairly, and return the duals, the residual and, if asked, a trace.

        The trace has the objective, the gap and the dual after each step.
        """
        if temperature is not None and temperature not in DECISIONS:
            _check_temperature(temperature)
        x = _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        delta = self._incidence(x, sens, population)
        if self.solver == "projection" and isinstance(temperature, str):
            return solvers.decisions(
                x,
                adjacency,
                delta,
                K=self.K,
                lambda_s=self.lambda_s,
                target=self.target,
                rough=temperature == "roughly decisions",
            )
        if self.solver == "projection":
            return solvers.projection(
                x,
                adjacency,
                delta,
                K=self.K,
                lambda_s=self.lambda_s,
                target=self.target,
                temperature=self.temperature if temperature is None else temperature,
                trace=trace,
                recordings=self._recordings,
            )
        run = solvers.papc if self.solver == "papc" else solvers.paper
        return run(
            x,
            adjacency,
            delta,
            K=self.K,
            lambda_s=self.lambda_s,
            lambda_f=self.lambda_f,
            trace=trace,
            recordings=self._recordings,
        )

    def frozen(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor,
        group_duals: Tensor,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Propagate with an earlier solution's ``group_duals``.

        A node's result then does not depend on which others are predicted with it.
        """
        given, x = x.dtype, _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        sens = _one_a_node(x, torch.as_tensor(sens, device=x.device))
        return solvers.frozen(
            x,
            adjacency,
            memberships(sens, group_duals.size(1)).to(x.dtype),
            group_duals,
            lambda_s=self.lambda_s,
            projected=self.solver == "projection",
        ).to(given)

    def config(self) -> dict[str, object]:
        """The arguments that make an equal propagation."""
        return {
            **super().config(),
            "lambda_f": self.lambda_f,
            "solver": self.solver,
            "target": self.target,
            "temperature": self.temperature,
        }

    @torch.compiler.disable
    def _incidence(
        self, x: Tensor, sens: Tensor | GroupOperator | None, population: Tensor | None
    ) -> GroupOperator:
        if isinstance(sens, GroupOperator):
            _check_incidence(x, sens, population)
            return sens
        if sens is None:
            raise InputError(
                "sens",
                "FMP needs the group of each node (-1 where unknown)",
                "for plain propagation use PPR",
            )
        sens = _one_a_node(x, torch.as_tensor(sens, device=x.device))
        return group_operator(sens, population, dtype=x.dtype)


@torch.compiler.disable
def _logits(x: Tensor) -> Tensor:
    """The logits, checked, in a type to compute in."""
    if not isinstance(x, Tensor):
        raise InputError("x", f"{type(x).__name__} is no tensor", "give torch.as_tensor(x)")
    if x.dim() != 2 or not x.is_floating_point() or x.size(1) < 2:
        raise InputError(
            "x",
            f"expected logits of shape (nodes, classes) with two classes or more, got {x.dtype} "
            f"of shape {tuple(x.shape)}",
        )
    # On a GPU the host would have to wait for it: there, what is not finite stays so.
    # A sum is the fastest look: where it is finite all of it is, and where not it may be too large.
    if not x.is_cuda and not math.isfinite(x.detach().sum()) and not bool(torch.isfinite(x).all()):
        node = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError(
            "x", f"the logits of node {node} are not finite", "look at what makes them"
        )
    return x.to(compute_dtype(x.dtype))


def _one_a_node(x: Tensor, sens: Tensor) -> Tensor:
    if sens.dim() == 0 or sens.size(0) != x.size(0):
        raise InputError(
            "sens", f"shape {tuple(sens.shape)} for {x.size(0)} nodes", "give one group a node"
        )
    return sens


def _check_incidence(x: Tensor, delta: GroupOperator, population: Tensor | None) -> None:
    if delta.population.numel() != x.size(0):
        raise InputError(
            "sens",
            f"an incidence of {delta.population.numel()} nodes for {x.size(0)} rows of x",
            "make it of the groups of these nodes",
        )
    if population is not None:
        raise InputError(
            "population", "an GroupOperator has its own", "give the population to group_operator()"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_temperature(value: object) -> None:
    if not (_is_number(value) and value > 0):  # type: ignore[operator]
        raise InputError(
            "temperature",
            f"{value!r} is not a temperature",
            "give a number above 0, 1 for probabilities, 0.1 for decisions",
        )


def _not_negative(name: str, value: float) -> float:
    if not (_is_number(value) and value >= 0):
        raise InputError(name, f"{value!r} is not a strength", "give a finite number, 0 or more")
    return float(value)
