from __future__ import annotations

import numpy as np
import pytest
import torch
from fairlearn.metrics import demographic_parity_difference
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch_geometric.data import Data
from torch_geometric.nn import SGConv, SimpleConv
from torch_geometric.utils import add_self_loops

from experiments.measured_bias import aggregate, measured_bias, measured_change
from fairmp.analysis.theory import blocks, mutual_information_bound, predicted_change
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.measurement import measured_moments
from fairmp.errors import InputError


@pytest.fixture(scope="module")
def data() -> Data:
    return block_graph(1000, 0.01, 0.7, 0.4, seed=2)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_row_aggregation_is_the_mean_with_self_loops(data: Data, steps: int) -> None:
    loops = add_self_loops(data.edge_index)[0]
    expected = data.x.double()
    for _ in range(steps):
        expected = SimpleConv(aggr="mean")(expected, loops)
    got = aggregate(data.x, data.edge_index, steps=steps)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected.float())


def test_symmetric_aggregation_is_sgc(data: Data) -> None:
    layer = SGConv(2, 2, K=2, bias=False)
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(2))
        expected = layer(data.x, data.edge_index)
    got = aggregate(data.x, data.edge_index, steps=2, normalisation="symmetric")
    torch.testing.assert_close(got, expected)


def test_parity_is_that_of_discriminant_analysis() -> None:
    data = block_graph(2000, 0.01, 0.7, 0.5, covariances=[np.eye(2), np.diag([2.0, 0.5])], seed=1)
    x, sens = data.x.double().numpy(), data.sens.numpy()
    oracle = LinearDiscriminantAnalysis(solver="lsqr", priors=[0.5, 0.5]).fit(x, sens)
    expected = demographic_parity_difference(sens, oracle.predict(x), sensitive_features=sens)
    assert measured_bias(data.x, data.sens).parity == pytest.approx(expected, abs=1e-9)


def test_bias_of_several_groups_is_the_worst_pair(data: Data) -> None:
    sens = torch.arange(1000) % 3
    x = data.x + sens.unsqueeze(1) ** 2
    bias = measured_bias(x, sens)
    moments = measured_moments(x, sens)
    assert bias.gap == pytest.approx(np.linalg.norm(moments.means[2] - moments.means[0]))
    assert bias.information == mutual_information_bound(
        moments.means, moments.covariances, moments.shares
    )
    two = torch.where(sens == 1, -1, sens // 2)
    assert bias.parity == pytest.approx(measured_bias(x, two).parity)


def test_ridge_makes_dependent_features_measurable(data: Data) -> None:
    x = torch.cat([data.x, data.x[:, :1]], dim=1)
    twice = Data(x=x, edge_index=data.edge_index, sens=data.sens)
    with pytest.raises(InputError, match="smallest eigenvalue"):
        measured_change(twice)
    ridged, plain = measured_change(twice, ridge=1e-4), measured_change(data)
    assert ridged.information == pytest.approx(plain.information, abs=0.01)


def test_one_step_agrees_with_the_prediction() -> None:
    model = (5000, 4e-3, 0.75, 0.35)
    covariances = np.array([np.eye(2), [[2.0, 0.5], [0.5, 0.5]]])
    for normalisation in ("row", "symmetric"):
        changes = [
            measured_change(
                block_graph(*model, covariances=covariances, seed=seed),
                normalisation=normalisation,
            )
            for seed in range(12)
        ]
        theory = predicted_change(
            *blocks(*model), covariances=covariances, normalisation=normalisation
        )
        for quantity in ("gap", "information"):
            values = np.array([getattr(change, quantity) for change in changes])
            error = values.std(ddof=1) / np.sqrt(len(values))
            assert abs(values.mean() - getattr(theory, quantity)) < 4.5 * error
        parity = np.mean([change.parity for change in changes])
        assert parity == pytest.approx(theory.parity, abs=0.015)


def test_negative_steps_are_refused(data: Data) -> None:
    with pytest.raises(InputError, match="steps: -1"):
        aggregate(data.x, data.edge_index, steps=-1)
