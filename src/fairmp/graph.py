"""The normalised adjacency Ã = D̂^-½(A+I)D̂^-½, and propagation along it."""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.errors import InputError
from fairmp.groups import GroupOperator
from fairmp.kernels import apply, implementation, spmm
from fairmp.kernels.types import CSR, AggregateGradient, Matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INT32 = torch.iinfo(torch.int32).max
MIN_RECIPROCAL = 0.1  # share of edges with a reverse; below it the other direction was forgotten
WINDOW_NODES = 4096  # renumbered by degree, for speed; what is near stays near
MAX_RENUMBERED_EDGES = 2**25  # above, a copy of the edges costs too much memory
SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)

T = TypeVar("T")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float32 for half precision, which is too coarse for a gap."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def to_scipy(x: Tensor) -> csr_array:
    """Convert a matrix, dense or sparse, to scipy's CSR format."""
    from scipy.sparse import coo_array, csr_array

    if x.layout == torch.strided:
        return csr_array(x.detach().cpu().numpy())
    x = x.detach().cpu().coalesce()
    places = tuple(x.indices().int().numpy())  # scikit-learn's trees refuse int64
    return coo_array((x.values().numpy(), places), shape=tuple(x.shape)).tocsr()


def from_scipy(matrix: csr_array) -> Tensor:
    """Convert a matrix of scipy's to a sparse tensor in COO format."""
    rows, columns = matrix.tocoo().coords
    place = torch.stack([torch.from_numpy(part).long() for part in (rows, columns)])
    return torch.sparse_coo_tensor(place, torch.from_numpy(matrix.data), matrix.shape).coalesce()


