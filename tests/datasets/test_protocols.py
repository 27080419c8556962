from __future__ import annotations

import random

import pytest
import torch
from torch_geometric.data import Data

from fairmp import InputError
from fairmp.datasets import load, social_network
from fairmp.datasets.protocols import fairgnn, nifty, nifty_split


def counts(y: torch.Tensor, masks: tuple[torch.Tensor, ...]) -> list[list[int]]:
    return [torch.bincount(y[mask], minlength=2).tolist() for mask in masks]


def test_nifty_split_balances_training_classes() -> None:
    y = torch.tensor([0] * 202 + [1] * 800 + [-1] * 7)[torch.randperm(1009)]
    masks = nifty_split(y, 100)
    assert counts(y, masks) == [[50, 50], [50, 200], [51, 200]]
    assert int(torch.stack(masks).sum(0).max()) == 1
    assert counts(y, nifty_split(y, 6000)) == [[101, 400], [50, 200], [51, 200]]
    assert not bool((torch.stack(masks).any(0) & (y < 0)).any())


def test_nifty_split_same_seed_same_split() -> None:
    y = torch.arange(100) % 2
    first, again, other = nifty_split(y, 20), nifty_split(y, 20), nifty_split(y, 20, seed=21)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.test, other.test)


def test_nifty_scales_features_except_on_german() -> None:
    x = torch.tensor([[0.0, 5.0, 3.0], [10.0, 5.0, 4.0]]).repeat(20, 1)
    edges = torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=x, edge_index=edges, y=torch.arange(40) % 2, name="Bail")
    scaled = nifty(data)
    assert scaled.x[:2].tolist() == [[-1.0, -1.0, -1.0], [1.0, -1.0, 1.0]]
    assert int(scaled.train_mask.sum()) == 20
    assert "train_mask" not in data
    data.name = "German"
    assert torch.equal(nifty(data).x, x)


def test_nifty_refuses_wrong_input() -> None:
    data = Data(x=torch.ones(4, 1), y=torch.tensor([0, 1, 0, 1]), name="mine")
    with pytest.raises(InputError, match="label_number: unknown for the graph 'mine'"):
        nifty(data)
    with pytest.raises(InputError, match="label_number: 1"):
        nifty(data, label_number=1)
    with pytest.raises(InputError, match="two classes"):
        nifty_split(torch.zeros(5, dtype=torch.int64), 2)


@pytest.mark.parametrize(("name", "train"), [("german", 100), ("bail", 100), ("credit", 6000)])
def test_nifty_counts_are_those_published(name: str, train: int, data_folder: str) -> None:
    data = nifty(load(name, data_folder, sens_in_features=True, scale="none"))
    class_counts = counts(data.y, (data.train_mask, data.val_mask, data.test_mask))
    assert class_counts[0] == [train // 2, train // 2]
    sizes = torch.bincount(data.y)
    assert sum(class_counts[1]) == pytest.approx(int(sizes.sum()) / 4, abs=2)
    assert sum(class_counts[2]) == pytest.approx(int(sizes.sum()) / 4, abs=2)


def test_fairgnn_hides_groups_outside_evaluation() -> None:
    data = social_network(n=400)
    prepared = fairgnn(data, known_groups=30)
    masks = [prepared.train_mask, prepared.val_mask, prepared.test_mask]
    assert [int(mask.sum()) for mask in masks] == [200, 100, 100]
    assert int(torch.stack(masks).sum(0).max()) == 1
    seen = prepared.sens >= 0
    assert int((seen & prepared.train_mask).sum()) == 30
    assert torch.equal(prepared.sens[seen], data.sens[seen])
    assert bool(seen[prepared.val_mask | prepared.test_mask].all())
    assert bool((data.sens >= 0).all())
    # The oracle: a shuffled list of the labelled nodes, cut at a half and three quarters.
    nodes = list(range(400))
    random.Random(20).shuffle(nodes)
    assert set(prepared.test_mask.nonzero()[:, 0].tolist()) == set(nodes[300:])
