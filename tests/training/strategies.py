"""Training with a strategy, for tests of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import PPR
from fairmp.nn.models import build
from fairmp.training.nodes import Names, TrainingNodes, graph_of
from fairmp.training.penalties import Strategy
from fairmp.training.run import History
from fairmp.training.trainer import Trainer, TrainingSettings, seeded


def trained(
    data: Data,
    strategy: Strategy | None,
    *,
    classes: int = 2,
    dropout: float = 0.0,
    seed: int = 0,
    logits: bool = False,
    **settings: Any,
) -> tuple[Tensor, History]:
    """The weights, or with ``logits=True`` the predictions, that a strategy ends in."""
    nodes = TrainingNodes(data, graph_of(data), Names.of(data))
    with seeded(0):
        net = build(
            in_channels=data.x.size(1),
            out_channels=classes,
            dropout=dropout,
            propagation=PPR(3, 3.0),
        )
    settings = {"patience": None, **settings}
    trainer = Trainer(net, nodes, TrainingSettings(strategy=strategy, **settings), seed=seed)
    history = trainer.train()
    if logits:
        with torch.no_grad():
            return net(data.x, nodes.graph), history
    return torch.cat([p.detach().flatten() for p in net.parameters()]), history
