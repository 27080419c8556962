"""The normalised adjacency Ã = D̂^-½(A+I)D̂^-½, made once a graph."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.utils import (
    add_remaining_self_loops,
    coalesce,
    is_torch_sparse_tensor,
    scatter,
    to_edge_index,
)

from fairmp.errors import InputError
from fairmp.kernels import implementation, spmm

INT32 = 2**31 - 1


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float32 for half precision, which says too little of a gap."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass(frozen=True)
class CSR:
    """A matrix in compressed rows: row pointers, columns, and values where they are not all 1."""

    row: Tensor
    col: Tensor
    weight: Tensor | None = None

    def to(self, device: torch.device | str) -> CSR:
        """Move to a device."""
        weight = None if self.weight is None else self.weight.to(device)
        return CSR(self.row.to(device), self.col.to(device), weight)


@dataclass(frozen=True)
class Adjacency:
    """Ã in compressed rows, ready to multiply.

    It is held as what it is made of: A+I, whose values are not stored where they are all 1, and
    ``scale``, D̂^-½. ``forward`` and ``backward`` are A+I and its transpose; on an undirected graph
    the two are the same object: the gradient of Ã·F is Ã·grad, and nothing is ever transposed. A
    layer that is handed an ``Adjacency`` instead of an ``edge_index`` uses it as it is.
    """

    num_nodes: int
    scale: Tensor
    forward: CSR
    backward: CSR

    @property
    def symmetric(self) -> bool:
        """Whether Ã is its own transpose."""
        return self.forward is self.backward

    def __matmul__(self, x: Tensor) -> Tensor:
        there, back = self.forward, self.backward
        result = spmm(
            there.row,
            there.col,
            there.weight,
            back.row,
            back.col,
            back.weight,
            self.scale,
            x.to(compute_dtype(x.dtype)),
        )
        return result.to(x.dtype)

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)ÃF, or with Ãᵀ; ÃF alone where X is ``None``. Autograd does not see it."""
        part = self.backward if transposed else self.forward
        return implementation(f).aggregate(
            part.row, part.col, part.weight, self.scale, self.scale, f, x, gamma
        )

    def to(self, device: torch.device | str) -> Adjacency:
        """Move to a device."""
        forward = self.forward.to(device)
        backward = forward if self.symmetric else self.backward.to(device)
        return Adjacency(self.num_nodes, self.scale.to(device), forward, backward)


def normalise(
    edge_index: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """Normalise a graph symmetrically, as PyG's ``gcn_norm`` does.

    Missing self-loops are added with weight 1; several edges between two nodes count as one of
    their summed weight, and of several self-loops of a node the last one counts.

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
    dtype = compute_dtype(dtype)
    weight = None if edge_weight is None else edge_weight.double()
    index, weight = add_remaining_self_loops(edge_index, weight, 1.0, num_nodes)
    if weight is None:
        weight = torch.ones(index.size(1), dtype=torch.float64, device=index.device)
    degree = scatter(weight, index[1], 0, num_nodes, reduce="sum")
    scale = degree.rsqrt().masked_fill_(degree == 0, 0).to(dtype)
    # CSR are targets: row i of Ã holds what node i receives.
    index, weight = coalesce(index.flip(0), weight, num_nodes)
    plain = bool((weight == 1).all())
    forward = _compress(index, None if plain else weight.to(dtype), num_nodes)
    index_t, weight_t = coalesce(index.flip(0), weight, num_nodes)
    # Weights of edges that go both ways may have been summed in another order.
    if torch.equal(index, index_t) and torch.allclose(weight, weight_t, rtol=1e-12, atol=0):
        return Adjacency(num_nodes, scale, forward, forward)
    backward = _compress(index_t, None if plain else weight_t.to(dtype), num_nodes)
    return Adjacency(num_nodes, scale, forward, backward)


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
        weighted = None if edge_weight is None else edge_weight.dtype
        key = (_fingerprint(edge_index, edge_weight), weighted, num_nodes, dtype, edge_index.device)
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
            "edge_index",
            f"a sparse tensor of shape {tuple(matrix.shape)} for {num_nodes} nodes",
            f"it must be {num_nodes}×{num_nodes}",
        )
    if edge_weight is not None:
        raise InputError(
            "edge_weight", "a sparse tensor carries its own values", "leave edge_weight out"
        )
    if matrix.layout == torch.sparse_coo and not matrix.is_coalesced():
        matrix = matrix.coalesce()
    index, value = to_edge_index(matrix)
    # Its rows receive, while in an edge_index the second row does.
    return index.flip(0), value


def _check(edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None) -> None:
    parts: dict[str, object] = {"edge_index": edge_index, "edge_weight": edge_weight}
    for name, given in parts.items():
        if given is not None and not isinstance(given, Tensor):
            kind = type(given).__name__
            raise InputError(name, f"{kind} is no tensor", f"give torch.as_tensor({name})")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype != torch.int64:
        raise InputError(
            "edge_index",
            f"expected int64 of shape (2, edges), got {edge_index.dtype} of shape "
            f"{tuple(edge_index.shape)}",
            "a torch sparse tensor or an Adjacency will do as well",
        )
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise InputError(
            "edge_index",
            f"nodes {int(edge_index.min())} to {int(edge_index.max())} in a graph of {num_nodes} "
            "nodes",
            f"they must lie in 0…{num_nodes - 1}",
        )
    if edge_weight is None:
        return
    if edge_weight.shape != (edge_index.size(1),):
        raise InputError(
            "edge_weight",
            f"shape {tuple(edge_weight.shape)} for {edge_index.size(1)} edges",
            "give one weight an edge",
        )
    if edge_weight.requires_grad:
        raise InputError(
            "edge_weight",
            "gradients do not pass through the normalisation",
            "give edge_weight.detach()",
        )
    if not bool(torch.isfinite(edge_weight).all()) or bool((edge_weight < 0).any()):
        raise InputError(
            "edge_weight",
            "weights must be finite and not negative, so that degrees are",
            f"the smallest is {edge_weight.min().item():g}",
        )


def _compress(index: Tensor, weight: Tensor | None, num_nodes: int) -> CSR:
    counts = torch.bincount(index[0], minlength=num_nodes)
    row = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    row = row.int() if index.size(1) <= INT32 else row
    col = index[1].int() if num_nodes <= INT32 else index[1].contiguous()
    return CSR(row, col, weight)
