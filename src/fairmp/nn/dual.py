r"""The projection's dual on an incidence: what is solved in one step, and how it answers.

Two kinds of systems differ in how a node's row of Δᵀ is known. Where every node has one group,
it is its group's column of M, and a pass over the nodes adds up a few numbers a group
(:class:`Cells`). Where nodes are shared between groups by probabilities, each has a row of its own
(:class:`Shares`). Two classes and one gap on a GPU make the dual one number that never leaves the
device (:class:`Binary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.groups import GroupOperator
from fairmp.kernels import implementation
from fairmp.kernels.newton import Array, Dual, Moments, respond, solve


def tolerance(dtype: torch.dtype) -> float:
    """How far from optimal, in units of the gap, a solution may be."""
    return 1e-12 if dtype == torch.float64 else 1e-7


class _Few:
    """What systems share whose dual is found on the host."""

    bounds = False  # whether logits absurdly far apart are seen to here
    z: Tensor
    shape: tuple[int, int]

    def solve(self, start: Dual | None, target: float) -> Dual:
        """Find the dual, from that of the step before."""
        guess = np.zeros(self.shape) if start is None else start.u
        return solve(self, guess, target, tolerance(self.z.dtype))  # type: ignore[arg-type]

    @staticmethod
    def duals(found: Sequence[Dual]) -> Tensor:
        """Several duals in one tensor (K×G'×C)."""
        return torch.from_numpy(np.stack([dual.u for dual in found]))


class Cells(_Few):
    """Nodes of one group each, at logits z/τ."""

    def __init__(self, z: Tensor, delta: GroupOperator, temperature: float) -> None:
        assert delta.codes is not None
        assert delta.measured_codes is not None
        self.z, self.delta, self.temperature = z.detach(), delta, temperature
        self.codes: Tensor = delta.measured_codes
        self.reach: Tensor = delta.codes
        self.kernels = implementation(z)
        rows = delta.rows.cpu().numpy()
        self.scale = np.maximum(np.abs(rows).max(1), np.finfo(np.float64).tiny)
        self.rows = rows / self.scale[:, None]
        self.shape = (rows.shape[0], z.size(1))

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""
        tau, classes = self.temperature, self.shape[1]
        flat = self.kernels.moments(
            self.z, self.codes, self._table(tau * (self.rows.T @ v)), tau * temperature
        )
        numbers = self.delta.total(flat).cpu().numpy()
        size = self.rows.shape[1] * classes
        sums = numbers[1 : 1 + size].reshape(-1, classes)
        second = numbers[1 + size :].reshape(-1, classes, classes)
        # The sums of q_c·q_d are minus the curvature between classes, those of q_c(1−q_c) within.
        second = np.where(np.eye(classes, dtype=bool), second, -second) / temperature
        hessian = np.einsum("ag,bg,gcd->acbd", self.rows, self.rows, second)
        count = self.shape[0] * classes
        return Moments(
            float(numbers[0]) / tau,
            (self.rows @ sums).ravel(),
            np.ascontiguousarray(hessian).reshape(count, count),
        )

    def gap(self, root: float) -> tuple[float, float]:
        """Pass over the nodes at the dual (−root/2, root/2), of one gap and two classes."""
        tau, row = self.temperature, self.rows[0]
        v = np.array([[-root / 2, root / 2]])
        flat = self.kernels.moments(self.z, self.codes, self._table(tau * (self.rows.T @ v)), tau)
        numbers = self.delta.total(flat).cpu().numpy()
        first = 1 + 2 * row.size
        return float(row @ numbers[2:first:2]), float((row * row) @ numbers[first::4])

    def width(self) -> float:
        """How far apart the logits of a node in the population lie at most."""
        widest = self.delta.largest(self.kernels.extremes(self.z, self.codes))
        return float(widest[0]) / self.temperature

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        one = torch.ones(self.z.size(0), 1, dtype=self.z.dtype, device=self.z.device)
        sums = self.kernels.segment_sum(one, self.codes, self.rows.shape[1])
        counts = self.delta.total(sums).flatten().cpu().numpy()
        return (self.rows * counts) @ self.rows.T

    def shifted(self, dual: Dual) -> Tensor:
        """The logits minus what the dual says to each node of known group: τΔᵀu."""
        table = self._table(self.temperature * (self._unscaled().T @ dual.u))
        return self.kernels.shift(self.z, self.reach, table)

    def pull_back(self, grad: Tensor, dual: Dual, grad_u: Tensor | None) -> Tensor:
        """From the gradient of a loss in the shifted logits (and in u) to that in the logits."""
        rows, tau = self._unscaled(), self.temperature
        sums = self.kernels.segment_sum(grad, self.reach, rows.shape[1])
        incoming = -tau * (rows @ self.delta.total(sums).cpu().numpy())
        if grad_u is not None:
            incoming = incoming + grad_u.double().cpu().numpy()
        w = respond(dual, self.scale, incoming)
        if not w.any():
            return grad
        shift = self._table(tau * (rows.T @ dual.u))
        pull = self._table(self.rows.T @ w / tau)
        return self.kernels.softmax_vjp(grad, self.z, self.codes, shift, tau, pull)

    def _unscaled(self) -> Array:
        return self.rows * self.scale[:, None]

    def _table(self, values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.z.device)


class Shares(_Few):
    """Nodes shared between groups, at logits z/τ; in plain torch."""

    def __init__(self, z: Tensor, delta: GroupOperator, temperature: float) -> None:
        self.z, self.delta, self.temperature = z.detach(), delta, temperature
        # Δ in full precision: the method's tolerance lies below what float32 can say of 1/n.
        spread = delta.measured.double() @ delta.rows.T
        self.inside = (spread != 0).any(1)
        spread = spread[self.inside]
        widest = spread.abs().amax(0) if spread.size(0) else spread.new_zeros(spread.size(1))
        scale = delta.largest(widest).clamp_min(torch.finfo(torch.float64).tiny)
        self.scale = scale.cpu().numpy()
        self.spread = spread / scale
        self.logits = self.z[self.inside].double() / temperature
        self.shape = (spread.size(1), z.size(1))

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""
        rows, classes = self.shape
        value, q = self._at(v, temperature)
        spread = (self.spread.unsqueeze(2) * q.unsqueeze(1)).flatten(1)
        product = (spread.T @ spread).view(rows, classes, rows, classes)
        # q − q² as a sum over the other classes, which keeps its digits where q is near 1.
        other = product * (1 - torch.eye(classes, dtype=q.dtype, device=q.device)).unsqueeze(1)
        hessian = torch.diag_embed(other.sum(3).permute(0, 2, 1)).permute(0, 2, 1, 3) - other
        small = torch.cat([value.view(1), spread.sum(0), hessian.reshape(-1) / temperature])
        numbers, size = self.delta.total(small).cpu().numpy(), rows * classes
        return Moments(
            float(numbers[0]), numbers[1 : 1 + size], numbers[1 + size :].reshape(size, size)
        )

    def gap(self, root: float) -> tuple[float, float]:
        """Pass over the nodes at the dual (−root/2, root/2), of one gap and two classes."""
        found = self.moments(np.array([[-root / 2, root / 2]]), 1.0)
        return float(found.gradient[1]), float(found.hessian[1, 1])

    def width(self) -> float:
        """How far apart the logits of a node in the population lie at most."""
        apart = self.logits.amax(1) - self.logits.amin(1)
        widest = apart.max() if apart.numel() else apart.new_zeros(())
        return float(self.delta.largest(widest.view(1)))

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        return self.delta.total(self.spread.T @ self.spread).cpu().numpy()

    def shifted(self, dual: Dual) -> Tensor:
        """The logits minus what the dual says to each node of known group: τΔᵀu."""
        u = torch.from_numpy(dual.u).to(self.z.device, self.z.dtype)
        return self.z - self.temperature * self.delta.shift(u)

    def pull_back(self, grad: Tensor, dual: Dual, grad_u: Tensor | None) -> Tensor:
        """From the gradient of a loss in the shifted logits (and in u) to that in the logits."""
        sums = self.delta.total(self.delta.membership.double().T @ grad.double())
        incoming = -self.temperature * (self.delta.rows @ sums).cpu().numpy()
        if grad_u is not None:
            incoming = incoming + grad_u.double().cpu().numpy()
        w = respond(dual, self.scale, incoming)
        if not w.any():
            return grad
        _, q = self._at(dual.u * self.scale[:, None], 1.0)
        pull = self.spread @ torch.from_numpy(w).to(self.z.device)
        result = grad.double()
        result[self.inside] += q * (pull - (pull * q).sum(1, keepdim=True)) / self.temperature
        return result.to(grad.dtype)

    def _at(self, v: Array, temperature: float) -> tuple[Tensor, Tensor]:
        logits = (self.logits - self.spread @ torch.from_numpy(v).to(self.z.device)) / temperature
        return temperature * logits.logsumexp(1).sum(), logits.softmax(1)


class Root:
    """A dual that is one number, where it was found."""

    def __init__(self, state: Tensor, scale: Tensor) -> None:
        self.state, self.scale = state, scale

    @property
    def residual(self) -> float:
        """How far the gap is from what optimality asks."""
        return float(self.state[1])

    @property
    def passes(self) -> int:
        """Passes over the nodes."""
        return int(self.state[2])


class Binary:
    """Two classes and one gap between nodes of one group each, on the device alone."""

    bounds = True

    def __init__(self, z: Tensor, delta: GroupOperator, temperature: float) -> None:
        self.z, self.delta, self.temperature = z.detach(), delta, temperature
        self.kernels: Any = implementation(z)
        self.row = delta.rows[0]

    def solve(self, start: Root | None, target: float) -> Root:
        """Find the dual, from that of the step before."""
        guess = self.row.new_zeros(1) if start is None else start.state[:1]
        scale = self.row.abs().max() if start is None else start.scale
        state = self.kernels.binary_root(
            self.z,
            self.delta.measured_codes,
            self.row,
            guess,
            target,
            tolerance(self.z.dtype),
            self.temperature,
        )
        self.target = target
        return Root(state, scale)

    @staticmethod
    def duals(found: Sequence[Root]) -> Tensor:
        """Several duals in one tensor (K×1×2)."""
        roots = torch.stack([root.state[0] for root in found]) / found[0].scale
        return torch.stack([-roots / 2, roots / 2], 1).unsqueeze(1)

    def shifted(self, dual: Root) -> Tensor:
        """The logits minus what the dual says to each node of known group: τΔᵀu."""
        return self.kernels.binary_shift(
            self.z, self.delta.codes, self.row, dual.state, self.temperature
        )

    def pull_back(self, grad: Tensor, dual: Root, grad_u: Tensor | None) -> Tensor:
        """From the gradient of a loss in the shifted logits (and in u) to that in the logits."""
        outer = None
        if grad_u is not None:
            outer = ((grad_u[0, 1] - grad_u[0, 0]).double() / (2 * dual.scale)).view(1)
        return self.kernels.binary_vjp(
            grad,
            self.z,
            self.delta.measured_codes,
            self.delta.codes,
            self.row,
            dual.state,
            self.target,
            self.temperature,
            outer,
        )


Projected = Cells | Shares | Binary
Found = Dual | Root


def system(x: Tensor, delta: GroupOperator) -> type[Projected]:
    """The kind of system that logits of this shape, on this device, make."""
    if delta.codes is None:
        return Shares
    # Summing over machines is for the host to do.
    here = type(delta) is GroupOperator
    small = delta.rows.size(0) == 1 and x.size(1) == 2
    return Binary if here and small and hasattr(implementation(x), "binary_root") else Cells
