"""What the ranks of the tests do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import FMP, FairClassifier
from fairmp.datasets import social_network
from fairmp.training.penalties import Regulariser

SETTINGS: dict[str, dict[str, Any]] = {
    "projection": {"solver": "projection", "target": 0.01},
    "papc": {"solver": "papc", "lambda_f": 3.0},
    "paper": {"solver": "paper", "lambda_f": 3.0},
}


def classifier(setting: str, **settings: Any) -> FairClassifier:
    propagation = FMP(K=3, lambda_s=2.0, **SETTINGS[setting])
    options: dict[str, Any] = {"epochs": 20, "lr": 0.01, "hidden": 16, "eval_every": 4}
    options |= {"on": "probabilities", "backbone": "mlp"}
    return FairClassifier(propagation, **{**options, "strategy": Regulariser(0.5), **settings})


def awkward(classes: int = 2, groups: int = 2) -> Data:
    """A graph that is hard on ranks: in four ranges of its nodes,

    the third has no training node, the last no node of group 1; the first node joins nearly all
    others; every seventh has no edge.
    """
    data = social_network(160, average_degree=6, classes=classes, groups=groups, features=5, seed=1)
    data.x = data.x.double()
    n = data.num_nodes
    place = torch.arange(n)
    last, third = place >= n * 3 // 4, (place >= n // 2) & (place < n * 3 // 4)
    sens = torch.where(last & (data.sens == 1), 0, data.sens)
    sens[5::11] = -1
    loose = (place % 7 == 3) & (place > 0)
    source, target = data.edge_index
    edges = data.edge_index[:, ~loose[source] & ~loose[target] & (source > 0) & (target > 0)]
    spokes = place[(place > 0) & ~loose & (place % 9 > 0)]
    hub = torch.stack([torch.zeros_like(spokes), spokes])
    data.edge_index = torch.cat([edges, hub, hub.flip(0)], 1)
    data.edge_index = data.edge_index[:, (data.edge_index[0] * n + data.edge_index[1]).argsort()]
    data.sens = sens
    data.train_mask = data.train_mask & ~third & (sens >= 0)
    data.val_mask = data.val_mask | (data.test_mask & (place % 2 == 0))
    data.test_mask = data.test_mask & ~data.val_mask
    return data


def curve(model: FairClassifier) -> Tensor:
    epochs = model.run_.history.epochs
    return torch.tensor([[e.loss, e.val_accuracy, e.val_loss] for e in epochs], dtype=torch.float64)


def program(rank: int, folder: Path, words: list[list[str]]) -> tuple[int, str, str]:
    """Run ``fairmp`` in a folder; return its status and what it said."""
    import contextlib
    import io
    import os
    import sys

    from fairmp.cli import main

    os.chdir(folder)
    os.environ["COLUMNS"] = "100"
    sys.argv = ["fairmp", *words[rank]]
    status = 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            status = int(left.code or 0)
    return status, out.getvalue(), err.getvalue()


def train(rank: int, folder: Path, settings: list[str], epochs: int = 20) -> dict[str, Any]:
    from fairmp.distributed import fit_shard, load_shard, predict_shard

    mine = load_shard(folder)
    results: dict[str, Any] = {
        "training": int(mine.data.train_mask.sum()),
        "groups": torch.bincount(mine.data.sens + 1, minlength=4).tolist(),
        "halo": mine.graph.exact.halo.size,
        "number": mine.number.numpy(),
    }
    for setting in settings:
        model = classifier(setting, epochs=epochs)
        run = fit_shard(model, mine, bootstrap=20)
        results[setting] = {
            "curve": curve(model).numpy(),
            "duals": model.group_duals_.numpy(),
            "batch": predict_shard(model, mine).numpy(),
            "per-node": predict_shard(model, mine, mode="per-node").numpy(),
            "weights": {k: v.numpy() for k, v in model.network_.state_dict().items()},
            "test": run.test.to_dict(),
        }
    return results
