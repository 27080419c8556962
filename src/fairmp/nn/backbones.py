"""PyG's models, weight for weight and result for result, on a graph that is normalised once."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, SGConv

from fairmp.graph import Adjacency, Graph
from fairmp.nn.fmp import PPR

APPNP_STEPS, APPNP_ALPHA = 10, 0.1


class GCNTransform(nn.Module):
    """PyG's ``GCN``; see it for the arguments."""

    takes_graph = True

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.gcn = GCN(**options)
        self.gcn.convs = nn.ModuleList(_NormalisedConv(conv) for conv in self.gcn.convs)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        logits: Tensor = self.gcn(x, graph.adjacency(x.dtype))
        return logits


class _NormalisedConv(nn.Module):
    """A ``GCNConv`` called with a normalised adjacency."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.lin, self.bias = conv.get_submodule("lin"), conv.get_parameter("bias")

    def forward(self, x: Tensor, adjacency: Adjacency, edge_weight: None = None) -> Tensor:
        features: Tensor = self.lin(x)
        return adjacency @ features + self.bias


class GATTransform(nn.Module):
    """PyG's ``GAT``, which reads the edges and not their weights; see it for the arguments."""

    takes_graph = True

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.gat = GAT(**options, add_self_loops=False)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        logits: Tensor = self.gat(x, graph.with_self_loops())
        return logits


class SGCTransform(nn.Module):
    """PyG's ``SGConv``."""

    takes_graph = True

    def __init__(self, in_channels: int, out_channels: int, K: int) -> None:
        super().__init__()
        self.K = K
        self.lin: nn.Linear = SGConv(in_channels, out_channels, K=K).lin

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

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp
        self.smooth = PPR(APPNP_STEPS, lambda_s=1 / APPNP_ALPHA - 1)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits."""
        logits: Tensor = self.smooth(self.mlp(x), graph.adjacency(x.dtype))
        return logits
