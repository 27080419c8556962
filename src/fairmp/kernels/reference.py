"""The primitives in plain torch: what compiled kernels must equal, and the fallback.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from fairmp.kernels.root import MAX_MARGIN, find_root
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

MAX_ONE_HOT = 2**22  # numbers

with warnings.catch_warnings():
    # torch warns once per process that CSR tensors are in beta; users can do nothing about it.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(
        torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), size=(1, 1)
    )


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    (row, col, weight), left, right = matrix.rows, matrix.left, matrix.right
    value = torch.ones(col.numel(), dtype=f.dtype, device=f.device) if weight is None else weight
    # torch requires row pointers and columns of the same integer type.
    values = torch.sparse_csr_tensor(
        row.to(col.dtype) if row.dtype != col.dtype and col.dtype == torch.int64 else row,
        col.to(row.dtype),
        value.to(f.dtype),
        size=(row.numel() - 1, f.size(0)),
    )
    product = (values @ (right.unsqueeze(1) * f).contiguous()) * left.unsqueeze(1)
    product = (1 - gamma) * product
    return (product if x is None else gamma * x + product).contiguous()


def aggregate_vjp(
    matrix: Matrix,
    grad: Tensor,
    gamma: float,
    x: Tensor | None = None,
    propagated: Tensor | None = None,
) -> AggregateGradient:
    away: float | Tensor = 0.0
    if x is not None and propagated is not None:
        away = (grad * (x - propagated)).sum(dtype=torch.float64)
    return AggregateGradient(aggregate(matrix, grad, None, gamma), gamma * grad, away)


def gather_rows(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(0, order)


def gather_margins(x: Tensor, order: Tensor, factor: float) -> Tensor:
    return (factor * (x[:, 1:] - x[:, :1])).index_select(0, order)


def spread_margins(m: Tensor, order: Tensor, factor: float) -> Tensor:
    out = m.new_empty(m.size(0), 2)
    out[order] = torch.cat([-factor * m, factor * m], 1)
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    groups, classes = shift.shape
    z, codes = _counted(z, codes)
    logits = (z.double() - shift[codes]) / temperature
    value = temperature * logits.logsumexp(1).sum()
    q = logits.softmax(1)
    sums = _sum_by_group(q, codes, groups)
    products = q.unsqueeze(2) * q.unsqueeze(1)
    # q − q² as a sum over the other classes: the difference cancels where q is near 1.
    off = products * (1 - torch.eye(classes, dtype=q.dtype, device=q.device))
    second = _sum_by_group((off + torch.diag_embed(off.sum(2))).flatten(1), codes, groups)
    return torch.cat([value.view(1), sums.flatten(), second.flatten()])


def binary_root(problem: BinaryProblem, start: float | Tensor | None) -> BinaryRoot:
    groups = problem.groups
    rows = problem.z.index_select(0, groups.nodes).double()
    margin = (rows[:, 0] if rows.size(1) == 1 else rows[:, 1] - rows[:, 0]) / problem.temperature
    margin = margin.clamp(-MAX_MARGIN, MAX_MARGIN)
    delta = groups.weight.repeat_interleave(groups.starts.diff())
    slope = torch.empty_like(margin)

    def gap_at(w: float) -> tuple[float, float]:
        t = margin - delta * w
        torch.mul(delta * t.sigmoid(), (-t).sigmoid(), out=slope)
        gap, curvature = float((delta * t.sigmoid()).sum()), float((delta * slope).sum())
        return groups.scale * gap, groups.scale * curvature

    width = float(margin.abs().max()) if margin.numel() else 0.0
    guess = 0.0 if start is None else groups.scale * float(start)
    root = find_root(gap_at, guess, width, problem.target, problem.tolerance)
    curvature = root.curvature / groups.scale
    slopes = torch.zeros(len(problem.z), dtype=problem.z.dtype, device=problem.z.device)
    slopes[groups.nodes.long()] = slope.to(slopes.dtype)
    return BinaryRoot(root.w / groups.scale, root.residual, float(root.passes), curvature, slopes)


def shift_margins(z: Tensor, groups: BinaryGroups, amount: float | Tensor, clip: Clip) -> Tensor:
    by = (amount * groups.column).unsqueeze(1)
    return _shift_rows(z, by if z.size(1) == 1 else torch.cat([by / -2, by / 2], 1), clip)


def shift_margins_vjp(
    grad: Tensor, groups: BinaryGroups, slope: Tensor, factor: float | Tensor
) -> Tensor:
    margin = grad[:, 0] if grad.size(1) == 1 else grad[:, 1] - grad[:, 0]
    pull = factor * (groups.column * margin).sum()
    added = (pull * slope.double()).unsqueeze(1)
    return (grad + (added if grad.size(1) == 1 else torch.cat([-added, added], 1))).to(grad.dtype)


def shift(z: Tensor, codes: Tensor, table: Tensor, clip: Clip = NO_CLIP) -> Tensor:
    return _shift_rows(z, _rows(table, codes), clip)


def _shift_rows(z: Tensor, by: Tensor, clip: Clip) -> Tensor:
    exact, reach = z.double(), by.abs().amax(1, keepdim=True)
    # Clipping makes a difference only where the shift goes about as far.
    far = reach > clip.floor / 4
    if z.size(1) == 1:
        return (torch.where(far, exact.clamp(-clip.floor, clip.floor), exact) - by).to(z.dtype)
    extreme = (z.abs().amax(1, keepdim=True) > clip.limit) & (reach > 0)
    relative = exact - exact.amax(1, keepdim=True)
    relative = torch.where(far, relative.clamp_min(-clip.floor), relative) - by
    relative = relative - relative.amax(1, keepdim=True)
    return torch.where(extreme, relative, exact - by).to(z.dtype)


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    g, codes = _counted(g, codes)
    return _sum_by_group(g.double(), codes, groups)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    q = ((z.double() - _rows(shift, codes)) / temperature).softmax(1)
    weight = _rows(w, codes)
    return (g.double() + q * (weight - (weight * q).sum(1, keepdim=True))).to(g.dtype)


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.where(h <= 0, 0, g @ weight)
    return out, out.sum(0), g.t() @ h


def sparse_linear(matrix: CSR, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    shape = (matrix.row.numel() - 1, weight.size(0))
    row, col = matrix.row.to(torch.int64), matrix.col.to(torch.int64)
    assert matrix.weight is not None
    product = torch.sparse_csr_tensor(row, col, matrix.weight, size=shape) @ weight + bias
    return product.relu() if relu else product


def _counted(z: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    inside = codes >= 0
    return z[inside], codes[inside].long()


def _sum_by_group(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    if values.is_cpu and codes.numel() * groups > MAX_ONE_HOT:
        return values.new_zeros(groups, values.size(1)).index_add_(0, codes, values)
    # A product with one-hot rows: unlike index_add_ it is deterministic on every device.
    one_hot = torch.zeros(codes.numel(), groups, dtype=values.dtype, device=values.device)
    one_hot.scatter_(1, codes.unsqueeze(1), 1)
    return one_hot.T @ values


def _rows(table: Tensor, codes: Tensor) -> Tensor:
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes.long())]
