"""Graph networks to compare with: residual GCN, GAT and SAGE, LINK and LINKX.

They are modules for ``FairClassifier(backbone=…)`` and are trained as its own networks are.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.functional import dropout, relu
from torch_geometric.data import Data
from torch_geometric.nn import LINKX, GATConv, SAGEConv
from torch_geometric.nn.models.linkx import SparseLinear

from fairmp.graph import Graph

Convolution = Literal["gcn", "gat", "sage"]
CONVOLUTIONS: tuple[Convolution, ...] = get_args(Convolution)
RESIDUAL = {f"residual-{name}": name for name in CONVOLUTIONS}
NETWORKS = (*RESIDUAL, "link", "linkx")
GAT_HEADS = 4


def build(name: str, data: Data, *, hidden: int, num_layers: int, dropout: float) -> nn.Module:
    """Build one of :data:`NETWORKS` for a graph; its weights follow torch's seed."""
    classes = int(data.y.max()) + 1
    if name == "link":
        return Link(data.num_nodes, classes)
    if name == "linkx":
        return LINKX(
            data.num_nodes, data.num_features, hidden, classes, num_layers, dropout=dropout
        )
    return ResidualNetwork(
        RESIDUAL[name], data.num_features, hidden, classes, num_layers, dropout=dropout
    )


class ResidualNetwork(nn.Module):
    """Pre-activated residual convolutions, h ← h + conv(dropout(relu(norm(h))))."""

    takes_graph = True

    def __init__(
        self,
        convolution: Convolution,
        in_channels: int,
        hidden: int,
        out_channels: int,
        num_layers: int,
        *,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.enter = nn.Linear(in_channels, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(num_layers + 1))
        self.convolutions = nn.ModuleList(
            _convolution(convolution, hidden) for _ in range(num_layers)
        )
        self.leave = nn.Linear(hidden, out_channels)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        h = self.enter(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=False):
            h = h + convolution(self._activated(norm(h)), graph)
        logits: Tensor = self.leave(self._activated(self.norms[-1](h)))
        return logits

    def _activated(self, h: Tensor) -> Tensor:
        return dropout(relu(h), self.dropout, self.training)


def _convolution(name: Convolution, hidden: int) -> nn.Module:
    if name == "gcn":
        return _GCN(hidden)
    if name == "gat":
        return _GAT(hidden)
    return _SAGE(hidden)


class _GCN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, h: Tensor, graph: Graph) -> Tensor:
        return self.linear(graph.adjacency(h.dtype) @ h)


class _GAT(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv = GATConv(hidden, hidden // GAT_HEADS, heads=GAT_HEADS, add_self_loops=False)

    def forward(self, h: Tensor, graph: Graph) -> Tensor:
        features: Tensor = self.conv(h, graph.with_self_loops())
        return features


class _SAGE(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv = SAGEConv(hidden, hidden)

    def forward(self, h: Tensor, graph: Graph) -> Tensor:
        features: Tensor = self.conv(h, graph.edge_index)
        return features


class Link(nn.Module):
    """LINK: logistic regression on the rows of the adjacency matrix, without features."""

    takes_graph = True

    def __init__(self, num_nodes: int, out_channels: int) -> None:
        super().__init__()
        self.linear = SparseLinear(num_nodes, out_channels)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        logits: Tensor = self.linear(graph.edge_index, None)
        return logits
