from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fairlearn.metrics import equalized_odds_difference, true_positive_rate_difference
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split

FAST = {"epochs": 25, "lr": 0.02, "eval_every": 5}


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