@dataclass(frozen=True)
class Adjacency:
    """Ã in compressed rows.

    It is stored as its factors: A+I, without values where they are all 1, and ``scale`` = D̂^-½.
    ``forward`` and ``backward`` are A+I and its transpose; for an undirected graph they are the
    same object. A layer accepts an ``Adjacency`` instead of an ``edge_index``.
    """

    num_nodes: int
    scale: Tensor
    forward: CSR
    backward: CSR

    is_local = True

    @property
    def symmetric(self) -> bool:
        """Whether Ã is its own transpose."""
        return self.forward is self.backward

    @cached_property
    def layout(self) -> Layout:
        """The graph with nodes sorted by degree, within windows: a processor predicts equal rows.

        Nodes keep their order on other devices than the CPU, where other processes hold a part of
        the graph, and above ``MAX_RENUMBERED_EDGES`` edges.
        """
        movable = self.is_local and self.scale.device.type == "cpu"
        if not movable or self.forward.col.numel() > MAX_RENUMBERED_EDGES:
            return Layout(self)
        degree = self.forward.row.diff().long()
        window = torch.arange(self.num_nodes) // WINDOW_NODES
        largest = int(degree.max()) if degree.numel() else 0
        order = (window * (largest + 1) + degree).argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(self.num_nodes)
        forward = _renumber(self.forward, order, place)
        backward = forward if self.symmetric else _renumber(self.backward, order, place)
        graph = Adjacency(self.num_nodes, self.scale[order], forward, backward)
        return Layout(graph, order, place)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the matrix without what is computed from it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def __matmul__(self, x: Tensor) -> Tensor:
        rounded = x.to(compute_dtype(x.dtype))
        return spmm(self.matrix, self.transposed_matrix, rounded).to(x.dtype)

    @cached_property
    def matrix(self) -> Matrix:
        """Ã, as the kernels take it."""
        return Matrix(self.forward, self.scale, self.scale)

    @cached_property
    def transposed_matrix(self) -> Matrix:
        """Ãᵀ, as the kernels take it."""
        return self.matrix if self.symmetric else Matrix(self.backward, self.scale, self.scale)

    def aggregate(self, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
        """γX + (1−γ)ÃF, or (1−γ)ÃF where X is ``None``; without a gradient."""
        return implementation(f).aggregate(self.matrix, f, x, gamma)

    def aggregate_vjp(
        self,
        grad: Tensor,
        gamma: float,
        x: Tensor | None = None,
        propagated: Tensor | None = None,
    ) -> AggregateGradient:
        """The gradients of :meth:`aggregate`; see :meth:`fairmp.kernels.Kernels.aggregate_vjp`."""
        kernels = implementation(grad)
        return kernels.aggregate_vjp(self.transposed_matrix, grad, gamma, x, propagated)

    def to(self, device: torch.device | str) -> Adjacency:
        """Move to a device."""
        forward = self.forward.to(device)
        backward = forward if self.symmetric else self.backward.to(device)
        return Adjacency(self.num_nodes, self.scale.to(device), forward, backward)


@dataclass(frozen=True)
class Layout:
    """A graph whose nodes are sorted for speed, and the way there and back.

    Attributes:
        graph: the graph in this order.
        order: the node at each place (n); ``None`` where nodes keep their order.
        place: the place of each node (n).
    """

    graph: Adjacency
    order: Tensor | None = None
    place: Tensor | None = None
    _groups: weakref.WeakKeyDictionary[GroupOperator, GroupOperator] = field(
        default_factory=weakref.WeakKeyDictionary, repr=False, compare=False
    )

    def reorder(self, groups: GroupOperator) -> GroupOperator:
        """Sort the nodes of a group operator; computed once."""
        if self.order is None:
            return groups
        reordered = self._groups.get(groups)
        if reordered is None:
            reordered = self._groups[groups] = groups.reorder(self.order)
        return reordered

    def to_layout(self, x: Tensor, *, margins: bool = False) -> Tensor:
        """Sort logits (n×C); with ``margins`` return those of two classes, x₁ − x₀ (n×1)."""
        if self.order is None and not margins:
            return x
        return apply(_ToLayout, x, self, margins)

    def from_layout(self, f: Tensor) -> Tensor:
        """Return logits (n×C) to the order of the nodes; margins (n×1) become logits of mean 0."""
        if self.order is None and f.size(1) > 1:
            return f
        return apply(_FromLayout, f, self)


class _ToLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, margins: bool) -> Tensor:
        ctx.layout, ctx.margins = layout, margins
        return _gather_margins(x, layout.order, 1.0) if margins else _gather_rows(x, layout.order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        if ctx.margins:
            return _spread_margins(grad, layout.order, 1.0), None, None
        return _gather_rows(grad, layout.place), None, None


class _FromLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, layout: Layout) -> Tensor:
        ctx.layout, ctx.margins = layout, f.size(1) == 1
        if ctx.margins:
            return _spread_margins(f, layout.order, 0.5)
        return _gather_rows(f, layout.place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        if ctx.margins:
            return _gather_margins(grad, layout.order, 0.5), None
        return _gather_rows(grad, layout.order), None


def _gather_rows(x: Tensor, order: Tensor | None) -> Tensor:
    return x if order is None else implementation(x).gather_rows(x.contiguous(), order)


def _gather_margins(x: Tensor, order: Tensor | None, factor: float) -> Tensor:
    if order is None:
        return factor * (x[:, 1:] - x[:, :1])
    return implementation(x).gather_margins(x.contiguous(), order, factor)


def _spread_margins(m: Tensor, order: Tensor | None, factor: float) -> Tensor:
    if order is None:
        return torch.cat([-factor * m, factor * m], 1)
    return implementation(m).spread_margins(m.contiguous(), order, factor)


def _renumber(matrix: CSR, order: Tensor, place: Tensor) -> CSR:
    """The rows of a matrix in another order, with the columns renumbered."""
    lengths = matrix.row.diff()[order].long()
    row = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    first = matrix.row[:-1][order].long() - row[:-1]
    edges = torch.repeat_interleave(first, lengths) + torch.arange(matrix.col.numel())
    col = place.to(matrix.col.dtype)[matrix.col[edges].long()]
    weight = None if matrix.weight is None else matrix.weight[edges]
    return CSR(row.to(matrix.row.dtype), col, weight)


def aggregate(f: Tensor, x: Tensor, graph: Adjacency, gamma: float | Tensor) -> Tensor:
    """γX + (1−γ)ÃF, with gradients for F, X and, where it is a tensor, γ."""
    if isinstance(gamma, Tensor):
        return apply(_AggregateLearned, f, x, gamma, graph)
    return x if gamma == 1 else apply(_Aggregate, f, x, gamma, graph)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, x: Tensor, gamma: float, graph: Adjacency) -> Tensor:
        ctx.graph, ctx.gamma = graph, gamma
        return graph.aggregate(f.contiguous(), x.contiguous(), gamma)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradient = ctx.graph.aggregate_vjp(grad.contiguous(), ctx.gamma)
        return gradient.f, gradient.x, None, None


