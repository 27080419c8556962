"""Scores of boosted trees on six graphs, computed once and kept on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from torch_geometric.data import Data

from fairmp.datasets import load
from fairmp.datasets.splits import with_split

GRAPHS = ("nba", "german", "bail", "credit", "pokec-province", "facebook100")


class Case(NamedTuple):
    """One split of one graph, with the trees' probability of class 1 for every node."""

    name: str
    split: int
    data: Data  # with masks
    proba: np.ndarray


def cases(splits: int, cache: Path | None = None) -> Iterator[Case]:
    """Every graph and split; trees are fitted on the features of the training nodes."""
    folder = cache or Path(tempfile.gettempdir()) / "fairmp-tree-scores"
    folder.mkdir(parents=True, exist_ok=True)
    for name in GRAPHS:
        graph = load(name, os.environ.get("FAIRMP_DATA"))
        for split in range(splits):
            data = with_split(graph, seed=split)
            path = folder / f"{name}-{split}.npy"
            if not path.exists():
                x, train = data.x.numpy(), data.train_mask.numpy()
                model = HistGradientBoostingClassifier(random_state=split)
                model.fit(x[train], data.y.numpy()[train])
                np.save(path, model.predict_proba(x)[:, 1])
            yield Case(name, split, data, np.load(path))


def gap(decisions: np.ndarray, sens: np.ndarray) -> float:
    """Largest difference of the rate of class 1 between two groups."""
    rates = [decisions[sens == g].mean() for g in np.unique(sens[sens >= 0])]
    return float(max(rates) - min(rates))
