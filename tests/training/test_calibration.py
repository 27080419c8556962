from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier
from fairmp.datasets import load, social_network
from fairmp.datasets.protocols import nifty_split
from fairmp.datasets.splits import with_split
from fairmp.groups import group_operator
from fairmp.training.calibration import PlainPropagation, fit_calibration, propagate_uncorrected
from fairmp.training.nodes import graph_of

FAST = {"epochs": 25, "lr": 0.02, "eval_every": 5}


def distorted(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are twice the log odds of their labels, and off by a constant per class."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator).double()
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return 2 * logits + torch.arange(classes), y


def test_fit_calibration_is_a_logistic_regression_on_log_odds() -> None:
    z, y = distorted(2000, 2)
    slope, low, high = fit_calibration(PlainPropagation(z, torch.ones(2000, 1)), y).tolist()
    odds = (z[:, 1] - z[:, 0]).numpy()[:, None]
    expected = LogisticRegression(C=np.inf, tol=1e-10).fit(odds, y.numpy())
    assert slope == pytest.approx(float(expected.coef_[0, 0]), abs=0.01)
    assert high - low == pytest.approx(float(expected.intercept_[0]), abs=0.02)
    assert slope == pytest.approx(0.5, abs=0.1)


def test_fit_calibration_scales_the_bias_by_what_reaches_a_node() -> None:
    z, y = distorted(1500, 2, seed=1)
    c = 0.5 + torch.rand(1500, 1).double()
    slope, low, high = fit_calibration(PlainPropagation(z, c), y).tolist()
    columns = torch.cat([z[:, 1:] - z[:, :1], c], 1).numpy()
    expected = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(columns, y.numpy())
    assert [slope, high - low] == pytest.approx(expected.coef_[0].tolist(), abs=0.02)


def test_fit_calibration_minimises_the_cross_entropy_of_four_classes() -> None:
    z, y = distorted(4000, 4, seed=2)
    calibration = fit_calibration(PlainPropagation(z, torch.ones(4000, 1)), y).requires_grad_()
    torch.nn.functional.cross_entropy(calibration[0] * z + calibration[1:], y).backward()
    assert calibration.grad is not None
    assert float(calibration.grad.abs().max()) < 1e-3
    assert float(calibration.detach()[0]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("labels", [[1] * 30, [0, 1] * 15])
def test_fit_calibration_is_finite_for_one_class_and_separable_labels(labels: list[int]) -> None:
    y = torch.tensor(labels)
    logits = torch.nn.functional.one_hot(y, 3).float()
    calibration = fit_calibration(PlainPropagation(logits, torch.ones(30, 1)), y)
    assert bool(torch.isfinite(calibration).all())
    assert float(calibration[0]) > 0


def test_calibration_commutes_with_plain_propagation() -> None:
    data = social_network(300, average_degree=6)
    x, calibration = torch.randn(300, 3), torch.tensor([0.7, 0.1, -0.4, 0.3])
    layer = FMP(4, 2.0)
    plain = propagate_uncorrected(x, layer, graph_of(data).adjacency(x.dtype))
    torch.testing.assert_close(plain.logits, PPR(4, 2.0)(x, data.edge_index))
    expected = PPR(4, 2.0)(calibration[0] * x + calibration[1:], data.edge_index)
    calibrated = calibration[0] * plain.logits + plain.ones * calibration[1:]
    torch.testing.assert_close(calibrated, expected)


@pytest.fixture(scope="module")
def skewed() -> Data:
    """A graph with balanced classes in training and rare positives elsewhere."""
    data = with_split(social_network(3000, average_degree=8, base_rate=0.2, base_rate_gap=0.1))
    train = data.train_mask.nonzero()[:, 0]
    negatives = train[data.y[train] == 0]
    data.train_mask[negatives[int((data.y[train] == 1).sum()) :]] = False
    return data


def test_calibration_corrects_class_balanced_training_nodes(skewed: Data, tmp_path: Path) -> None:
    models = [
        FairClassifier(FMP(3, 1.0), calibrate=on, **FAST, backbone="mlp") for on in (False, True)
    ]
    raw, calibrated = (model.fit(skewed, bootstrap=0).run_.test for model in models)
    assert calibrated.accuracy > raw.accuracy + 0.02
    assert calibrated.dp < 0.01
    assert models[0].network_.calibration is None
    again = FairClassifier.load(models[1].save(tmp_path / "model"))
    for mode in ("batch", "per-node"):
        assert torch.equal(
            again.predict_proba(skewed, mode=mode), models[1].predict_proba(skewed, mode=mode)
        )
    assert again.evaluate(skewed, bootstrap=0).accuracy == calibrated.accuracy


def test_probabilities_are_calibrated(skewed: Data) -> None:
    plain = FairClassifier(PPR(3, 1.0), **FAST, backbone="mlp")
    plain.fit(skewed, bootstrap=0)
    test = skewed.test_mask
    positive = plain.predict_proba(skewed, nodes=test)[:, 1]
    assert float(positive.mean()) == pytest.approx(float(skewed.y[test].double().mean()), abs=0.03)


def test_user_defined_propagation_is_not_calibrated(skewed: Data) -> None:
    class Squared(torch.nn.Module):
        def forward(self, x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return x * x.abs()

    model = FairClassifier(Squared(), **FAST, backbone="mlp")
    model.fit(skewed, bootstrap=0)
    assert model.network_.calibration is None


def test_credit_with_class_balanced_training_nodes(data_folder: str) -> None:
    data = load("credit", data_folder)
    data.train_mask, data.val_mask, data.test_mask = nifty_split(data.y, 6000)
    model = FairClassifier(
        FMP(target=0.0), epochs=60, lr=0.01, eval_every=10, select="loss", backbone="mlp"
    )
    test = model.fit(data, bootstrap=0).run_.test
    assert test.accuracy >= 0.795  # without calibration 0.72
    delta = group_operator(data.sens[data.test_mask])
    assert test.dp <= 1.5 * float(delta.rows.abs().max())
