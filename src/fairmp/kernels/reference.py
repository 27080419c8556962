"""The primitives in plain torch: what compiled kernels must equal, and the fallback.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

# Row pointers, columns and values (None: ones) of A, and the diagonals D_l and D_r.
Matrix = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]

with warnings.catch_warnings():
    # torch warns once per process that CSR tensors are in beta; users can do nothing about it.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(
        torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), size=(1, 1)
    )


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    row, col, weight, left, right = matrix
    value = torch.ones(col.numel(), dtype=f.dtype, device=f.device) if weight is None else weight
    # torch requires row pointers and columns of the same integer type.
    values = torch.sparse_csr_tensor(
        row.to(col.dtype) if row.dtype != col.dtype and col.dtype == torch.int64 else row,
        col.to(row.dtype),
        value.to(f.dtype),
        size=(row.numel() - 1, f.size(0)),
    )
    product = (values @ (right.unsqueeze(1) * f).contiguous()) * left.unsqueeze(1)
    return (product if x is None else gamma * x + (1 - gamma) * product).contiguous()


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


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    return z - _rows(shift.to(z.dtype), codes)


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    g, codes = _counted(g, codes)
    return _sum_by_group(g.double(), codes, groups)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    q = ((z.double() - _rows(shift, codes)) / temperature).softmax(1)
    weight = _rows(w, codes)
    return (g.double() + q * (weight - (weight * q).sum(1, keepdim=True))).to(g.dtype)


def coupling_backward(g: Tensor, z: Tensor, codes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    q, weight = z.double().softmax(1), _rows(w, codes)
    # Centred under q, the derivative of ⟨g, q ⊙ (w − ⟨w, q⟩)⟩ is that of ⟨g ⊙ w, q⟩.
    centred = g - (g * q).sum(1, keepdim=True)
    product = centred * (weight - (weight * q).sum(1, keepdim=True))
    grad_z = q * (product - (product * q).sum(1, keepdim=True))
    return grad_z.to(g.dtype), segment_sum(q * centred, codes, w.size(0))


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.where(h <= 0, 0, g @ weight)
    return out, out.sum(0), g.t() @ h


def _counted(z: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    inside = codes >= 0
    return z[inside], codes[inside].long()


def _sum_by_group(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    # A product with one-hot rows: unlike index_add_ it is deterministic on every device.
    one_hot = torch.zeros(codes.numel(), groups, dtype=values.dtype, device=values.device)
    one_hot.scatter_(1, codes.unsqueeze(1), 1)
    return one_hot.T @ values


def _rows(table: Tensor, codes: Tensor) -> Tensor:
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes.long())]
