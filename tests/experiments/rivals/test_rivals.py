"""The rivals: their losses by hand, and that they run in a comparison."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from experiments.rivals import NIFTY, FairGNN, FairGNNBackbone, NIFTYBackbone
from experiments.rivals.convolution import Convolution, graph_layer
from experiments.rivals.nifty import sensitive_column
from experiments.rivals.selection import SmallestGap
from fairmp.comparison.external import run_method
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split


@pytest.fixture(scope="module")
def data() -> Data:
    graph = with_split(social_network(n=300, seed=0), seed=0)
    graph.x = torch.cat([graph.x, graph.sens.unsqueeze(1).float()], 1)
    return graph


@pytest.mark.parametrize("rival", [FairGNN, NIFTY])
def test_rival_learns_and_never_reads_test_labels(rival: type, data: Data) -> None:
    predictions = []
    for hide in (False, True):
        torch.manual_seed(0)
        seen = data.clone()
        if hide:
            seen.y = data.y.masked_fill(data.test_mask, -1)
        predictions.append(rival(epochs=60, lr=0.02).fit(seen).predict_proba(seen))
    assert torch.equal(*predictions)
    decided = predictions[0].argmax(1)
    test = data.test_mask
    majority = float(torch.bincount(data.y[test]).max() / test.sum())
    assert float((decided == data.y)[test].double().mean()) > majority


def test_fairgnn_penalises_covariance(data: Data) -> None:
    """A large α leaves almost no covariance between group and prediction on the graph."""
    covariances = []
    for alpha in (0.0, 200.0):
        torch.manual_seed(0)
        model = FairGNN(alpha=alpha, beta=0.0, epochs=60, lr=0.02, max_loss=1.0).fit(data)
        p = model.predict_proba(data)[:, 1]
        s = data.sens.float()
        covariances.append(float(((s - s.mean()) * (p - p.mean())).mean().abs()))
    assert covariances[1] < 0.3 * covariances[0]


def test_nifty_brings_the_flipped_view_close(data: Data) -> None:
    assert sensitive_column(data) == data.num_features - 1
    flipped = data.x.clone()
    flipped[:, -1] = 1 - flipped[:, -1]
    distances = []
    for similarity in (0.0, 0.9):
        torch.manual_seed(0)
        network = NIFTY(similarity=similarity, epochs=80, lr=0.02).fit(data).network
        graph = Convolution(data.edge_index, data.num_nodes)
        views = (network.encode(x, graph, graph.all_edges).detach() for x in (data.x, flipped))
        distances.append(1 - float(cosine_similarity(*views).mean()))
    assert distances[1] < 0.8 * distances[0]


@pytest.mark.parametrize("hidden", [2, 40])
def test_convolution_is_pygs(hidden: int, data: Data) -> None:
    """Outputs and gradients, where features are averaged before or after the layer."""
    peer = GCNConv(data.num_features, hidden)
    layer = graph_layer(data.num_features, hidden)
    with torch.no_grad():
        layer.weight.copy_(peer.lin.weight)
        layer.bias.copy_(peer.bias.normal_())
    graph = Convolution(data.edge_index, data.num_nodes)
    direction = torch.randn(data.num_nodes, hidden)
    outputs = [graph.layer(layer, data.x, graph.all_edges), peer(data.x, data.edge_index)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        (output * direction).sum().backward()
    torch.testing.assert_close(layer.weight.grad, peer.lin.weight.grad, rtol=1e-4, atol=1e-4)


def test_dropped_edges_are_dropped_in_pygs_convolution_too(data: Data) -> None:
    graph = Convolution(data.edge_index, data.num_nodes)
    weights = graph.weights(0.3)
    kept = weights > 0
    assert 0.2 < 1 - float(kept.float().mean()) < 0.4
    peer = GCNConv(data.num_features, 2, bias=False)
    edges = torch.stack([graph.source[kept], graph.target[kept]])
    layer = graph_layer(data.num_features, 2)
    with torch.no_grad():
        layer.weight.copy_(peer.lin.weight)
    torch.testing.assert_close(graph.layer(layer, data.x, weights), peer(data.x, edges))


def test_best_epoch_trades_little_accuracy_for_a_smaller_gap() -> None:
    data = Data(
        y=torch.tensor([0, 0, 1, 1]),
        sens=torch.tensor([0, 0, 1, 1]),
        val_mask=torch.ones(4, dtype=torch.bool),
    )
    network = torch.nn.Linear(1, 1)
    for max_loss, kept in ((0.0, 0.0), (0.3, 0.0), (0.6, 1.0)):
        best = SmallestGap(network, data, max_loss)
        # The first is exact, with a gap of 1; the second selects nobody.
        outputs = ([-1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0])
        for number, logits in enumerate(outputs):
            network.weight.data.fill_(number)
            best.add(torch.tensor(logits))
        best.restore()
        assert float(network.weight.detach()) == kept


@pytest.mark.parametrize("name", ["FairGNNBackbone", "NIFTYBackbone"])
def test_backbones_have_no_fairness_part(name: str) -> None:
    model = {"FairGNNBackbone": FairGNNBackbone, "NIFTYBackbone": NIFTYBackbone}[name]()
    assert getattr(model, "alpha", 0.0) == getattr(model, "similarity", 0.0) == 0.0


def test_rival_runs_as_a_method(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = FairGNN.__init__.__defaults__
    assert defaults is not None
    monkeypatch.setattr(FairGNN.__init__, "__defaults__", (4.0, 0.01, 8, 5, *defaults[4:]))
    run = run_method("experiments.rivals:FairGNN", data, seed=0)
    assert 0 <= run["test"]["accuracy"] <= 1
    assert run["config"] == {"method": "experiments.rivals:FairGNN"}
