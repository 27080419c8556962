"""Networks: a transform that reads each node, and a propagation that reads the graph."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, MLP, GCNConv, SGConv
from torch_geometric.nn.resolver import normalization_resolver
from torch_geometric.utils import add_self_loops, remove_self_loops, sort_edge_index

from fairmp.errors import InputError
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator
from fairmp.nn.dense import Dense
from fairmp.nn.fmp import FMP, PPR, Temperature

Backbone = Literal["mlp", "gcn", "gat", "sgc", "appnp"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)

GAT_HEADS = 4
APPNP_STEPS, APPNP_ALPHA = 10, 0.1


class Graph:
    """A graph as networks read it: its edges, and their normalisation, made when asked for."""

    def __init__(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> None:
        self.edge_index, self.num_nodes, self.edge_weight = edge_index, num_nodes, edge_weight
        self._adjacency: dict[torch.dtype, Adjacency] = {}
        self._looped: Tensor | None = None

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """Ã, normalised once."""
        if dtype not in self._adjacency:
            self._adjacency[dtype] = normalise(
                self.edge_index, self.num_nodes, self.edge_weight, dtype
            )
        return self._adjacency[dtype]

    def looped(self) -> Tensor:
        """The edges with one self-loop a node, sorted by target, made once (2×E')."""
        if self._looped is None:
            edges, _ = remove_self_loops(self.edge_index)
            edges, _ = add_self_loops(edges, num_nodes=self.num_nodes)
            self._looped = sort_edge_index(edges, num_nodes=self.num_nodes, sort_by_row=False)
        return self._looped


class GraphTransform(nn.Module):
    """A transform that reads a :class:`Graph`, and so what was made of it once.

    The ones here are PyG's layers, weight for weight and result for result; they are called with
    a graph normalised beforehand, where PyG's would normalise it in each call.
    """


class _GCNConv(GCNConv):
    def forward(self, x: Tensor, adjacency: Adjacency, edge_weight: None = None) -> Tensor:
        return adjacency @ self.lin(x) + self.bias


class _GCN(GCN, GraphTransform):
    def init_conv(self, in_channels: int, out_channels: int, **kwargs: Any) -> _GCNConv:
        return _GCNConv(in_channels, out_channels, **kwargs)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        return super().forward(x, graph.adjacency(x.dtype))


class _GAT(GAT, GraphTransform):
    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        return super().forward(x, graph.looped())


class _SGC(SGConv, GraphTransform):
    K: int
    lin: nn.Linear

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        adjacency = graph.adjacency(x.dtype)
        # Ã^K (X W) is (Ã^K X) W with as many columns as classes instead of features.
        f = nn.functional.linear(x, self.lin.weight)
        for _ in range(self.K):
            f = adjacency @ f
        return f + self.lin.bias


class _APPNP(GraphTransform):
    def __init__(self, mlp: Dense) -> None:
        super().__init__()
        self.mlp = mlp
        self.smooth = PPR(APPNP_STEPS, lambda_s=1 / APPNP_ALPHA - 1)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        return self.smooth(self.mlp(x), graph.adjacency(x.dtype))


class Network(nn.Module):
    """A transform and, behind it, a propagation: two rooms with one door.

    Args:
        transform: features to logits; a PyG ``MLP``, a :class:`GraphTransform`, or another module
            called as PyG's models are, with features, edges and their weights.
        propagation: :class:`~fairmp.nn.fmp.FMP`, :class:`~fairmp.nn.fmp.PPR`, any module
            called in the same way, or ``None``.

    Example:
        >>> network = build("mlp", in_channels=3, out_channels=2, propagation=FMP())
        >>> graph = Graph(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> network(torch.ones(2, 3), graph, sens=torch.tensor([0, 1])).shape
        torch.Size([2, 2])
    """

    def __init__(self, transform: nn.Module, propagation: nn.Module | None = None) -> None:
        super().__init__()
        self.transform = transform
        self.propagation = propagation

    def logits(self, x: Tensor, graph: Graph) -> Tensor:
        """What the transform says, before any propagation (n×C)."""
        if isinstance(self.transform, MLP):
            return self.transform(x)
        if isinstance(self.transform, GraphTransform):
            return self.transform(x, graph)
        return self.transform(x, graph.edge_index, graph.edge_weight)

    def forward(
        self,
        x: Tensor,
        graph: Graph,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return logits (n×C); ``temperature`` is handed to a propagation that has one."""
        logits = self.logits(x, graph)
        if self.propagation is None:
            return logits
        if not isinstance(self.propagation, PPR):
            weight = graph.edge_weight
            extra: dict[str, Any] = {} if weight is None else {"edge_weight": weight}
            return self.propagation(logits, graph.edge_index, sens, population, **extra)
        if isinstance(self.propagation, FMP):
            extra = self.propagation.at_prediction(temperature)
        else:
            extra = {}
        edges = graph.adjacency(logits.dtype)
        return self.propagation(logits, edges, sens, population, **extra)


def build(
    backbone: Backbone = "mlp",
    *,
    in_channels: int,
    out_channels: int,
    hidden: int = 64,
    num_layers: int = 2,
    dropout: float = 0.0,
    norm: str | None = None,
    propagation: nn.Module | None = None,
) -> Network:
    """Build a network, with the paper's setting (2 layers, 64 hidden) by default.

    The backbones are PyG's:

    - ``"mlp"``: ``MLP``, which reads each node alone.
    - ``"gcn"``: ``GCN``.
    - ``"gat"``: ``GAT`` with 4 heads. ``hidden`` is their width together, 16 a head for 64; the
      last layer takes the mean of its heads. It reads the edges and not their weights.
    - ``"sgc"``: ``SGConv`` with ``K = num_layers`` steps. It is linear and has no hidden layer, so
      ``hidden``, ``dropout`` and ``norm`` do not apply.
    - ``"appnp"``: the ``MLP`` followed by ``APPNP(K=10, alpha=0.1)``, its paper's usual setting.

    Any of them may be followed by a propagation.

    Args:
        backbone: ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` or ``"appnp"``.
        in_channels: number of features.
        out_channels: number of classes.
        hidden: width of the hidden layers.
        num_layers: number of layers.
        dropout: share of hidden units dropped in training.
        norm: normalisation between layers, by PyG's name (``"batch_norm"``, ``"layer_norm"``, …).
        propagation: what comes behind.
    """
    if backbone not in BACKBONES:
        names = ", ".join(map(repr, BACKBONES))
        raise InputError("backbone", f"{backbone!r} is unknown", f"choose one of {names}")
    for name, count in (("hidden", hidden), ("num_layers", num_layers)):
        if count < 1:
            raise InputError(name, f"{count} is too few", "give a whole number, 1 or more")
    if not 0 <= dropout < 1:
        raise InputError(
            "dropout", f"{dropout} is outside [0, 1)", "give the share to drop, such as 0.5"
        )
    if norm is not None:
        try:
            normalization_resolver(norm, 1)
        except ValueError:
            raise InputError(
                "norm",
                f"{norm!r} is no normalisation of PyG's",
                "give 'batch_norm', 'layer_norm' or None",
            ) from None
    if backbone == "gat" and hidden % GAT_HEADS:
        raise InputError(
            "hidden",
            f"{hidden} does not divide among the {GAT_HEADS} heads of 'gat'",
            f"give a multiple of {GAT_HEADS}",
        )
    shape: dict[str, Any] = {
        "in_channels": in_channels,
        "hidden_channels": hidden,
        "num_layers": num_layers,
        "out_channels": out_channels,
        "dropout": dropout,
        "norm": norm,
    }
    transform: nn.Module
    match backbone:
        case "mlp":
            transform = Dense(**shape)
        case "gcn":
            transform = _GCN(**shape)
        case "gat":
            transform = _GAT(**shape, heads=GAT_HEADS, add_self_loops=False)
        case "sgc":
            transform = _SGC(in_channels, out_channels, K=num_layers)
        case "appnp":
            transform = _APPNP(Dense(**shape))
    return Network(transform, propagation)
