"""Networks: a transform that reads each node, and a propagation that reads the graph."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCN, MLP
from torch_geometric.nn.resolver import normalization_resolver

from fairmp.adjacency import Adjacency, normalise
from fairmp.errors import InputError
from fairmp.propagation import FMP, PPR

Backbone = Literal["mlp", "gcn"]
BACKBONES: tuple[Backbone, ...] = get_args(Backbone)


class Graph:
    """A graph as networks read it: its edges, and their normalisation, made when asked for."""

    def __init__(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> None:
        self.edge_index, self.num_nodes, self.edge_weight = edge_index, num_nodes, edge_weight
        self._adjacency: dict[torch.dtype, Adjacency] = {}

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """Ã, normalised once."""
        if dtype not in self._adjacency:
            self._adjacency[dtype] = normalise(
                self.edge_index, self.num_nodes, self.edge_weight, dtype
            )
        return self._adjacency[dtype]


class Network(nn.Module):
    """A transform and, behind it, a propagation: two rooms with one door.

    Args:
        transform: features to logits; a module that reads nodes alone, or one of PyG's models
            that reads the edges too.
        propagation: :class:`~fairmp.propagation.FMP`, :class:`~fairmp.propagation.PPR`, any module
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
        return self.transform(x, graph.edge_index, graph.edge_weight)

    def forward(
        self,
        x: Tensor,
        graph: Graph,
        sens: Tensor | None = None,
        population: Tensor | None = None,
        *,
        sharpness: float | None = None,
    ) -> Tensor:
        """Return logits (n×C); ``sharpness`` is handed to a propagation that has one."""
        logits = self.logits(x, graph)
        if self.propagation is None:
            return logits
        edges = (
            graph.adjacency(logits.dtype) if isinstance(self.propagation, PPR) else graph.edge_index
        )
        extra: dict[str, Any] = {}
        if isinstance(self.propagation, FMP):
            extra["sharpness"] = sharpness
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

    Args:
        backbone: ``"mlp"``, or ``"gcn"`` for PyG's graph convolutions.
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
        raise InputError(f"backbone: {backbone!r} is unknown; choose one of {names}")
    for name, count in (("hidden", hidden), ("num_layers", num_layers)):
        if count < 1:
            raise InputError(f"{name}: {count} is too few; give a whole number, 1 or more")
    if not 0 <= dropout < 1:
        raise InputError(
            f"dropout: {dropout} is outside [0, 1); give the share to drop, such as 0.5"
        )
    if norm is not None:
        try:
            normalization_resolver(norm, 1)
        except ValueError:
            raise InputError(
                f"norm: {norm!r} is no normalisation of PyG's; give 'batch_norm', 'layer_norm' or "
                "None"
            ) from None
    if backbone == "gcn":
        transform: nn.Module = GCN(
            in_channels, hidden, num_layers, out_channels, dropout=dropout, norm=norm
        )
    else:
        transform = MLP(
            in_channels=in_channels,
            hidden_channels=hidden,
            out_channels=out_channels,
            num_layers=num_layers,
            dropout=dropout,
            norm=norm,
        )
    return Network(transform, propagation)
