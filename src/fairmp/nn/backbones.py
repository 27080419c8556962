"""PyG's models, weight for weight and result for result, on a graph that is normalised once."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GCNConv, SGConv

from fairmp.graph import Adjacency, Graph
from fairmp.nn.dense import Dense
from fairmp.nn.fmp import PPR

APPNP_STEPS, APPNP_ALPHA = 10, 0.1


class NormalisedGCNConv(GCNConv):
    """PyG's ``GCNConv``, called with a normalised adjacency."""

    def forward(self, x: Tensor, adjacency: Adjacency, edge_weight: None = None) -> Tensor:
        """Multiply with the adjacency."""
        return adjacency @ self.lin(x) + self.bias


class GCNTransform(GCN):
    """PyG's ``GCN``."""

    takes_graph = True

    def init_conv(self, in_channels: int, out_channels: int, **kwargs: Any) -> NormalisedGCNConv:
        """Build a layer."""
        return NormalisedGCNConv(in_channels, out_channels, **kwargs)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        return super().forward(x, graph.adjacency(x.dtype))


class GATTransform(GAT):
    """PyG's ``GAT``; it reads the edges and not their weights."""

    takes_graph = True

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        return super().forward(x, graph.with_self_loops())


class SGCTransform(SGConv):
    """PyG's ``SGConv``."""

    takes_graph = True

    K: int
    lin: nn.Linear

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits, as Ã^K (X W), which has fewer columns than Ã^K X."""
        adjacency = graph.adjacency(x.dtype)
        f = nn.functional.linear(x, self.lin.weight)
        for _ in range(self.K):
            f = adjacency @ f
        return f + self.lin.bias


class APPNPTransform(nn.Module):
    """An MLP followed by PyG's ``APPNP``."""

    takes_graph = True

    def __init__(self, mlp: Dense) -> None:
        super().__init__()
        self.mlp = mlp
        self.smooth = PPR(APPNP_STEPS, lambda_s=1 / APPNP_ALPHA - 1)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        return self.smooth(self.mlp(x), graph.adjacency(x.dtype))
