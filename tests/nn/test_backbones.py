"""The backbones against PyG's models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv

from fairmp.datasets import social_network
from fairmp.graph import Graph
from fairmp.nn.models import build


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=300, average_degree=6, seed=1)


class MLPWithAPPNP(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.mlp = MLP([in_channels, 64, 3], norm=None)
        self.smooth = APPNP(K=10, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        return self.smooth(self.mlp(x), edge_index, edge_weight)


PYG = {
    "gcn": lambda features: GCN(features, 64, 2, 3),
    "gat": lambda features: GAT(features, 64, 2, 3, heads=4),
    "sgc": lambda features: SGConv(features, 3, K=2),
    "appnp": MLPWithAPPNP,
}


@pytest.mark.parametrize("backbone", PYG)
@pytest.mark.parametrize("kind", ["plain", "weighted", "loops", "directed"])
def test_results_and_gradients_equal_pyg(data: Data, backbone: str, kind: str) -> None:
    edges, weight = data.edge_index, None
    if kind == "weighted":
        weight = torch.rand(edges.size(1), generator=torch.Generator().manual_seed(0)).double()
    elif kind == "loops":
        edges = torch.cat([edges, torch.tensor([[0, 7], [0, 7]])], 1)
    elif kind == "directed":
        edges = edges[:, edges[0] < edges[1]]
    x = data.x.double()
    ours = build(backbone, in_channels=x.size(1), out_channels=3).double()  # type: ignore[arg-type]
    theirs = PYG[backbone](x.size(1)).double()
    inner = getattr(ours.transform, backbone, ours.transform)  # the model that is wrapped, if any
    theirs.load_state_dict(inner.state_dict())  # weight for weight
    graph = Graph(edges, x.size(0), weight)
    logits, expected = ours(x, graph), theirs(x, edges, weight)
    torch.testing.assert_close(logits, expected)
    assert torch.equal(ours(x, graph), logits)  # what was made of the graph serves a second call
    logits.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("backbone", ["gcn", "gat", "sgc", "mlp"])
def test_same_seed_same_weights_as_pyg(backbone: str) -> None:
    make = {**PYG, "mlp": lambda features: MLP([features, 64, 3], norm=None)}
    torch.manual_seed(0)
    ours = build(backbone, in_channels=5, out_channels=3)  # type: ignore[arg-type]
    torch.manual_seed(0)
    theirs = make[backbone](5)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_heads_of_gat_share_the_hidden_width() -> None:
    convs = build("gat", in_channels=5, out_channels=3).transform.gat.convs  # type: ignore[union-attr]
    assert [(c.heads, c.out_channels, c.concat) for c in convs] == [(4, 16, True), (4, 3, False)]
