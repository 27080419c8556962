"""Networks by the name of their backbone, and those of your own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN, MLP, GATConv, SAGEConv, SGConv

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.graph import Graph
from fairmp.nn.dense import Dense
from fairmp.nn.models import BACKBONES, Network, build, check_backbone, name_of


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=300, average_degree=6, seed=1)


def test_build_refuses_a_width_that_heads_do_not_share() -> None:
    with pytest.raises(InputError, match="10") as error:
        build("gat", in_channels=5, out_channels=3, hidden=10)
    assert error.value.argument == "hidden"


@pytest.mark.parametrize(
    ("argument", "value"),
    [("hidden", 0), ("num_layers", 0), ("dropout", 1.0), ("norm", "magic")],
)
def test_build_names_wrong_arguments(argument: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        build("mlp", in_channels=5, out_channels=3, **{argument: value})  # type: ignore[arg-type]
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, Dense), ({"dropout": 0.5}, MLP), ({"norm": "batch_norm"}, MLP)],
)
def test_build_takes_the_fast_mlp_where_it_can(options: dict[str, object], kind: type) -> None:
    network = build("mlp", in_channels=5, out_channels=3, **options)  # type: ignore[arg-type]
    assert type(network.transform) is kind


def test_build_refuses_an_unknown_backbone_with_the_known_ones() -> None:
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


def test_a_custom_transform_is_called_as_pyg_models_are(data: Data) -> None:
    custom = GCN(data.x.size(1), 8, 2, 2)
    graph = Graph(data.edge_index, data.num_nodes)
    assert torch.equal(Network(custom)(data.x, graph), custom(data.x, data.edge_index))


def test_a_custom_transform_may_take_features_alone(data: Data) -> None:
    class Alone(nn.Linear):
        takes_graph = False

    graph, custom = Graph(data.edge_index, data.num_nodes), Alone(data.x.size(1), 2)
    assert torch.equal(Network(custom)(data.x, graph), custom(data.x))


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
    class Custom(nn.Module):
        def forward(self, x, edge_index, sens=None, population=None, edge_weight=None):  # type: ignore[no-untyped-def]
            self.seen = edge_weight
            return x

    custom, weight = Custom(), torch.tensor([0.5, 0.5])
    network = build("mlp", in_channels=3, out_channels=2, propagation=custom)
    network(torch.ones(2, 3), Graph(torch.tensor([[0, 1], [1, 0]]), 2, weight))
    assert custom.seen is weight


@pytest.mark.parametrize("module", [SAGEConv(3, 2), GATConv(3, 2), SGConv(3, 2)])
@pytest.mark.parametrize("role", ["backbone", "propagation"])
def test_modules_of_pyg_are_called_with_what_they_take(module: nn.Module, role: str) -> None:
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.randn(2, 3)
    network = Network(module) if role == "backbone" else Network(nn.Identity(), module)
    if role == "propagation":
        network.transform.takes_graph = False  # type: ignore[assignment]
    sens = torch.tensor([0, 1])
    assert torch.equal(network(x, Graph(edges, 2), sens), module(x, edges))
    weight = torch.tensor([0.5, 2.0])
    if isinstance(module, SGConv):
        assert torch.equal(network(x, Graph(edges, 2, weight)), module(x, edges, weight))
    else:
        with pytest.warns(UserWarning, match="takes no edge_weight"):
            assert torch.equal(network(x, Graph(edges, 2, weight)), module(x, edges))


def test_a_module_that_does_not_take_edges_is_refused(data: Data) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index)  # type: ignore[call-arg]

    channels = data.x.size(1), 2
    with pytest.raises(InputError, match=r"^backbone: Linear: too many .*edge_index\)$"):
        FairClassifier(FMP(), backbone=nn.Linear(*channels)).fit(data)
    with pytest.raises(TypeError):  # its own error
        FairClassifier(FMP(), backbone=Wrong(*channels)).fit(data)


def test_pyg_is_imported_when_a_network_is_built() -> None:
    code = "import sys, fairmp.nn.models; assert 'fairmp.nn.dense' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("backbone", ["rnn", 3, nn.Linear])
def test_check_backbone_refuses_what_no_classifier_takes(backbone: object) -> None:
    with pytest.raises(InputError) as error:
        check_backbone(backbone)
    assert error.value.argument == "backbone"


def test_names_of_backbones() -> None:
    check_backbone("auto")
    check_backbone(nn.Linear(2, 2))
    assert name_of("gcn") == "gcn"
    assert name_of(nn.Linear(2, 2)) == "Linear"


def test_calibration_is_applied_to_the_logits_of_the_transform() -> None:
    network, graph = build("mlp", in_channels=3, out_channels=2), Graph(torch.zeros(2, 0).long(), 4)
    x = torch.randn(4, 3)
    before = network.logits(x, graph)
    network.calibration = torch.tensor([2.0, 1.0, -1.0])
    expected = 2 * before + torch.tensor([1.0, -1.0])
    torch.testing.assert_close(network.logits(x, graph), expected)
