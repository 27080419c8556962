from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fairlearn.metrics import equalized_odds_difference, true_positive_rate_difference
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import load, social_network
from fairmp.datasets.protocols import nifty_split
from fairmp.datasets.splits import with_split
from fairmp.groups import group_operator
from fairmp.training.fitted import PlainPropagation, fit_calibration, propagate_uncorrected
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


@pytest.fixture(scope="module")
def data() -> Data:
    graph = social_network(n=6000, average_degree=10, base_rate_gap=0.4, seed=2)
    return with_split(graph, seed=0)


def gaps(model: FairClassifier, data: Data, nodes: torch.Tensor) -> dict[str, float]:
    decided = model.predict_proba(data, nodes=nodes).argmax(1).numpy()
    y, sens = data.y[nodes].numpy(), data.sens[nodes].numpy()
    return {
        "equal_opportunity": true_positive_rate_difference(y, decided, sensitive_features=sens),
        "equalized_odds": equalized_odds_difference(y, decided, sensitive_features=sens),
    }


@pytest.fixture(scope="module")
def plain(data: Data) -> FairClassifier:
    model = FairClassifier(PPR(3, 1.0), **FAST, backbone="mlp")
    model.fit(data, bootstrap=0)
    return model


@pytest.mark.parametrize("criterion", ["equal-opportunity", "equalized_odds"])
def test_criterion_on_labels_is_met(
    criterion: str, data: Data, plain: FairClassifier, tmp_path: Path
) -> None:
    model = FairClassifier(FMP(3, 1.0, target=0.02), criterion=criterion, **FAST, backbone="mlp")
    run = model.fit(data, bootstrap=0).run_
    name = criterion.replace("-", "_")
    # The correction holds where it was found, up to the nodes of one group's positives.
    assert gaps(model, data, data.val_mask)[name] <= 0.035
    before, after = (gaps(one, data, data.test_mask)[name] for one in (plain, model))
    assert before > 0.1
    assert after < before / 2
    assert run.test.mode == "per-node"
    assert run.test.accuracy > plain.run_.test.accuracy - 0.05
    # Training is that of plain propagation.
    torch.testing.assert_close(model.uncorrected(), plain.uncorrected())
    again = FairClassifier.load(model.save(tmp_path / "model"))
    assert again.criterion == name
    expected = model.predict_proba(data)
    assert torch.equal(again.predict_proba(data), expected)
    one = torch.zeros(data.num_nodes, dtype=torch.bool)
    one[5] = True
    torch.testing.assert_close(again.predict_proba(data, nodes=one)[0], expected[5])


def test_unknown_groups_are_not_corrected_for_a_criterion_on_labels(data: Data) -> None:
    model = FairClassifier(FMP(3, 1.0), criterion="equal_opportunity", **FAST, backbone="mlp")
    model.fit(data, bootstrap=0)
    partly = data.clone()
    partly.sens[::2] = -1
    proba = model.predict_proba(partly)
    torch.testing.assert_close(proba[::2], model.uncorrected().softmax(1)[::2])
    assert not torch.allclose(proba[1::2], model.uncorrected().softmax(1)[1::2])


def test_criterion_on_labels_with_groups_as_probabilities(
    data: Data, plain: FairClassifier
) -> None:
    soft = data.clone()
    soft.sens = torch.nn.functional.one_hot(data.sens, 2).float()
    soft.sens[::10] = torch.tensor([0.3, 0.7])
    model = FairClassifier(FMP(3, 1.0), criterion="equal_opportunity", **FAST, backbone="mlp")
    run = model.fit(soft, bootstrap=0).run_
    assert run.test.eo < plain.run_.test.eo / 1.5


def test_criterion_on_labels_with_three_classes_on_probabilities() -> None:
    data = social_network(n=3000, average_degree=8, classes=3, groups=3, base_rate=0.4)
    model = FairClassifier(
        FMP(2, 1.0, target=0.05, temperature=0.5),
        criterion="equal_opportunity",
        on="probabilities",
        **FAST,
        backbone="mlp",
    )
    assert np.isfinite(model.fit(data, bootstrap=0).run_.test.eo)


def test_criterion_on_labels_needs_a_target() -> None:
    with pytest.raises(InputError, match="criterion: 'luck'"):
        FairClassifier(criterion="luck", backbone="mlp")
    for layer in (None, PPR(), FMP(solver="papc")):
        with pytest.raises(InputError, match=r"give FMP\(target=…\)"):
            FairClassifier(layer, criterion="equal_opportunity", backbone="mlp")
    assert (
        FairClassifier(PPR(), criterion="demographic-parity", backbone="mlp").criterion
        == "demographic_parity"
    )


def test_per_node_correction_is_found_on_unlabelled_nodes_too() -> None:
    data = with_split(social_network(n=600, seed=1), seed=0)
    spare = data.test_mask.clone()
    spare[data.test_mask.nonzero()[::2, 0]] = False
    data.test_mask = data.test_mask & ~spare  # nodes of no part
    model = FairClassifier(FMP(target=0.0), backbone="mlp", epochs=20, on="probabilities")
    model.fit(data, bootstrap=0)

    def gap(nodes: torch.Tensor) -> float:
        p = model.predict_proba(data, mode="per-node")[:, 1].double()
        rates = [p[nodes & (data.sens == g)].mean() for g in (0, 1)]
        return float((rates[0] - rates[1]).abs())

    assert gap(data.val_mask | spare) < 1e-4
    assert gap(data.val_mask) > 1e-3
