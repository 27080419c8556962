from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split
from fairmp.groups import group_operator
from fairmp.training.lagrangian import Lagrangian
from tests.training.strategies import trained


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=800, average_degree=8, seed=1)


def decided_gap(data: Data, logits: Tensor, mask: Tensor) -> float:
    shares = [float(logits.argmax(1)[mask & (data.sens == g)].double().mean()) for g in (0, 1)]
    return abs(shares[0] - shares[1])


def test_multiplier_rises_until_validation_meets_the_target() -> None:
    data = with_split(social_network(n=4000, average_degree=8, base_rate_gap=0.3), seed=0)
    setting = {"epochs": 120, "lr": 0.02, "logits": True}
    plain, before = trained(data, None, **setting)
    fair, after = trained(data, Lagrangian(0.03), **setting)
    assert before.best.val_gap is None
    assert after.best.val_gap == pytest.approx(decided_gap(data, fair, data.val_mask))
    assert after.best.val_gap <= 0.03 + 1 / int((data.sens[data.val_mask] == 0).sum())
    assert decided_gap(data, plain, data.test_mask) > 0.2
    assert decided_gap(data, fair, data.test_mask) < 0.09
    met = [e for e in after.epochs if e.val_gap is not None and e.val_gap <= 0.03]
    assert after.best.val_accuracy >= max(e.val_accuracy for e in met)


def test_multiplier_follows_the_gap() -> None:
    penalty = Lagrangian(0.1, step=2.0).begin()
    delta, logits = group_operator(torch.tensor([0, 1])), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert penalty(logits, delta) is None
    penalty.update(0.4)
    assert penalty.weight == pytest.approx(0.6)
    value = penalty(logits, delta)
    assert value is not None
    assert 0 < float(value) <= 0.6
    # The penalty is that of decisions: it does not depend on the scale of the logits.
    torch.testing.assert_close(penalty(1000 * logits, delta), value)
    for _ in range(4):
        penalty.update(0.0)
    assert penalty(logits, delta) is None


def test_target_out_of_reach_warns(data: Data) -> None:
    hard = data.clone()
    hard.x = torch.nn.functional.one_hot(data.sens, 2).float()
    hard.y = data.sens.clone()
    with pytest.warns(UserWarning, match="target"):
        trained(hard, Lagrangian(0.0), epochs=20, eval_every=20, lr=0.05)


def test_predictions_need_no_groups(data: Data) -> None:
    model = FairClassifier(PPR(2, 1.0), strategy=Lagrangian(0.3), epochs=5, backbone="mlp")
    model.fit(data, bootstrap=0)
    assert not model.uses_groups
    assert model.network_.calibration is None
    blind = Data(x=data.x, edge_index=data.edge_index)
    torch.testing.assert_close(model.predict_proba(blind), model.predict_proba(data))
    with pytest.raises(InputError, match="strategy: Lagrangian"):
        FairClassifier(FMP(), strategy=Lagrangian(), backbone="mlp")
    for arguments in ({"target": 2.0}, {"step": 0.0}, {"temperature": -1.0}):
        with pytest.raises(InputError, match=next(iter(arguments))):
            Lagrangian(**arguments)
