"""Propagation layers: personalised PageRank, and fair message passing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.graph import Adjacency, TensorCache, compute_dtype, normalise
from fairmp.groups import GroupOperator, group_operator, memberships, recode_signs
from fairmp.kernels import implementation, not_compiled, reference
from fairmp.nn import solvers
from fairmp.nn.decisions import On, close_decision_gap
from fairmp.nn.solvers import Solution, Strength

if TYPE_CHECKING:
    from fairmp.kernels.cuda.graphs import CUDAGraphCache

Solver = Literal["projection", "papc", "paper", "released"]
OwnSolver = Callable[..., Solution]
"""A function with the signature of :func:`fairmp.nn.solvers.papc`."""
Smoothing = float | Literal["learned"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)
PULLS: dict[Solver, solvers.Pull | None] = {
    "projection": None,
    "papc": solvers.coupling_gradient,
    "paper": solvers.coupling_gradient,
    "released": solvers.pull_of_dual,
}
MAX_RECORDED_NUMEL = 2**22  # logits up to which launching the steps costs more than running them


class PPR(nn.Module):
    r"""Plain propagation, by personalised PageRank.

    .. math::
        F^{k+1} = \gamma X + (1-\gamma) \tilde{A} F^k, \qquad F^0 = X, \quad
        \gamma = \frac{1}{1+\lambda_s},

    the iteration that minimises :math:`\frac{λ_s}{2} tr(F^⊤ \tilde{L} F) + ½\|F - X\|^2`, and the
    same as ``torch_geometric.nn.APPNP(K, alpha=gamma)``.

    With ``lambda_s="learned"`` each step has its own :math:`\gamma_k = \sigma(\theta_k)`, and
    :math:`\theta` (K) is a parameter of the layer: the graph is used as far as it helps.

    Args:
        K: number of steps.
        lambda_s: strength of the smoothing, or ``"learned"``.
        initial_lambda_s: where a learned strength starts.

    Shapes:
        - **input:** logits :math:`(n, C)`, edge indices :math:`(2, E)`
        - **output:** logits :math:`(n, C)`

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> PPR(K=1, lambda_s=1.0)(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), edge_index)
        tensor([[0.5000, 1.5000],
                [1.5000, 0.5000]])
    """

    def __init__(
        self, K: int = 5, lambda_s: Smoothing = 1.0, *, initial_lambda_s: float = 1.0
    ) -> None:
        super().__init__()
        self.K = check_integer("K", K, "give a number of steps, 1 or more")
        name, hint = "initial_lambda_s", "give a number above 0, where the learned strength starts"
        self.initial_lambda_s = check_number(name, initial_lambda_s, hint, low=0, above=True)
        self.lambda_s: Smoothing = "learned"
        self.theta: nn.Parameter | None = None
        if lambda_s == "learned":
            self.theta = nn.Parameter(torch.full((self.K,), -math.log(self.initial_lambda_s)))
        else:
            hint = "give a number, 0 or more, or 'learned'"
            self.lambda_s = check_number("lambda_s", lambda_s, hint, low=0)
        self._cache = TensorCache()
        self._recordings: CUDAGraphCache | None = None

    @property
    def gamma(self) -> tuple[float, ...]:
        """The skip weight of each step, γ = 1/(1+λ_s)."""
        with torch.no_grad():
            weights = solvers.skip_weights(self._strength(torch.float64), self.K)
        return tuple(float(weight) for weight in weights)

    @not_compiled
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        softmax_only: bool = False,
    ) -> Tensor:
        """Propagate; ``sens`` and ``population`` are accepted and ignored.

        With ``softmax_only`` logits are defined up to a constant per row.
        """
        dtype, x = x.dtype, _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)

        def loop(x: Tensor, lambda_s: Strength) -> Tensor:
            return solvers.propagate(
                x, adjacency, K=self.K, lambda_s=lambda_s, softmax_only=softmax_only
            )

        f = self._run(loop, x, (adjacency,), ("plain", softmax_only))
        return f.to(dtype)

    def states(
        self,
        x: Tensor,
        adjacency: Adjacency,
        sens: Tensor | None = None,
        group_duals: Tensor | None = None,
    ) -> list[Tensor]:
        """Return x and the state after each step (K+1 times n×C).

        With an earlier solution's ``group_duals`` each step is corrected by these.
        """
        duals = self._frozen_duals(x, sens, group_duals)
        return solvers.frozen_states(x, adjacency, duals, lambda_s=self._strength(x.dtype))

    def receive(
        self,
        x: Tensor,
        among: Tensor,
        from_known: Tensor,
        known_states: Sequence[Tensor],
        sens: Tensor | None = None,
        group_duals: Tensor | None = None,
    ) -> Tensor:
        """Propagate to new nodes, while known nodes stay as they were (:meth:`states`).

        Args:
            x: logits of the new nodes (m×C).
            among: their rows and columns of Ã, with self-loops (m×m).
            from_known: their rows of Ã for the known neighbours (m×k).
            known_states: what these were before each step (K times k×C).
            sens: groups of the new nodes (m), for the duals.
            group_duals: an earlier solution's; by default nothing is corrected.
        """
        return solvers.receive(
            x,
            among,
            from_known,
            known_states,
            self._frozen_duals(x, sens, group_duals),
            lambda_s=self._strength(x.dtype),
        )

    @property
    def _pull(self) -> solvers.Pull | None:
        """The function that turns duals into a gradient; ``None`` if duals are logit shifts."""
        return None

    def _frozen_duals(
        self, x: Tensor, sens: Tensor | None, group_duals: Tensor | None
    ) -> solvers.FrozenDuals:
        """What each step is corrected with: zeros without an earlier solution's duals."""
        membership, by_step = x.new_zeros(len(x), 1), x.new_zeros(self.K, 1, x.size(1))
        if group_duals is not None:
            assert sens is not None
            membership = memberships(_check_sens(x, sens), group_duals.size(1)).to(x.dtype)
            by_step = group_duals
        return solvers.FrozenDuals(membership, by_step, self._pull)

    def config(self) -> dict[str, object]:
        """The arguments that make an equal layer; what was learned is in its ``state_dict``."""
        learned = {} if self.theta is None else {"initial_lambda_s": self.initial_lambda_s}
        return {"K": self.K, "lambda_s": self.lambda_s, **learned}

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())

    def _strength(self, dtype: torch.dtype) -> float | Tensor:
        """λ_s, or e^-θ, so that γ = 1/(1+λ_s) = σ(θ)."""
        if self.theta is None:
            assert not isinstance(self.lambda_s, str)
            return self.lambda_s
        return torch.exp(-self.theta).to(dtype)

    def _run(
        self,
        loop: Callable[[Tensor, Strength], Tensor],
        x: Tensor,
        operators: tuple[Adjacency | GroupOperator, ...],
        options: tuple[object, ...],
    ) -> Tensor:
        """Run a loop over x and λ_s; on a GPU, replay it from a CUDA graph once that is recorded.

        A recording is of the same ``operators`` and of equal ``options``.
        """
        lambda_s = self._strength(x.dtype)
        # Nothing in a recording may wait for the host or for other processes.
        local = all(operator.is_local for operator in operators)
        recordable = x.is_cuda and x.numel() <= MAX_RECORDED_NUMEL and local
        if not recordable or implementation(x) is reference:
            return loop(x, lambda_s)
        from fairmp.kernels.cuda.graphs import CUDAGraphCache

        self._recordings = self._recordings or CUDAGraphCache()
        if isinstance(lambda_s, Tensor):
            return self._recordings.call(loop, (x, lambda_s), operators, options)
        return self._recordings.call(
            lambda x: loop(x, lambda_s), (x,), operators, (*options, lambda_s)
        )

    def _adjacency(
        self, x: Tensor, edge_index: Tensor | Adjacency, edge_weight: Tensor | None
    ) -> Adjacency:
        if not isinstance(edge_index, Adjacency):
            make = partial(normalise, edge_index, x.size(0), edge_weight, x.dtype)
            return self._cache.get((edge_index, edge_weight), ("adj", x.size(0), x.dtype), make)
        if edge_index.num_nodes != x.size(0):
            value = f"an adjacency of {edge_index.num_nodes} nodes for {x.size(0)} rows of x"
            raise InputError("edge_index", value, "normalise the graph x belongs to")
        if edge_weight is not None:
            hint = "give the weights to normalise()"
            raise InputError("edge_weight", "an Adjacency is weighted already", hint)
        return edge_index


