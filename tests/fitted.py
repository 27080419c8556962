"""One trained classifier and its record, as ``fairmp train`` writes it."""

from __future__ import annotations

from collections.abc import Callable

from torch_geometric.data import Data

from fairmp import FairClassifier
from fairmp.comparison import Record


def one_split(
    name: str, make: Callable[[], FairClassifier], data: Data, *, split: int, bootstrap: int
) -> tuple[Record, FairClassifier]:
    model = make()
    run = model.fit(data, seed=0, split_seed=split, bootstrap=bootstrap, progress=False).run_
    return {"name": name, "dataset": data.name, "split": split, "run": run.to_dict()}, model
