"""The primitives in plain torch: what the others must equal, and what runs where they can not.

Two vectors of codes say which cell (group, or combination of groups) a node belongs to, −1 for
none: one of the nodes a gap is measured on, one of the nodes a correction reaches.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

with warnings.catch_warnings():
    # torch says once a process that CSR tensors are in beta; users can do nothing about it.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(
        torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), size=(1, 1)
    )


def aggregate(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    left: Tensor,
    right: Tensor,
    f: Tensor,
    x: Tensor | None,
    gamma: float,
) -> Tensor:
    r"""Propagate: :math:`\gamma X + (1-\gamma) D_l A D_r F`.

    Args:
        row: row pointers of A (r+1).
        col: column numbers of A (E).
        weight: values of A (E); ``None`` for ones.
        left: :math:`D_l` (r).
        right: :math:`D_r` (c).
        f: what is gathered (c×C).
        x: what is skipped to (r×C), or ``None`` for the product alone.
        gamma: share of ``x``.

    Example:
        >>> row, col = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
        >>> half = torch.full((2,), 0.5).sqrt()
        >>> aggregate(row, col, None, half, half, torch.tensor([[1.0], [3.0]]), None, 0.0)
        tensor([[2.0000],
                [2.0000]])
    """
    value = torch.ones(col.numel(), dtype=f.dtype, device=f.device) if weight is None else weight
    # torch multiplies with row pointers and columns of one integer type only.
    matrix = torch.sparse_csr_tensor(
        row.to(col.dtype) if row.dtype != col.dtype and col.dtype == torch.int64 else row,
        col.to(row.dtype),
        value.to(f.dtype),
        size=(row.numel() - 1, f.size(0)),
    )
    product = (matrix @ (right.unsqueeze(1) * f).contiguous()) * left.unsqueeze(1)
    return (product if x is None else gamma * x + (1 - gamma) * product).contiguous()


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    r"""Pass over the nodes once, at a shift of each cell's logits.

    .. math::
        q_i = \mathrm{softmax}((z_i - \mathrm{shift}_{g(i)}) / T)

    Args:
        z: logits (n×C).
        codes: cell of each node (n, int32), −1 for nodes that do not count.
        shift: of each cell (cells×C, float64).
        temperature: T.

    Returns:
        In float64, end to end: :math:`T\sum_i \mathrm{logsumexp}`, the sums of q by cell (cells·C),
        and by cell the sums of :math:`q_c q_d`, with :math:`q_c(1-q_c)` on the diagonal
        (cells·C·C).

    Example:
        >>> codes = torch.tensor([0, 1], dtype=torch.int32)
        >>> shift = torch.zeros(2, 2, dtype=torch.float64)
        >>> moments(torch.zeros(2, 2), codes, shift, 1.0)[1:5]
        tensor([0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    cells, classes = shift.shape
    z, codes = _counted(z, codes)
    logits = (z.double() - shift[codes]) / temperature
    value = temperature * logits.logsumexp(1).sum()
    q = logits.softmax(1)
    sums = _by_cell(q, codes, cells)
    products = q.unsqueeze(2) * q.unsqueeze(1)
    # q − q² as a sum over the other classes: the difference has no digits left where q is near 1.
    off = products * (1 - torch.eye(classes, dtype=q.dtype, device=q.device))
    second = _by_cell((off + torch.diag_embed(off.sum(2))).flatten(1), codes, cells)
    return torch.cat([value.view(1), sums.flatten(), second.flatten()])


def extremes(z: Tensor, codes: Tensor) -> Tensor:
    """How far apart a counted node's logits lie at most, and how large they are (2, float64).

    Example:
        >>> extremes(torch.tensor([[0.0, 3.0]]), torch.tensor([0], dtype=torch.int32)).tolist()
        [3.0, 3.0]
    """
    z, _ = _counted(z, codes)
    if not z.size(0):
        return torch.zeros(2, dtype=torch.float64, device=z.device)
    return torch.stack([(z.amax(1) - z.amin(1)).max(), z.abs().max()]).double()


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Take its cell's shift (cells×C) off each node's logits; a node without a cell keeps its own.

    Example:
        >>> codes = torch.tensor([0, -1], dtype=torch.int32)
        >>> shift(torch.zeros(2, 1), codes, torch.ones(1, 1, dtype=torch.float64))
        tensor([[-1.],
                [ 0.]])
    """
    return z - _rows(shift.to(z.dtype), codes)


def segment_sum(g: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum rows by cell (cells×C, float64).

    Example:
        >>> codes = torch.tensor([1, -1, 1], dtype=torch.int32)
        >>> segment_sum(torch.ones(3, 1), codes, 2)
        tensor([[0.],
                [2.]], dtype=torch.float64)
    """
    g, codes = _counted(g, codes)
    return _by_cell(g.double(), codes, cells)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    r"""Add what a cell's pull ``w`` (cells×C) means for its nodes' logits.

    .. math::
        g_i + q_i \odot (w_{g(i)} - \langle w_{g(i)}, q_i \rangle)

    with q as in :func:`moments`.

    Example:
        >>> codes = torch.tensor([0], dtype=torch.int32)
        >>> zero, w = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> softmax_vjp(zero, zero, codes, zero.double(), 1.0, w)
        tensor([[ 0.2500, -0.2500]])
    """
    q = ((z.double() - _rows(shift, codes)) / temperature).softmax(1)
    pull = _rows(w, codes)
    return (g.double() + q * (pull - (pull * q).sum(1, keepdim=True))).to(g.dtype)


def predicted(
    p: Tensor, agg: Tensor, reach: Tensor, measured: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    r"""Predict with the pull there is, and sum by cell what is predicted.

    With the Jacobian of a softmax, :math:`J_i v = p_i \odot (v - \langle v, p_i \rangle)`,

    .. math::
        q_i = \mathrm{softmax}(\mathrm{agg}_i - \gamma J_i\, \mathrm{pull}_{r(i)}).

    Args:
        p: probabilities before the step (n×C).
        agg: what their logits were propagated to (n×C).
        reach: cell r(i) whose pull a node feels (n, int32), −1 for none.
        measured: cell a node counts in (n, int32), −1 for none.
        pull: of each cell (cells×C, float64).
        gamma: length of the step.

    Returns:
        q (n×C; 0 for nodes that do not count), and its sums by cell (cells×C, float64).

    Example:
        >>> cell, half = torch.tensor([0], dtype=torch.int32), torch.tensor([[0.5, 0.5]])
        >>> predicted(half, half, cell, cell, torch.zeros(1, 2, dtype=torch.float64), 1.0)[1]
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    q = (agg.double() - _push(p, reach, pull, gamma)).softmax(1)
    q = torch.where((measured < 0).unsqueeze(1), 0.0, q)
    return q.to(agg.dtype), segment_sum(q, measured, pull.size(0))


def corrected(
    p: Tensor, agg: Tensor, reach: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    r"""Correct: :math:`f_i = \mathrm{agg}_i - \gamma J_i\, \mathrm{pull}_{r(i)}`.

    See :func:`predicted`; a node that no pull reaches keeps what was propagated.

    Returns:
        f and softmax(f) (n×C each).

    Example:
        >>> cell, half = torch.tensor([0], dtype=torch.int32), torch.tensor([[0.5, 0.5]])
        >>> corrected(half, half, cell, torch.tensor([[1.0, 0.0]], dtype=torch.float64), 1.0)[0]
        tensor([[0.2500, 0.7500]])
    """
    f = agg.double() - _push(p, reach, pull, gamma)
    return f.to(agg.dtype), f.softmax(1).to(agg.dtype)


def coupling_pulls(p: Tensor, g: Tensor, reach: Tensor, cells: int) -> Tensor:
    r"""Sum :math:`J_i g_i` by cell (cells×C, float64): what pulls feel of a gradient, by −γ.

    Example:
        >>> cell, half = torch.tensor([0], dtype=torch.int32), torch.tensor([[0.5, 0.5]])
        >>> coupling_pulls(half, torch.tensor([[1.0, 0.0]]), cell, 1)
        tensor([[ 0.2500, -0.2500]], dtype=torch.float64)
    """
    return segment_sum(_jacobian(p.double(), g.double()), reach, cells)


def coupling_back(
    p: Tensor,
    q: Tensor,
    g: Tensor,
    reach: Tensor,
    measured: Tensor,
    before: Tensor,
    after: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Pass a gradient back through :func:`predicted` and :func:`corrected`.

    With :math:`b_i = q_i \odot (w_{m(i)} - \langle w_{m(i)}, q_i \rangle)`, and a tilde for what
    is left of a vector without its mean under :math:`p_i`,

    .. math::
        a_i = g_i + b_i, \qquad
        e_i = -J_i (\tilde g_i \odot \widetilde{\mathrm{after}}_{r(i)}
        + \tilde b_i \odot \widetilde{\mathrm{before}}_{r(i)}).

    Args:
        p: probabilities before the step (n×C).
        q: what :func:`predicted` returned (n×C).
        g: gradient of the corrected logits (n×C).
        reach: see :func:`predicted`.
        measured: see :func:`predicted`.
        before: the pull that predicted (cells×C, float64).
        after: the pull that corrected (cells×C, float64).
        w: gradient of the sums (cells×C, float64).

    Returns:
        a, the gradient of ``agg``; e, that of the logits of p, divided by γ; and the sums of
        :math:`J_i b_i` by cell of ``reach`` (float64).

    Example:
        >>> cell, half = torch.tensor([0], dtype=torch.int32), torch.tensor([[0.5, 0.5]])
        >>> none, w = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> coupling_back(half, half, none, cell, cell, none.double(), none.double(), w)[0]
        tensor([[ 0.2500, -0.2500]])
    """
    p, there = p.double(), g.double()
    b = _jacobian(q.double(), _rows(w, measured))
    both = _centred(p, there) * _centred(p, _rows(after, reach))
    both = both + _centred(p, b) * _centred(p, _rows(before, reach))
    e = torch.where((reach < 0).unsqueeze(1), 0.0, -_jacobian(p, both))
    a = (there + b).to(g.dtype)
    return a, e.to(g.dtype), segment_sum(_jacobian(p, b), reach, w.size(0))


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Pass a gradient back through :math:`h W^\top`, :math:`h = \max(a, 0)`.

    Args:
        g: gradient of the product (n×C).
        h: units (n×H).
        weight: W (C×H).

    Returns:
        The gradient of a (n×H), its sum over rows (H), and that of W (C×H).

    Example:
        >>> h, weight = torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 5.0]])
        >>> linear_relu_backward(torch.ones(1, 1), h, weight)
        (tensor([[0., 5.]]), tensor([0., 5.]), tensor([[0., 2.]]))
    """
    out = torch.where(h <= 0, 0, g @ weight)
    return out, out.sum(0), g.t() @ h


def _push(p: Tensor, reach: Tensor, pull: Tensor, gamma: float) -> Tensor:
    # Not 0 times whatever it is: a node that is not reached may have any logits.
    moved = gamma * _jacobian(p.double(), _rows(pull, reach))
    return torch.where((reach < 0).unsqueeze(1), 0.0, moved)


def _jacobian(p: Tensor, v: Tensor) -> Tensor:
    return p * _centred(p, v)


def _centred(p: Tensor, v: Tensor) -> Tensor:
    return v - (p * v).sum(1, keepdim=True)


def _counted(z: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    inside = codes >= 0
    return z[inside], codes[inside].long()


def _by_cell(values: Tensor, codes: Tensor, cells: int) -> Tensor:
    # A product with one-hot rows: unlike index_add_ it is deterministic on every device.
    one_hot = torch.zeros(codes.numel(), cells, dtype=values.dtype, device=values.device)
    one_hot.scatter_(1, codes.unsqueeze(1), 1)
    return one_hot.T @ values


def _rows(table: Tensor, codes: Tensor) -> Tensor:
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes.long())]