class FMP(PPR):
    r"""Fair message passing: propagate, and remove the gap between groups inside the propagation.

    The paper's problem is

    .. math::
        \min_F \frac{λ_s}{2} tr(F^⊤ \tilde{L} F) + ½\|F - X\|^2
        + λ_f \|Δ\, \mathrm{softmax}(F)\|_1,

    with the operator :math:`Δ` from predictions to gaps between sensitive groups
    (:mod:`fairmp.groups`). Each step propagates, :math:`\mathrm{agg} = γX + (1-γ)\tilde{A}F`,
    :math:`γ = 1/(1+λ_s)`, and corrects:

    - ``"projection"`` (the default) shifts the logits of each group,
      :math:`F = \mathrm{agg} - τΔ^⊤u`, to the predictions closest to
      :math:`\mathrm{softmax}(\mathrm{agg}/τ)` in Kullback-Leibler divergence among those whose gap
      is within ``target``. On the population the gap of :math:`\mathrm{softmax}(F/τ)` is
      within ``target`` to 1e-4, whatever the network does.
    - ``"papc"`` runs the paper's primal-dual iteration with the step size its operator needs and
      a ``lambda_f`` that means the same at every size.
    - ``"paper"`` runs it as printed. It is almost inert: :math:`‖ΔΔ^⊤‖ ≈ 4/n`, and its step size
      assumes 2. Ask :meth:`solve` for a trace to see it.
    - ``"released"`` runs what the authors' public code computes, which differs from the print: no
      dual is carried from step to step, and the gradient is evaluated elsewhere
      (:func:`fairmp.nn.solvers.released`). Only nodes of the population are corrected.

    ============== ============================ ============ =============== =================
    solver         the gap after a step         lambda_f     target          who is corrected
    ============== ============================ ============ =============== =================
    ``projection`` within ``target``            –            the largest gap known group
    ``papc``       pulled towards 0             any size     –               known group
    ``paper``      almost unchanged             as printed   –               known group
    ``released``   pulled, once per step        as released  –               the population
    ============== ============================ ============ =============== =================

    References: `FMP: Toward Fair Graph Message Passing against Topology Bias
    <https://arxiv.org/abs/2202.04187>`_, the preprint whose steps are called "printed" here;
    published as *Chasing Fairness in Graphs: A GNN Architecture Perspective* (AAAI 2024). The
    authors' code is `zhimengj0326/FMP <https://github.com/zhimengj0326/FMP>`_.

    A node can be corrected only if its group is known or estimated: a node of unknown group (−1) is
    propagated and never shifted. The gap is the distance between the two groups farthest apart,
    class by class.

    Args:
        K: number of steps.
        lambda_s: strength of the smoothing, or ``"learned"``; see :class:`PPR`.
        lambda_f: strength of the pull towards parity (``papc``, ``paper`` and ``released``).
        solver: ``"projection"``, ``"papc"``, ``"paper"`` or ``"released"``; or a function of yours
            with the signature of :func:`fairmp.nn.solvers.papc`.
        target: the largest gap allowed, 0.02 for two points (``projection``).
        temperature: τ; the gap is that of :math:`\mathrm{softmax}(F/τ)`. With a small τ it is that
            of decisions rather than probabilities (``projection``).
        initial_lambda_s: where a learned strength starts.

    Half precision is computed in float32 and rounded at the end, which the bound of 1e-4 does not
    survive; :meth:`solve` does not round.

    Shapes:
        - **input:** logits :math:`(n, C)`, edge indices :math:`(2, E)`, groups :math:`(n)` or
          probabilities of groups :math:`(n, G)`
        - **output:** logits :math:`(n, C)`

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        >>> sens = torch.tensor([0, 0, 1, 1])
        >>> plain = PPR()(x, edge_index).softmax(1)[:, 1]
        >>> fair = FMP(target=0.02)(x, edge_index, sens).softmax(1)[:, 1]
        >>> for name, p in {"plain": plain, "fair": fair}.items():
        ...     print(f"{name}: mean of group 0 {p[:2].mean():.3f}, of group 1 {p[2:].mean():.3f}")
        plain: mean of group 0 0.621, of group 1 0.922
        fair: mean of group 0 0.804, of group 1 0.824
    """

    def __init__(
        self,
        K: int = 5,
        lambda_s: Smoothing = 1.0,
        lambda_f: float = 1.0,
        solver: Solver | OwnSolver = "projection",
        target: float = 0.0,
        temperature: float = 1.0,
        *,
        initial_lambda_s: float = 1.0,
    ) -> None:
        super().__init__(K, lambda_s, initial_lambda_s=initial_lambda_s)
        if not callable(solver):
            check_choice("solver", solver, SOLVERS)
        self.solver = solver
        self.lambda_f = check_number("lambda_f", lambda_f, "give a number, 0 or more", low=0)
        hint = "give the largest gap you accept, in [0, 1], 0.02 for 2 points"
        self.target = check_number("target", target, hint, low=0, high=1)
        self.temperature = self._check_temperature(temperature, is_set=temperature != 1)

    @not_compiled
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        temperature: float | None = None,
        decisions: bool = False,
        softmax_only: bool = False,
    ) -> Tensor:
        """Propagate fairly.

        Args:
            x: logits (n×C).
            edge_index: edges (2×E), a torch sparse tensor (n×n), or an
                :class:`~fairmp.graph.Adjacency`.
            sens: group of each node (n; −1 unknown), probabilities of groups (n×G), or a
                :class:`~fairmp.groups.GroupOperator`.
            population: nodes whose gap is closed (n, bool); all of known group by default. The
                correction applies to every node of known group.
            edge_weight: weight of each edge (E).
            temperature: another τ for this call (``projection``).
            decisions: close the gap of decisions after the last step, to within one node of the
                smallest group (:func:`fairmp.nn.decisions.close_decision_gap`).
            softmax_only: return logits that are defined up to a constant per row; two classes
                then propagate faster.
        """
        tau = self._temperature_of_call(temperature)
        logits = _logits(x)
        adjacency = self._adjacency(logits, edge_index, edge_weight)
        groups = self._group_operator(logits, sens, population)

        def loop(x: Tensor, lambda_s: Strength) -> Tensor:
            return self._solution(x, adjacency, groups, lambda_s, tau, softmax_only=softmax_only).f

        # Newton's method for several gaps or classes and a pseudo-inverse run on the host, which
        # nothing can record.
        several = x.size(1) > 2 or groups.binary is None
        on_host = self.solver == "released" or callable(self.solver)
        if on_host or (self.solver == "projection" and several):
            f = loop(logits, self._strength(logits.dtype))
        else:
            options = (self.solver, self.lambda_f, self.target, tau, softmax_only)
            f = self._run(loop, logits, (adjacency, groups), options)
        if decisions:
            f = close_decision_gap(f, groups, self.target).logits
        return f.to(x.dtype)

    def solve(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor | GroupOperator | None,
        population: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        temperature: float | None = None,
        decisions: bool = False,
        softmax_only: bool = False,
        trace: bool = False,
    ) -> Solution:
        """Propagate fairly, and return the duals, the residual and, if asked, a trace.

        The trace has the objective, the gap and the dual after each step. See :meth:`forward` for
        the arguments.
        """
        x = _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        groups = self._group_operator(x, sens, population)
        tau, lambda_s = self._temperature_of_call(temperature), self._strength(x.dtype)
        solution = self._solution(
            x, adjacency, groups, lambda_s, tau, softmax_only=softmax_only, trace=trace
        )
        if decisions:
            closed = close_decision_gap(solution.f, groups, self.target)
            solution = replace(solution, f=closed.logits, decisions=closed)
        return solution

    def _solution(
        self,
        x: Tensor,
        adjacency: Adjacency,
        groups: GroupOperator,
        lambda_s: Strength,
        temperature: float,
        *,
        softmax_only: bool,
        trace: bool = False,
    ) -> Solution:
        """Call the solver."""
        if self.solver == "projection":
            return solvers.projection(
                x,
                adjacency,
                groups,
                K=self.K,
                lambda_s=lambda_s,
                target=self.target,
                temperature=temperature,
                softmax_only=softmax_only,
                trace=trace,
            )
        loops: dict[str, OwnSolver] = {
            "papc": solvers.papc,
            "paper": solvers.paper,
            "released": solvers.released,
        }
        solve = self.solver if callable(self.solver) else loops[self.solver]
        return solve(
            x, adjacency, groups, K=self.K, lambda_s=lambda_s, lambda_f=self.lambda_f, trace=trace
        )

    def _temperature_of_call(self, temperature: float | None) -> float:
        return self.temperature if temperature is None else self._check_temperature(temperature)

    def frozen(
        self,
        x: Tensor,
        edge_index: Tensor | Adjacency,
        sens: Tensor,
        group_duals: Tensor,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Propagate with an earlier solution's ``group_duals``.

        The result for a node then does not depend on which others are predicted with it.
        """
        dtype, x = x.dtype, _logits(x)
        adjacency = self._adjacency(x, edge_index, edge_weight)
        return self.states(x, adjacency, sens, group_duals)[-1].to(dtype)

    @property
    def _pull(self) -> solvers.Pull | None:
        if callable(self.solver):
            value = "the duals of a function of yours have no meaning without it"
            raise InputError("solver", value, "predict all nodes at once ({mode='batch'})")
        return PULLS[self.solver]

    def config(self) -> dict[str, object]:
        """The arguments that make an equal layer."""
        names = ("lambda_f", "solver", "target", "temperature")
        return {**super().config(), **{name: getattr(self, name) for name in names}}

    def _group_operator(
        self, x: Tensor, sens: Tensor | GroupOperator | None, population: Tensor | None
    ) -> GroupOperator:
        if sens is None:
            value = "FMP needs the group of each node (-1 where unknown)"
            raise InputError("sens", value, "for plain propagation use PPR")
        if not isinstance(sens, GroupOperator):
            key = ("groups", x.size(0), x.dtype, x.device, self.training)
            make = partial(self._delta, x, sens, population)
            return self._cache.get((sens, population), key, make)
        if sens.population.numel() != x.size(0):
            value = f"a group operator of {sens.population.numel()} nodes for {x.size(0)} rows of x"
            raise InputError("sens", value, "make one from the groups of these nodes")
        if population is not None:
            hint = "give the population to group_operator()"
            raise InputError("population", "a GroupOperator has its own", hint)
        return sens

    def _delta(self, x: Tensor, sens: Tensor, population: Tensor | None) -> GroupOperator:
        absent: Literal["error", "ignore"] = "ignore" if self.training else "error"
        codes = _check_sens(x, sens)
        if not self.training:  # a batch of one group and of unknown ones looks the same
            codes = recode_signs(codes, "sens")
        groups = group_operator(codes, population, dtype=x.dtype, absent=absent)
        if self.training and bool((groups.column_spread == 0).any()):
            warnings.warn(
                "sens: a group has no node in the population of this batch, and no gap to it is "
                "closed; in eval mode this is an error. Groups are 0 and 1; -1 is unknown",
                stacklevel=4,
            )
        return groups

    def closes_decisions(self, on: On) -> bool:
        """Whether a prediction closes the gap of decisions: only ``projection`` does."""
        return on == "decisions" and self.solver == "projection"

    def _check_temperature(self, value: object, is_set: bool = True) -> float:
        hint = "give a number above 0, 1 for probabilities, 0.1 for decisions"
        temperature = check_number("temperature", value, hint, low=0, above=True)
        if self.solver != "projection" and is_set:
            text = f"{value!r} has no meaning for the solver {self.solver!r}"
            raise InputError("temperature", text, "leave it out, or use {solver='projection'}")
        return temperature


def _logits(x: object) -> Tensor:
    """Check the logits, and convert them to the type to compute in."""
    if not isinstance(x, Tensor):
        value = f"expected a Tensor, got {type(x).__name__}"
        raise InputError("x", value, "give torch.as_tensor(x)")
    if x.dim() != 2 or not x.is_floating_point() or x.size(1) < 2:
        hint = "give logits of shape (nodes, classes), two classes or more"
        raise InputError("x", f"{x.dtype} of shape {tuple(x.shape)}", hint)
    # On a GPU the host would have to wait for it. A sum is the fastest check: if it is finite, all
    # logits are; if not, it may have overflowed.
    if not x.is_cuda and not math.isfinite(x.detach().sum()) and not bool(torch.isfinite(x).all()):
        value = f"the logits of node {int((~torch.isfinite(x)).any(1).nonzero()[0])} are not finite"
        raise InputError("x", value, "check the network that made them")
    return x.to(compute_dtype(x.dtype))


def _check_sens(x: Tensor, sens: Tensor) -> Tensor:
    try:
        sens = torch.as_tensor(sens, device=x.device)
    except (TypeError, ValueError):
        raise InputError("sens", "no numbers", "give groups as 0…G−1, -1 where unknown") from None
    if sens.dim() == 0 or sens.size(0) != x.size(0):
        value = f"shape {tuple(sens.shape)} for {x.size(0)} nodes"
        raise InputError("sens", value, "give one group per node")
    return sens
