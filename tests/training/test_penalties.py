from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.groups import group_operator
from fairmp.training.penalties import Adversary, Regulariser, Strategy
from tests.training.strategies import trained


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=800, average_degree=8, seed=1)


def soft_gap(data: Data, logits: Tensor) -> float:
    return float(group_operator(data.sens, data.train_mask).gap(logits.softmax(1)).abs().max())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_adversary_of_strength_zero_changes_nothing(data: Data, dropout: float) -> None:
    setting = {"epochs": 40, "lr": 0.01, "dropout": dropout}
    plain, history = trained(data, None, **setting)
    idle = Adversary(0.0, pretrain_classifier=10, pretrain_adversary=3)
    same, other = trained(data, idle, **setting)
    # Without a penalty one number per node is propagated, which rounds differently.
    torch.testing.assert_close(plain, same, atol=1e-4, rtol=1e-4)
    assert history.best.epoch == other.best.epoch


def test_adversary_closes_the_gap(data: Data) -> None:
    setting = {"epochs": 200, "lr": 2e-3, "select": "last", "logits": True}
    gaps = []
    for h in (0.0, 5.0):
        strategy = Adversary(h, lr=0.02, pretrain_classifier=50)
        gaps.append(soft_gap(data, trained(data, strategy, **setting)[0]))
    assert gaps[0] > 0.1
    assert gaps[1] < 0.4 * gaps[0]


def test_adversary_with_three_groups_and_classes(data: Data) -> None:
    many = data.clone()
    n = data.num_nodes
    generator = torch.Generator().manual_seed(0)
    many.sens = torch.arange(n) % 3
    many.sens[::17] = -1
    group = many.sens.clamp_min(0)
    # The first three features say the group, and the label follows it half of the time.
    many.x = torch.randn(n, 8, generator=generator)
    many.x[torch.arange(n), group] += 2
    many.y = torch.where(torch.rand(n, generator=generator) < 0.5, group, many.y + 1)
    many.edge_index = data.edge_index[:, group[data.edge_index[0]] == group[data.edge_index[1]]]
    setting = {"classes": 3, "epochs": 200, "lr": 2e-3, "select": "last", "logits": True}
    gaps = []
    for h in (0.0, 5.0):
        strategy = Adversary(h, lr=0.02, pretrain_classifier=50)
        gaps.append(soft_gap(many, trained(many, strategy, **setting)[0]))
    assert gaps[0] > 0.1
    assert gaps[1] < 0.5 * gaps[0]


def test_adversary_pretrains_both_networks() -> None:
    sens = torch.tensor([0, 0, 1, 1, -1])
    delta = group_operator(sens, torch.tensor([True, True, True, True, True]))
    logits = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    penalty = Adversary(2.0, pretrain_classifier=2, pretrain_adversary=200, lr=0.05).begin()
    assert penalty(logits, delta) is None
    assert penalty(logits, delta) is None
    first = penalty(logits, delta)
    assert first is not None
    # After its pretraining the adversary knows better than chance: −h·CE is above −h·log 2.
    assert float(first.detach()) > -2 * 0.9 * torch.tensor(2.0).log()
    first.backward()
    assert logits.grad is not None
    assert bool((logits.grad[:4].abs().sum(1) > 0).all())
    assert torch.equal(logits.grad[4], torch.zeros(2))  # no group, no say
    second = penalty(logits, delta)
    assert second is not None
    assert float(second.detach()) != float(first.detach())  # the adversary took one more step


def test_strategy_has_no_state_between_fits(data: Data) -> None:
    strategy = Adversary(2.0, pretrain_classifier=3, pretrain_adversary=5)
    before = strategy.config()
    runs = [trained(data, strategy, epochs=10, seed=s, dropout=0.2)[0] for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert strategy.config() == before
    assert strategy == Adversary(2.0, pretrain_classifier=3, pretrain_adversary=5)


def test_epochs_of_the_warm_up_are_not_kept(data: Data) -> None:
    strategy = Adversary(5.0, pretrain_classifier=20)
    history = trained(data, strategy, epochs=30, lr=0.05, patience=1)[1]
    assert history.best.epoch > 20
    assert len([e for e in history.epochs if e.epoch <= 20]) == 20
    assert trained(data, strategy, epochs=30, select="last")[1].best.epoch == 30
    with pytest.raises(InputError, match="epochs: 20 end before the strategy is active"):
        trained(data, strategy, epochs=20)
    assert [s.warmup for s in (Regulariser(2.0), Adversary(0.0))] == [0, 0]


@pytest.mark.parametrize(
    "strategy",
    [None, Regulariser(2.0), Adversary(3.0, hidden=8, pretrain_classifier=1, lr=0.01)],
)
def test_saved_model_keeps_its_strategy(
    data: Data, strategy: Strategy | None, tmp_path: Path
) -> None:
    model = FairClassifier(FMP(2, 1.0), strategy=strategy, epochs=3, backbone="mlp")
    model.fit(data, bootstrap=0)
    again = FairClassifier.load(model.save(tmp_path / "model"))
    assert again.strategy == strategy
    assert set(again.network_.state_dict()) == set(model.network_.state_dict())
    assert not any("advers" in name for name in model.network_.state_dict())
    assert torch.equal(model.predict_proba(data), again.predict_proba(data))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InputError, match="h: -1"):
        Regulariser(-1.0)
    for arguments, word in (
        ({"h": -1.0}, "h: -1"),
        ({"hidden": 0}, "hidden: 0"),
        ({"pretrain_classifier": -1}, "pretrain_classifier: -1"),
        ({"pretrain_adversary": -1}, "pretrain_adversary: -1"),
        ({"lr": 0.0}, "lr: 0.0"),
    ):
        with pytest.raises(InputError, match=word):
            Adversary(**arguments)
