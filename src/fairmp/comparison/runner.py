"""One method on one split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.training.classifier import FairClassifier

Record = dict[str, Any]


def temperature(text: str) -> float | Literal["decisions"]:
    """Parse the temperature at prediction: a number above 0, or ``decisions``."""
    if text == "decisions":
        return "decisions"
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise InputError("predict_temperature", f"{text!r} is neither 'decisions' nor a number above 0")


def one_split(
    name: str,
    make: Callable[[], FairClassifier],
    data: Data,
    *,
    split: int,
    seed: int = 0,
    bootstrap: int = 0,
    progress: bool | None = False,
) -> tuple[Record, FairClassifier]:
    """Train a method on one split, and return its record and the fitted model.

    The split's seed is ``seed + split``; the initialisation's is ``seed`` on every split, so that
    only the split varies. ``make`` returns an unfitted classifier.
    """
    model = make()
    run = model.fit(
        data, seed=seed, split_seed=seed + split, bootstrap=bootstrap, progress=progress
    )
    dataset = getattr(data, "name", "graph")
    return {"name": name, "dataset": dataset, "split": split, "run": run.to_dict()}, model
