"""Primitives that pass over every node or edge, the choice of their implementation, autograd."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.errors import check_choice
from fairmp.kernels import reference
from fairmp.kernels.reference import Matrix

MAX_TRANSPOSED_CLASSES = 16
COMPILERS = {"cpu": "numba", "cuda": "triton"}

P = ParamSpec("P")
T = TypeVar("T")

_chosen: ContextVar[str] = ContextVar("kernels", default="fastest")


class Kernels(Protocol):
    r"""A module of primitives: :mod:`~fairmp.kernels.reference`, or one compiled for a device.

    Codes (n, int32) give the group of each node, −1 for none. Tables with one row per group are
    float64, and so are sums over nodes. A compiled module may have optional members as well:
    ``fused_projection``, ``fused_propagation`` and ``sparse_linear`` on the CPU, and on CUDA
    ``binary_root``, ``binary_shift`` and ``binary_vjp``.
    """

    __name__: str

    def aggregate(self, matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
        r"""Propagate: :math:`\gamma X + (1-\gamma) D_l A D_r F`; the product alone without x."""

    def moments(self, z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
        r"""Sum :math:`q_i = \mathrm{softmax}((z_i - \mathrm{shift}_{g(i)}) / T)` by group.

        Returns in one vector :math:`T\sum_i \mathrm{logsumexp}`, the sums of q by group
        (groups·C), and those of :math:`q_c q_d`, with :math:`q_c(1-q_c)` on the diagonal
        (groups·C·C).
        """

    def shift(self, z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
        """Subtract the shift of its group (groups×C) from each node's logits (n×C)."""

    def segment_sum(self, g: Tensor, codes: Tensor, groups: int) -> Tensor:
        """Sum rows (n×C) by group (groups×C)."""

    def softmax_vjp(
        self, g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
    ) -> Tensor:
        r"""Return :math:`g_i + q_i \odot (w_{g(i)} - \langle w_{g(i)}, q_i \rangle)`.

        That adds to g the gradient of :math:`T\langle w_{g(i)}, q_i \rangle`, with q as in
        :meth:`moments` and one row of w (groups×C) per group.
        """

    def coupling_backward(
        self, g: Tensor, z: Tensor, codes: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of z and w, given that of ``softmax_vjp``'s result at T = 1 without shifts."""

    def linear_relu_backward(
        self, g: Tensor, h: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Gradients of a (n×H), their sum over rows (H), and the gradient of W (C×H).

        Given is the gradient of :math:`h W^\top` (n×C), where :math:`h = \max(a, 0)`.
        """


if TYPE_CHECKING:  # the type checker compares each module with the protocol
    from fairmp.kernels.cpu import primitives as cpu
    from fairmp.kernels.cuda import primitives as cuda

    IMPLEMENTATIONS: tuple[Kernels, ...] = (reference, cpu, cuda)


def implementation(like: Tensor) -> Kernels:
    """Return the primitives for a tensor's device and dtype."""
    if _chosen.get() == "reference" or like.dtype not in (torch.float32, torch.float64):
        return reference
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


def softmax(f: Tensor) -> Tensor:
    """Softmax of each row, as ``f.softmax(1)``.

    For a handful of classes torch spends most of ``softmax(1)`` on overhead per row; along the
    other dimension it vectorises over the nodes.
    """
    return f.softmax(1) if f.size(1) > MAX_TRANSPOSED_CLASSES else f.T.contiguous().softmax(0).T


def relative_to_largest(z: Tensor) -> Tensor:
    """Subtract each row's largest logit, as a constant: softmax does not change."""
    return z - z.detach().amax(1, keepdim=True)


@not_compiled
def segment_sum(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum the rows of ``values`` (n×C) by group (groups×C); a code of −1 does not count."""
    return _SegmentSum.apply(values, codes, groups)


@not_compiled
def gather(table: Tensor, codes: Tensor) -> Tensor:
    """Row of ``table`` of each node's group (n×C); zeros where the code is −1."""
    return _Gather.apply(table, codes)


@not_compiled
def spmm(matrix: Matrix, transposed: Matrix, x: Tensor) -> Tensor:
    """Multiply a matrix with ``x`` (n×C); its transpose is for the gradient."""
    return _SpMM.apply(x, matrix, transposed)


def shift(z: Tensor, table: Tensor, codes: Tensor) -> Tensor:
    """Subtract the row of ``table`` of each node's group (n×C); nothing where the code is −1."""
    return _Shift.apply(z.contiguous(), table, codes)


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, codes: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(codes)
        kernels = implementation(values)
        return kernels.segment_sum(values.contiguous(), codes, groups).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gather(grad, *ctx.saved_tensors), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, codes: Tensor) -> Tensor:
        ctx.save_for_backward(codes)
        ctx.groups = table.size(0)
        padded = torch.cat([table, table.new_zeros(1, table.size(1))])
        return padded[torch.where(codes < 0, ctx.groups, codes)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (codes,) = ctx.saved_tensors
        return segment_sum(grad, codes, ctx.groups), None


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Matrix, transposed: Matrix) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return implementation(x).aggregate(matrix, x.contiguous(), None, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return spmm(ctx.transposed, ctx.matrix, grad), None, None


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, table: Tensor, codes: Tensor) -> Tensor:
        ctx.num_groups = table.size(0)
        ctx.save_for_backward(codes)
        return implementation(z).shift(z, codes, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (codes,) = ctx.saved_tensors
        sums = implementation(grad).segment_sum(grad.contiguous(), codes, ctx.num_groups)
        return grad, -sums, None
