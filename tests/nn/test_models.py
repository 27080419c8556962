from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.graph import Graph
from fairmp.nn.models import BACKBONES, Network, build


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=300, average_degree=6, seed=1)


class TheirAPPNP(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.mlp = MLP([in_channels, 64, 3], norm=None)
        self.smooth = APPNP(K=10, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        return self.smooth(self.mlp(x), edge_index, edge_weight)


THEIRS = {
    "gcn": lambda d: GCN(d, 64, 2, 3),
    "gat": lambda d: GAT(d, 64, 2, 3, heads=4),
    "sgc": lambda d: SGConv(d, 3, K=2),
    "appnp": TheirAPPNP,
}


@pytest.mark.parametrize("backbone", THEIRS)
@pytest.mark.parametrize("kind", ["plain", "weighted", "loops", "directed"])
def test_backbones_equal_pyg(data: Data, backbone: str, kind: str) -> None:
    edges, weight = data.edge_index, None
    if kind == "weighted":
        weight = torch.rand(edges.size(1), generator=torch.Generator().manual_seed(0))
    elif kind == "loops":
        edges = torch.cat([edges, torch.tensor([[0, 7], [0, 7]])], 1)
    elif kind == "directed":
        edges = edges[:, edges[0] < edges[1]]
    x = data.x.double()
    torch.manual_seed(0)
    mine = build(backbone, in_channels=x.size(1), out_channels=3).double()  # type: ignore[arg-type]
    theirs = THEIRS[backbone](x.size(1)).double()
    theirs.load_state_dict(mine.transform.state_dict())  # weight for weight
    graph = Graph(edges, x.size(0), None if weight is None else weight.double())
    ours, pygs = mine(x, graph), theirs(x, edges, graph.edge_weight)
    torch.testing.assert_close(ours, pygs)
    again = mine(x, graph)  # what was made of the graph serves a second call
    assert torch.equal(ours, again)
    ours.square().sum().backward()
    pygs.square().sum().backward()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_heads_share_the_hidden_width(data: Data) -> None:
    convs = build("gat", in_channels=5, out_channels=3).transform.convs  # type: ignore[union-attr]
    assert [(c.heads, c.out_channels, c.concat) for c in convs] == [  # type: ignore[union-attr]
        (4, 16, True),
        (4, 3, False),
    ]
    with pytest.raises(InputError, match="10") as error:
        build("gat", in_channels=5, out_channels=3, hidden=10)
    assert error.value.argument == "hidden"


def test_an_unknown_backbone_is_refused_with_the_known_ones() -> None:
    assert BACKBONES == ("mlp", "gcn", "gat", "sgc", "appnp")
    with pytest.raises(InputError) as error:
        build("rnn", in_channels=2, out_channels=2)  # type: ignore[arg-type]
    assert all(repr(name) in str(error.value) for name in BACKBONES)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_any_backbone_takes_a_propagation(data: Data, backbone: str) -> None:
    net = build(
        backbone,  # type: ignore[arg-type]
        in_channels=data.x.size(1),
        out_channels=2,
        propagation=FMP(target=0.01),
    )
    p = net(data.x, Graph(data.edge_index, data.num_nodes), data.sens).detach().softmax(1)[:, 1]
    assert abs(float(p[data.sens == 0].mean() - p[data.sens == 1].mean())) < 0.0102


def test_a_custom_transform_is_called_like_a_pyg_model(data: Data) -> None:
    own = GCN(data.x.size(1), 8, 2, 2)
    graph = Graph(data.edge_index, data.num_nodes)
    assert torch.equal(Network(own)(data.x, graph), own(data.x, data.edge_index))


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("extra", [{}, {"norm": "batch_norm", "dropout": 0.3, "num_layers": 3}])
def test_backbones_are_saved_and_loaded(
    data: Data, backbone: str, extra: dict[str, object], tmp_path: Path
) -> None:
    model = FairClassifier(None, backbone=backbone, epochs=2, hidden=8, **extra)  # type: ignore[arg-type]
    model.fit(data, bootstrap=0)
    again = FairClassifier.load(model.save(tmp_path / "model"))
    assert again.config() == model.config()
    assert torch.equal(model.predict_proba(data), again.predict_proba(data))


def test_a_custom_propagation_gets_the_edge_weights() -> None:
    class Own(nn.Module):
        def forward(self, x, edge_index, sens=None, population=None, edge_weight=None):  # type: ignore[no-untyped-def]
            self.seen = edge_weight
            return x

    own, weight = Own(), torch.tensor([0.5, 0.5])
    network = build("mlp", in_channels=3, out_channels=2, propagation=own)
    network(torch.ones(2, 3), Graph(torch.tensor([[0, 1], [1, 0]]), 2, weight))
    assert own.seen is weight


def test_a_module_that_does_not_take_edges_is_one_line(data: Data) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index)  # type: ignore[call-arg]

    channels = data.x.size(1), 2
    with pytest.raises(InputError, match=r"^backbone: Linear.forward\(\) takes 2 .*edge_index\)$"):
        FairClassifier(FMP(), backbone=nn.Linear(*channels)).fit(data)
    with pytest.raises(TypeError):  # its own error
        FairClassifier(FMP(), backbone=Wrong(*channels)).fit(data)


def test_pygs_layers_are_imported_when_a_network_is_built() -> None:
    code = "import sys, fairmp.nn.models; assert 'fairmp.nn.dense' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