class _AggregateLearned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, x: Tensor, gamma: Tensor, graph: Adjacency) -> Tensor:
        f, x = f.contiguous(), x.contiguous()
        # On a GPU the host would have to wait for γ.
        number = float(gamma) if gamma.is_cpu else None
        if number is None or number == 1:
            propagated, rest = graph.aggregate(f, None, 0.0), 1.0
            result = torch.lerp(propagated, x, gamma)
        else:
            result = propagated = graph.aggregate(f, x, number)
            rest = 1 - number  # X minus the result is this share of X − ÃF
        ctx.graph, ctx.number, ctx.rest = graph, number, rest
        ctx.save_for_backward(x, propagated, gamma)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        graph, grad, (x, propagated, gamma) = ctx.graph, grad.contiguous(), ctx.saved_tensors
        if ctx.number is not None:
            gradient = graph.aggregate_vjp(grad, ctx.number, x, propagated)
            grad_gamma = torch.as_tensor(gradient.away / ctx.rest, dtype=gamma.dtype)
            return gradient.f, gradient.x, grad_gamma, None
        grad_f = (1 - gamma) * graph.aggregate_vjp(grad, 0.0).f
        return grad_f, gamma * grad, (grad * (x - propagated)).sum(), None


def normalise(
    edge_index: Tensor,
    num_nodes: int,
    edge_weight: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """Normalise a graph symmetrically, as PyG's ``gcn_norm`` does.

    Missing self-loops are added with weight 1. Repeated edges count as one edge of their summed
    weight; of several self-loops of a node the last one counts.

    Args:
        edge_index: edges (2×E, source and target), PyG's ``EdgeIndex``, or a torch sparse tensor
            (n×n) whose row i holds what node i receives.
        num_nodes: n.
        edge_weight: weight of each edge (E), 1 by default.
        dtype: floating-point type of the values.

    Example:
        >>> adjacency = normalise(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> (adjacency @ torch.tensor([[1.0], [3.0]])).round(decimals=4)
        tensor([[2.],
                [2.]])
    """
    edge_index, edge_weight = _edges(edge_index, num_nodes, edge_weight)
    dtype, device = compute_dtype(dtype), edge_index.device
    loops = torch.ones(num_nodes, dtype=torch.float64, device=device)
    source, target = edge_index
    proper = source != target
    weight = loops.new_ones(len(source)) if edge_weight is None else edge_weight.double()
    loops[source[~proper]] = weight[~proper]
    weight = torch.cat([weight[proper], loops])
    nodes = torch.arange(num_nodes, device=device)
    index = torch.stack([torch.cat([part[proper], nodes]) for part in (target, source)])
    degree = torch.zeros_like(loops).scatter_add_(0, index[0], weight)
    scale = degree.rsqrt().masked_fill_(degree == 0, 0).to(dtype)
    # Rows are targets: row i of Ã holds what node i receives.
    index, weight = _coalesce(index, weight, num_nodes)
    plain = bool((weight == 1).all())
    forward = _compress(index, None if plain else weight.to(dtype), num_nodes)
    index_t, weight_t = _coalesce(index.flip(0), weight, num_nodes)
    # The weights of an edge's two directions may have been summed in another order.
    if torch.equal(index, index_t) and torch.allclose(weight, weight_t, rtol=1e-12, atol=0):
        return Adjacency(num_nodes, scale, forward, forward)
    backward = _compress(index_t, None if plain else weight_t.to(dtype), num_nodes)
    keys, keys_t = (part[0] * num_nodes + part[1] for part in (index, index_t))
    both = keys_t[torch.searchsorted(keys_t, keys).clamp_max(keys_t.numel() - 1)] == keys
    edges = index.size(1) - num_nodes
    if int(both.sum()) - num_nodes < MIN_RECIPROCAL * edges:
        warnings.warn(
            "edge_index: edges have one direction, and nodes receive along it only; for both use "
            "torch_geometric.utils.to_undirected",
            stacklevel=3,
        )
    return Adjacency(num_nodes, scale, forward, backward)


class TensorCache:
    """LRU cache keyed by tensor identity and version.

    An in-place operation changes a tensor's version, so its result is computed again. A change that
    torch does not see (through ``.data``, or through memory shared with NumPy) is not noticed: pass
    a new tensor then. Inference tensors have no version, and are not cached.

    Args:
        size: number of results kept.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._entries: OrderedDict[Hashable, tuple[list[weakref.ref[Tensor]], Any]] = OrderedDict()

    def get(
        self, tensors: Sequence[Tensor | None], options: Hashable, compute: Callable[[], T]
    ) -> T:
        """Return what ``compute`` returned for the same tensors and options, or call it."""
        present = [tensor for tensor in tensors if tensor is not None]
        if any(not isinstance(t, Tensor) or t.is_inference() for t in present):
            return compute()
        versions = tuple(None if t is None else (id(t), _version(t)) for t in tensors)
        key = (versions, options)
        references, value = self._entries.get(key, ([], None))
        # The identity of a tensor that is gone may be another's by now.
        if references and all(r() is t for r, t in zip(references, present, strict=True)):
            self._entries.move_to_end(key)
            return cast("T", value)
        computed = compute()
        self._entries[key] = [weakref.ref(tensor) for tensor in present], computed
        self._entries.move_to_end(key)
        for old, (parts, _) in list(self._entries.items()):
            if len(self._entries) > self.size or any(part() is None for part in parts):
                del self._entries[old]
        return computed

    def __reduce__(self) -> tuple[type[TensorCache], tuple[int]]:
        """Copies and pickles start empty."""
        return TensorCache, (self.size,)


def _version(tensor: Tensor) -> tuple[int, ...]:
    # The counter of changes in place; torch has no public way to read it. PyG's EdgeIndex wraps a
    # tensor that has a counter of its own.
    inner = _plain(tensor)
    return (tensor._version,) if inner is tensor else (tensor._version, inner._version)


def _plain(edges: Any) -> Any:
    """The tensor behind PyG's ``EdgeIndex``; anything else as it is."""
    return edges.as_tensor() if type(edges).__name__ == "EdgeIndex" else edges


def _edges(
    edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Check the edges, and read a sparse tensor's."""
    edge_index = _plain(edge_index)
    parts: dict[str, object] = {"edge_index": edge_index, "edge_weight": edge_weight}
    for name, part in parts.items():
        if part is not None and not isinstance(part, Tensor):
            value = f"expected a Tensor, got {type(part).__name__}"
            raise InputError(name, value, f"give torch.as_tensor({name})")
    if edge_index.layout in SPARSE_LAYOUTS:
        if edge_index.shape != (num_nodes, num_nodes):
            value = f"a sparse tensor of shape {tuple(edge_index.shape)} for {num_nodes} nodes"
            raise InputError("edge_index", value, f"it must be {num_nodes}×{num_nodes}")
        if edge_weight is not None:
            value = "a sparse tensor has its own values"
            raise InputError("edge_weight", value, "leave edge_weight out")
        matrix = edge_index.to_sparse_coo().coalesce()
        # Its rows receive, while in an edge_index the second row does.
        edge_index, edge_weight = matrix.indices().flip(0), matrix.values()
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype != torch.int64:
        hint = "give int64 of shape (2, edges), a torch sparse tensor or an Adjacency"
        value = f"{edge_index.dtype} of shape {tuple(edge_index.shape)}"
        raise InputError("edge_index", value, hint)
    first, last = map(int, torch.aminmax(edge_index)) if edge_index.numel() else (0, -1)
    if first < 0 or last >= num_nodes:
        value = f"nodes {first} to {last} in a graph of {num_nodes} nodes"
        raise InputError("edge_index", value, f"they must lie in 0…{num_nodes - 1}")
    if edge_weight is not None:
        _check_weight(edge_weight, edge_index.size(1))
    return edge_index, edge_weight


def _check_weight(edge_weight: Tensor, num_edges: int) -> None:
    if edge_weight.shape != (num_edges,):
        value = f"shape {tuple(edge_weight.shape)} for {num_edges} edges"
        raise InputError("edge_weight", value, "give one weight per edge")
    if edge_weight.requires_grad:
        value = "requires a gradient, which does not pass through the normalisation"
        raise InputError("edge_weight", value, "give edge_weight.detach()")
    if not bool(torch.isfinite(edge_weight).all()) or bool((edge_weight < 0).any()):
        value = f"they reach from {edge_weight.min().item():g} to {edge_weight.max().item():g}"
        raise InputError("edge_weight", value, "weights must be finite and not negative")


def _coalesce(index: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Sort by row and column, and sum the weights of repeated edges."""
    order, permutation = (index[0] * num_nodes + index[1]).sort(stable=True)
    index, weight = index[:, permutation], weight[permutation]
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = order[1:] != order[:-1]
    if bool(first.all()):
        return index, weight
    index, place = index[:, first], first.cumsum(0) - 1
    return index, weight.new_zeros(index.size(1)).scatter_add_(0, place, weight)


def _compress(index: Tensor, weight: Tensor | None, num_nodes: int) -> CSR:
    counts = torch.bincount(index[0], minlength=num_nodes)
    row = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    row = row.int() if index.size(1) <= INT32 else row
    col = index[1].int() if num_nodes <= INT32 else index[1].contiguous()
    return CSR(row, col, weight)


def locality_order(row: NDArray[Any], col: NDArray[Any]) -> NDArray[np.int64]:
    """Order the nodes of a symmetric CSR matrix so that neighbours are near each other (n).

    This is the reverse Cuthill-McKee order.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    kind = "int32" if len(col) < INT32 else "int64"
    graph = csr_array((len(row) - 1, len(row) - 1), dtype="int8")
    # Set directly: the constructor wants a value per entry, which nobody reads.
    graph.indptr, graph.indices = row.astype(kind, copy=False), col.astype(kind, copy=False)
    order: NDArray[np.int64] = reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64)
    return order


class Graph:
    """A graph as networks read it: its edges, and normalised forms of them, computed once.

    Example:
        >>> path = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> (path.adjacency(torch.float32) @ torch.eye(3)).round(decimals=3)
        tensor([[0.5000, 0.4080, 0.0000],
                [0.4080, 0.3330, 0.4080],
                [0.0000, 0.4080, 0.5000]])
    """

    origin: Tensor | None = None  # where each node of a model's training graph is in this one

    def __init__(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> None:
        self.edge_index, self.num_nodes, self.edge_weight = edge_index, num_nodes, edge_weight
        self._adjacency: dict[torch.dtype, Adjacency] = {}
        self._with_self_loops: Tensor | None = None

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """The normalised adjacency matrix Ã."""
        if dtype not in self._adjacency:
            adjacency = normalise(self.edge_index, self.num_nodes, self.edge_weight, dtype)
            self._adjacency[dtype] = adjacency
        return self._adjacency[dtype]

    def with_self_loops(self) -> Tensor:
        """The edges with one self-loop per node, sorted by target (2×E')."""
        if self._with_self_loops is None:
            from torch_geometric.utils import add_remaining_self_loops, sort_edge_index

            edges, _ = add_remaining_self_loops(self.edge_index, num_nodes=self.num_nodes)
            edges = sort_edge_index(edges, num_nodes=self.num_nodes, sort_by_row=False)
            self._with_self_loops = edges
        return self._with_self_loops
