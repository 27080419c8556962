"""Scores of boosted trees on six graphs, computed once and kept on disk."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


def write(path: Path, record: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write a record as JSON, with one line per row."""
    text = json.dumps(record, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(_rounded(row), ensure_ascii=False) for row in rows)
    path.write_text(f'{text},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(v, 6) if isinstance(v, float) else v for key, v in row.items()}
