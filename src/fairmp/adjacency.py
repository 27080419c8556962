"""The normalised adjacency Ã = D̂^-½(A+I)D̂^-½, made once a graph."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import coalesce, is_torch_sparse_tensor, to_edge_index

from fairmp.errors import InputError
from fairmp.kernels import spmm


@dataclass(frozen=True)
class Adjacency:
    """Ã in compressed rows, ready to multiply.

    ``forward`` and ``backward`` hold (row pointers, columns, values) of Ã and of its transpose. On
    an undirected graph the two are the same tensors: the gradient of Ã·F is Ã·grad, and nothing is
    ever transposed. A layer that is handed an ``Adjacency`` instead of an ``edge_index`` uses it as
    it is.
    """

    num_nodes: int
    forward: tuple[Tensor, Tensor, Tensor]
    backward: tuple[Tensor, Tensor, Tensor]

    @property
    def symmetric(self) -> bool:
        """Whether Ã is its own transpose."""
        return self.forward is self.backward

    def __matmul__(self, x: Tensor) -> Tensor:
        return spmm(*self.forward, *self.backward, x)

    def to(self, device: torch.device | str) -> Adjacency:
        """Move to a device."""
        forward = _to(self.forward, device)
        return Adjacency(
            self.num_nodes, forward, forward if self.symmetric else _to(self.backward, device)
        )


def normalise(
    edge_index: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """Normalise a graph symmetrically, as PyG's ``gcn_norm`` does.

    Missing self-loops are added with weight 1; several edges between two nodes count as one of
    their summed weight.

    Args:
        edge_index: edges (2×E, source and target), or a torch sparse tensor (n×n) whose row i holds
            what node i receives.
        num_nodes: n.
        edge_weight: weight of each edge (E), 1 by default.
        dtype: floating-point type of the values.

    Example:
        >>> adjacency = normalise(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> (adjacency @ torch.tensor([[1.0], [3.0]])).round(decimals=4)
        tensor([[2.],
                [2.]])
        >>> adjacency.symmetric
        True
    """
    if is_torch_sparse_tensor(edge_index):
        edge_index, edge_weight = _from_sparse(edge_index, num_nodes, edge_weight)
    _check(edge_index, num_nodes, edge_weight)
    weight = None if edge_weight is None else edge_weight.to(dtype)
    index, value = gcn_norm(edge_index, weight, num_nodes, dtype=dtype)
    # Rows are targets: row i of Ã holds what node i receives.
    index, value = coalesce(index.flip(0), value, num_nodes)
    forward = _compress(index, value, num_nodes)
    index_t, value_t = coalesce(index.flip(0), value, num_nodes)
    rounding = 16 * torch.finfo(dtype).eps
    if torch.equal(index, index_t) and torch.allclose(value, value_t, rtol=rounding, atol=0):
        return Adjacency(num_nodes, forward, forward)
    return Adjacency(num_nodes, forward, _compress(index_t, value_t, num_nodes))


class AdjacencyCache:
    """The normalised adjacencies of the graphs met last, known by what their edges say.

    The key is computed from the edges and weights themselves at each call, in one pass over them:
    a graph changed in place is another graph, however it was changed.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._held: OrderedDict[tuple[object, ...], Adjacency] = OrderedDict()

    @torch.compiler.disable
    def get(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None, dtype: torch.dtype
    ) -> Adjacency:
        """Return the graph's adjacency, normalising it if it is new."""
        if is_torch_sparse_tensor(edge_index):
            edge_index, edge_weight = _from_sparse(edge_index, num_nodes, edge_weight)
        _check(edge_index, num_nodes, edge_weight)
        key = (_fingerprint(edge_index, edge_weight), num_nodes, dtype, edge_index.device)
        if key not in self._held:
            self._held[key] = normalise(edge_index, num_nodes, edge_weight, dtype)
            if len(self._held) > self.size:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]


def _fingerprint(edge_index: Tensor, edge_weight: Tensor | None) -> tuple[int, ...]:
    source, target = edge_index
    mixed = source * -7046029254386353131
    mixed ^= target * -4417276706812531889
    if edge_weight is not None:
        bits = torch.int64 if edge_weight.dtype == torch.float64 else torch.int32
        weight = edge_weight.detach()
        weight = weight if weight.dtype in (torch.float32, torch.float64) else weight.float()
        mixed ^= weight.contiguous().view(bits).long() * 1609587929392839161
    mixed ^= mixed >> 29
    mixed *= -4658895280553007687
    mixed ^= mixed >> 32
    return edge_index.size(1), int(mixed.sum())


def _from_sparse(
    matrix: Tensor, num_nodes: int, edge_weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if matrix.shape != (num_nodes, num_nodes):
        raise InputError(
            f"edge_index: a sparse tensor of shape {tuple(matrix.shape)} for {num_nodes} nodes; "
            f"it must be {num_nodes}×{num_nodes}"
        )
    if edge_weight is not None:
        raise InputError(
            "edge_weight: a sparse tensor carries its own values; leave edge_weight out"
        )
    if matrix.layout == torch.sparse_coo and not matrix.is_coalesced():
        matrix = matrix.coalesce()
    index, value = to_edge_index(matrix)
    # Its rows receive, while in an edge_index the second row does.
    return index.flip(0), value


def _check(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None) -> None:
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype != torch.int64:
        raise InputError(
            f"edge_index: expected int64 of shape (2, edges), got {edge_index.dtype} of shape "
            f"{tuple(edge_index.shape)}; a torch sparse tensor or an Adjacency will do as well"
        )
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise InputError(
            f"edge_index: nodes {int(edge_index.min())} to {int(edge_index.max())} in a graph of "
            f"{num_nodes} nodes; they must lie in 0…{num_nodes - 1}"
        )
    if edge_weight is None:
        return
    if edge_weight.shape != (edge_index.size(1),):
        raise InputError(
            f"edge_weight: shape {tuple(edge_weight.shape)} for {edge_index.size(1)} edges; "
            "give one weight an edge"
        )
    if edge_weight.requires_grad:
        raise InputError(
            "edge_weight: gradients do not pass through the normalisation; "
            "give edge_weight.detach()"
        )
    if not bool(torch.isfinite(edge_weight).all()) or bool((edge_weight < 0).any()):
        raise InputError(
            "edge_weight: weights must be finite and not negative, so that degrees are; "
            f"the smallest is {edge_weight.min().item():g}"
        )


def _compress(index: Tensor, value: Tensor, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    counts = torch.bincount(index[0], minlength=num_nodes)
    pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return pointers, index[1].contiguous(), value


def _to(
    parts: tuple[Tensor, Tensor, Tensor], device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor]:
    row, col, value = parts
    return row.to(device), col.to(device), value.to(device)
