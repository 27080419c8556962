"""When nodes are predicted as a batch, and when one by one."""

from __future__ import annotations

import pytest
import torch

from fairmp.datasets import social_network
from fairmp.errors import InputError
from fairmp.nn.fmp import FMP
from fairmp.training.classifier import FairClassifier
from fairmp.training.modes import choose_mode
from fairmp.training.tables import NodesToPredict


@pytest.mark.parametrize(("target", "enough"), [(0.0, 100), (0.005, 100), (0.05, 20)])
def test_one_node_is_at_most_a_point_or_the_target(target: float, enough: int) -> None:
    data = social_network(n=600, average_degree=8, seed=0)
    model = FairClassifier(FMP(target=target), backbone="mlp", epochs=2)
    model.fit(data, bootstrap=0, progress=False)
    first = (data.sens == 0).nonzero().ravel()
    for count, mode in ((enough, "batch"), (enough - 1, "per-node")):
        mask = data.sens == 1
        mask[first[:count]] = True
        nodes = NodesToPredict(data, mask)
        choice = choose_mode(model, nodes, "auto")
        assert choice.mode == mode
        assert bool(choice.note) == (mode == "per-node")
        insisted = choose_mode(model, nodes, "batch")
        assert insisted.mode == "batch"
        assert bool(insisted.warning) == (mode == "per-node")
        assert choose_mode(model, nodes, "per-node").mode == "per-node"
    alone = torch.zeros(600, dtype=torch.bool)
    alone[0] = True
    assert choose_mode(model, NodesToPredict(data, alone), "auto").mode == "per-node"
    with pytest.raises(InputError, match="mode"):
        choose_mode(model, nodes, "each")
