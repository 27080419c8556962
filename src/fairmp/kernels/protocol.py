"""The primitives that pass over every node or edge, and the choice of their implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor

from fairmp.errors import check_choice
from fairmp.kernels import reference
from fairmp.kernels.types import (
    CSR,
    NO_CLIP,
    AggregateGradient,
    BinaryGroups,
    BinaryProblem,
    BinaryRoot,
    Clip,
    Matrix,
)

MAX_TRANSPOSED_CLASSES = 16
COMPILERS = {"cpu": "numba", "cuda": "triton"}

P = ParamSpec("P")
T = TypeVar("T")

_chosen: ContextVar[str] = ContextVar("kernels", default="fastest")


class Kernels(Protocol):
    r"""A module of primitives: :mod:`~fairmp.kernels.reference`, or one compiled for a device.

    Codes (n, int32) give the group of each node, −1 for none. Tables with one row per group are
    float64, and so are sums over nodes.
    """

    __name__: str

    def aggregate(self, matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
        r"""Propagate: :math:`\gamma X + (1-\gamma) D_l A D_r F`; without x the second term."""

    def aggregate_vjp(
        self,
        matrix: Matrix,
        grad: Tensor,
        gamma: float,
        x: Tensor | None = None,
        propagated: Tensor | None = None,
    ) -> AggregateGradient:
        """The gradients of :meth:`aggregate`, given the transposed matrix.

        With x and what was propagated also ⟨grad, x − propagated⟩, which γ's gradient needs.
        """

    def gather_rows(self, x: Tensor, order: Tensor) -> Tensor:
        """The rows of x in another order."""

    def gather_margins(self, x: Tensor, order: Tensor, factor: float) -> Tensor:
        """The margins x₁ − x₀ (n×1) of rows in another order, times a factor."""

    def spread_margins(self, m: Tensor, order: Tensor, factor: float) -> Tensor:
        """Put (−factor·m, factor·m) in the rows ``order`` (n×2)."""

    def moments(self, z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
        r"""Sum :math:`q_i = \mathrm{softmax}((z_i - \mathrm{shift}_{g(i)}) / T)` by group.

        Returns in one vector :math:`T\sum_i \mathrm{logsumexp}`, the sums of q by group
        (groups·C), and those of :math:`q_c q_d`, with :math:`q_c(1-q_c)` on the diagonal
        (groups·C·C).
        """

    def binary_root(self, problem: BinaryProblem, start: float | Tensor | None) -> BinaryRoot:
        """Find the dual u of one gap between two classes, from a first guess."""

    def shift_margins(
        self, z: Tensor, groups: BinaryGroups, amount: float | Tensor, clip: Clip
    ) -> Tensor:
        """Reduce the margins of two classes (n×2 or n×1) by an amount times ``groups.column``.

        See :meth:`shift` for ``clip``.
        """

    def shift_margins_vjp(
        self, grad: Tensor, groups: BinaryGroups, slope: Tensor, factor: float | Tensor
    ) -> Tensor:
        """Add s·slope to the margins of grad, with s = factor · Σ ``groups.column``·margin(grad).

        Of two classes, the first gets minus, the second plus as much.
        """

    def shift(self, z: Tensor, codes: Tensor, table: Tensor, clip: Clip = NO_CLIP) -> Tensor:
        """Subtract the row of its group (groups×C) from each node's logits (n×C).

        A shift as large as the logits would be lost in their rounding: rows with logits above
        ``clip.limit`` are returned relative to their largest, and what is below it by more than
        ``clip.floor`` is clipped first, where the shift goes about as far.
        """

    def segment_sum(self, g: Tensor, codes: Tensor, groups: int) -> Tensor:
        """Sum rows (n×C) by group (groups×C)."""

    def softmax_vjp(
        self, g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
    ) -> Tensor:
        r"""Return :math:`g_i + q_i \odot (w_{g(i)} - \langle w_{g(i)}, q_i \rangle)`.

        That adds to g the gradient of :math:`T\langle w_{g(i)}, q_i \rangle`, with q as in
        :meth:`moments` and one row of w (groups×C) per group.
        """

    def linear_relu_backward(
        self, g: Tensor, h: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Gradients of a (n×H), their sum over rows (H), and the gradient of W (C×H).

        Given is the gradient of :math:`h W^\top` (n×C), where :math:`h = \max(a, 0)`.
        """

    def sparse_linear(self, matrix: CSR, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
        """Multiply S W + b (r×H), for a sparse S (r×d) and W (d×H); with a ReLU if asked."""


if TYPE_CHECKING:  # the type checker compares each module with the protocol
    from fairmp.kernels.cpu import primitives as cpu
    from fairmp.kernels.cuda import primitives as cuda

    IMPLEMENTATIONS: tuple[Kernels, ...] = (reference, cpu, cuda)


def implementation(like: Tensor) -> Kernels:
    """Return the primitives for a tensor's device and dtype."""
    if _chosen.get() == "reference" or like.dtype not in (torch.float32, torch.float64):
        return reference
    if like.is_cpu:  # a device's name would have to be made first
        return _compiled("cpu")
    return _compiled(like.device.type)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Use the ``"reference"`` primitives within the context, or the ``"fastest"`` available.

    Example:
        >>> with use("reference"):
        ...     implementation(torch.zeros(1)) is reference
        True
    """
    token = _chosen.set(check_choice("kernels", name, ("reference", "fastest")))
    try:
        yield
    finally:
        _chosen.reset(token)


class _NoGradient:
    """The context of a call without gradients."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep nothing."""


def apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    """Apply a differentiable function; in ``torch.no_grad()`` without what autograd costs."""
    if torch.is_grad_enabled():
        return cast("Tensor", function.apply(*args))
    return cast("Tensor", function.forward(_NoGradient(), *args))


def not_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """As ``torch.compiler.disable``, which takes a second to import the compiler it disables."""
    disabled: Callable[P, T] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call


@cache
def _compiled(device: str) -> Kernels:
    compiler = COMPILERS.get(device)
    if compiler is None or find_spec(compiler) is None:
        return reference
    try:
        return cast("Kernels", import_module(f"fairmp.kernels.{device}.primitives"))
    except ImportError:  # installed, but not for this version of Python or NumPy
        return reference
