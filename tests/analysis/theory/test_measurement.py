from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch_geometric.data import Data
from torch_geometric.nn import SGConv, SimpleConv
from torch_geometric.utils import add_self_loops

from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.measurement import (
    Halves,
    averaged,
    block_counts,
    graph_parameters,
    held_out_bias,
    measured_moments,
)
from fairmp.errors import InputError


@pytest.fixture(scope="module")
def data() -> Data:
    return block_graph(1000, 0.01, 0.7, 0.4, seed=2)


def test_row_averages_are_means_with_self_loops(data: Data) -> None:
    loops = add_self_loops(data.edge_index)[0]
    expected = data.x.double()
    for values in averaged(data.x.double().numpy(), data.edge_index, 3, "row"):
        expected = SimpleConv(aggr="mean")(expected, loops)
        np.testing.assert_allclose(values, expected.numpy())


def test_symmetric_averages_are_those_of_sgc(data: Data) -> None:
    layer = SGConv(2, 2, K=2, bias=False)
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(2))
        expected = layer(data.x, data.edge_index)
    *_, values = averaged(data.x.numpy(), data.edge_index, 2, "symmetric")
    assert values.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(values), expected)


def test_moments_leave_unknown_groups_out(data: Data) -> None:
    sens = data.sens.clone()
    sens[::3] = -1
    moments = measured_moments(data.x, sens)
    for g in (0, 1):
        part = data.x[sens == g].double().numpy()
        np.testing.assert_allclose(moments.means[g], part.mean(0))
        np.testing.assert_allclose(moments.covariances[g], np.cov(part.T))
        assert moments.shares[g] == pytest.approx(len(part) / int((sens >= 0).sum()))


def test_graph_parameters_come_back_from_a_sample() -> None:
    data = block_graph(20_000, 2e-3, 0.8, 0.3, seed=4)
    n, rho, eps, c = graph_parameters(data)
    assert (n, c) == (20_000, 0.3)
    assert rho == pytest.approx(2e-3, rel=0.01)
    assert eps == pytest.approx(0.8, abs=0.005)
    assert rho * (n - 1) == pytest.approx(data.num_edges / n)


def test_block_counts_agree_with_counting(data: Data) -> None:
    sens = data.sens.clone()
    sens[::5], sens[1::5] = -1, 2
    sizes, probabilities = block_counts(Data(edge_index=data.edge_index, sens=sens))
    dense = torch.zeros(1000, 1000)
    dense[tuple(data.edge_index)] = 1
    for a in range(3):
        assert sizes[a] == int((sens == a).sum())
        for b in range(3):
            part = dense[sens == a][:, sens == b]
            pairs = part.numel() - (len(part) if a == b else 0)
            assert probabilities[a, b] == pytest.approx(float(part.sum()) / pairs)


def test_held_out_rule_is_linear_discriminant_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "HELD_OUT_RIDGE", 0.0)
    rng = np.random.default_rng(1)
    groups = (rng.random(600) < 0.3).astype(int)
    x = rng.normal(size=(600, 5)) @ rng.normal(size=(5, 5)) + groups[:, None] * [1, 0, 0.5, 0, 0]
    half = np.arange(600) % 2
    rates = []
    for k in (0, 1):
        learn, read = half == k, half != k
        rule = LinearDiscriminantAnalysis(priors=[0.5, 0.5]).fit(x[learn], groups[learn])
        predicted = rule.predict(x[read])
        rates.append(predicted[groups[read] == 1].mean() - predicted[groups[read] == 0].mean())
    parity = held_out_bias(x, Halves(groups, half)).parity
    assert parity == pytest.approx(np.mean(rates), abs=0.01)


@pytest.mark.parametrize("distance", [0.0, 1.0, 2.5])
def test_separation_and_parity_of_normal_groups(distance: float) -> None:
    rng = np.random.default_rng(2)
    groups = np.arange(20_000) % 2
    x = rng.normal(size=(20_000, 6))
    x[:, 2] += distance * groups
    separation, parity = held_out_bias(x, Halves(groups, np.arange(20_000) // 2 % 2))
    assert separation == pytest.approx(distance, abs=0.04)
    assert parity == pytest.approx(2 * ndtr(distance / 2) - 1, abs=0.02)


def test_column_that_is_the_group_predicts_it() -> None:
    groups = np.arange(40) % 2
    halves = Halves(groups, np.arange(40) // 2 % 2)
    assert held_out_bias(groups[:, None] * 1.0, halves).parity == 1
    assert held_out_bias(np.ones((40, 1)), halves).parity == 0


def test_rules_by_conjugate_gradients_are_those_by_factorisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    group = rng.integers(0, 3, 600)
    values = rng.normal(size=(600, 40)) + np.eye(3, 40)[group]
    halves = Halves(group, rng.integers(0, 2, 600))
    direct = held_out_bias(values, halves)
    monkeypatch.setattr(measurement, "MAX_DIRECT", 0)
    assert held_out_bias(values, halves) == pytest.approx(direct, abs=0.01)


def test_wrong_input_is_refused(data: Data) -> None:
    with pytest.raises(InputError, match=r"sens: \[1000\] nodes by group"):
        measured_moments(data.x, torch.zeros(1000, dtype=torch.long))
    lonely = torch.tensor([[0], [0]], dtype=torch.long)[:, :0]
    with pytest.raises(InputError, match="no edge joins two nodes of known group"):
        graph_parameters(Data(edge_index=lonely, sens=data.sens))
    with pytest.raises(InputError, match="sens: 3 groups"):
        graph_parameters(Data(edge_index=data.edge_index, sens=torch.arange(1000) % 3))
    with pytest.raises(InputError, match=r"sens: \[\] nodes by group"):
        block_counts(Data(edge_index=data.edge_index, sens=torch.full((1000,), -1)))
