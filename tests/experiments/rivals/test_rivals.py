"""The rivals: their losses by hand, what they learn, and that they run in a comparison."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from experiments.rivals import NIFTY, FairGNN, FairGNNBackbone, NIFTYBackbone
from experiments.rivals.convolution import Convolution, graph_layer
from experiments.rivals.fairgnn import _Network as FairGNNNetwork
from experiments.rivals.nifty import _Network as NIFTYNetwork
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


@pytest.mark.parametrize("favoured", [-1, 1])
def test_fairgnn_loss_and_its_gradients_equal_the_equations_in_numpy(favoured: int) -> None:
    """α·|covariance| − β·(the adversary's loss), for groups that are known or estimated."""
    nodes, units, alpha, beta = 6, 3, 4.0, 0.7
    s = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.3, 0.9], dtype=torch.float64)
    h = torch.randn(nodes, units, dtype=torch.float64, requires_grad=True)
    z = (0.3 * torch.randn(nodes) + 2 * favoured * s).requires_grad_()
    model = FairGNN(alpha=alpha, beta=beta)
    model.network = FairGNNNetwork(features=2, hidden=units, dropout=0.5).double()
    loss = model._fairness(h, z, s)
    loss.backward()

    adversary, group = model.network.adversary, s.numpy()
    w, b = adversary.weight.detach().numpy()[0], adversary.bias.detach().numpy()
    p, guessed = expit(z.detach().numpy()), expit(h.detach().numpy() @ w + b)
    covariance = np.cov(p, group, bias=True)[0, 1]
    assert np.sign(covariance) == favoured
    cross_entropy = -np.mean(group * np.log(guessed) + (1 - group) * np.log(1 - guessed))
    assert loss.item() == pytest.approx(alpha * abs(covariance) - beta * cross_entropy, rel=1e-12)
    # Descent shrinks the covariance, and raises the cross-entropy, whose gradient is ŝ − s.
    towards = alpha * np.sign(covariance) * (group - group.mean()) * p * (1 - p) / nodes
    away = -beta * np.outer(guessed - group, w) / nodes
    assert z.grad is not None
    assert h.grad is not None
    np.testing.assert_allclose(z.grad.numpy(), towards, rtol=1e-10)
    np.testing.assert_allclose(h.grad.numpy(), away, rtol=1e-10)


class RecordingFairGNN(FairGNN):
    """Keeps the groups it was trained with, and the adversary's loss of every epoch."""

    def _fairness(self, h: Tensor, z: Tensor, s: Tensor) -> Tensor:
        with torch.no_grad():
            guessed = self.network.adversary(h).squeeze(1)
        self.groups = s
        self.losses = [*getattr(self, "losses", []), log_loss(guessed, s)]
        return super()._fairness(h, z, s)


def log_loss(logits: Tensor, s: Tensor) -> float:
    p = expit(logits.double().numpy())
    return float(-np.mean(s.numpy() * np.log(p) + (1 - s.numpy()) * np.log(1 - p)))


def test_fairgnn_adversary_learns_the_group_and_beta_opposes_it(data: Data) -> None:
    losses = []
    for beta in (0.001, 0.03, 0.3):
        torch.manual_seed(0)
        model = RecordingFairGNN(alpha=0.0, beta=beta, hidden=16, epochs=60, lr=0.02, dropout=0.0)
        losses.append(np.mean(model.fit(data).losses[-20:]))
    chance = log_loss(torch.zeros(300), data.sens)  # half of the nodes are of each group
    assert losses[0] < 0.6 * chance
    assert 1.2 * losses[0] < losses[1]
    assert 1.2 * losses[1] < losses[2]


def test_fairgnn_estimates_unknown_groups_and_keeps_known_ones(data: Data) -> None:
    unknown = (torch.rand(300) < 0.5) & ~data.val_mask
    partly = data.clone()
    partly.sens = data.sens.masked_fill(unknown, -1)
    model = RecordingFairGNN(hidden=16, epochs=60, lr=0.02).fit(partly)
    estimated = unknown | data.test_mask  # groups of test nodes are not read
    assert torch.equal(model.groups[~estimated], data.sens[~estimated].float())
    guesses, truth = model.groups[estimated], data.sens[estimated]
    assert ((guesses >= 0) & (guesses <= 1)).all()
    # The group is a feature, which neighbours blur.
    assert float(((guesses > 0.5) == truth).double().mean()) > 0.9
    assert float(guesses[truth == 0].mean()) < 0.2
    assert float(guesses[truth == 1].mean()) > 0.8


def test_fairgnn_does_not_read_groups_of_test_nodes(data: Data) -> None:
    predictions = []
    for sens in (data.sens, data.sens.masked_fill(data.test_mask, -1)):
        torch.manual_seed(0)
        seen = data.clone()
        seen.sens = sens
        predictions.append(FairGNN(hidden=16, epochs=20, lr=0.02).fit(seen).predict_proba(data))
    assert torch.equal(*predictions)


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


def predicted_view(network: NIFTYNetwork, z: np.ndarray) -> np.ndarray:
    """The predictor t: a linear layer, normalised over the nodes, and ReLU."""
    linear, norm = network.predictor[0], network.predictor[1]
    w, b, scale, shift = (
        parameter.detach().numpy()
        for parameter in (linear.weight, linear.bias, norm.weight, norm.bias)
    )
    a = z @ w.T + b
    return np.maximum((a - a.mean(0)) / np.sqrt(a.var(0) + norm.eps) * scale + shift, 0)


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """D of the equation, on average over the nodes."""
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(1 - (a * b).sum(1) / sizes))


def test_nifty_distance_and_its_gradient_equal_the_equation_in_numpy() -> None:
    """½·[D(t(z₁), z₂) + D(t(z₂), z₁)], whose gradient passes through t alone."""
    network = NIFTYNetwork(features=2, hidden=4, lipschitz=False).double()
    with torch.no_grad():
        for parameter in network.predictor.parameters():
            parameter.uniform_(0.1, 1)  # the normalisation too, which starts as the identity
    first, second = (torch.rand(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    distance = network.distance(first, second)
    distance.backward()

    def half(view: np.ndarray, other: np.ndarray) -> float:
        return cosine_distance(predicted_view(network, view.reshape(5, 4)), other) / 2

    one, two = first.detach().numpy(), second.detach().numpy()
    assert distance.item() == pytest.approx(half(one, two) + half(two, one), rel=1e-9)
    for view, other, gradient in ((one, two, first.grad), (two, one, second.grad)):
        assert gradient is not None
        slope = approx_fprime(view.ravel(), half, 1e-7, other)
        np.testing.assert_allclose(gradient.numpy().ravel(), slope, atol=1e-6)


def test_nifty_similarity_is_the_weight_of_the_views(data: Data) -> None:
    """At 1 only they count: the weights after an epoch do not depend on the labels."""
    for similarity, reads_labels in ((1.0, False), (0.5, True)):
        encoders = []
        for y in (data.y, 1 - data.y):
            torch.manual_seed(0)
            seen = data.clone()
            seen.y = y
            network = NIFTY(similarity=similarity, epochs=1, lr=0.02).fit(seen).network
            encoders.append(network.encoder.weight.detach())
        assert torch.equal(*encoders) is not reads_labels


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
