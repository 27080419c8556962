"""Methods of others in a comparison: any class with ``fit(data)`` and ``predict_proba(data)``."""

from __future__ import annotations

import copy
import importlib
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.training.run import versions

HINT = "give package.module:Name, a class with fit(data) and predict_proba(data)"


class Method(Protocol):
    """The interface of such a class; it is constructed without arguments."""

    def fit(self, data: Data) -> object:
        """Train on ``data.train_mask``; labels of test nodes are −1."""
        ...

    def predict_proba(self, data: Data) -> Any:
        """Return probabilities of all nodes: n×C, or n of class 1; an array or a tensor."""
        ...


def is_external(method: str) -> bool:
    """Whether a method is named as ``package.module:Name``."""
    return ":" in method


def load_method(method: str) -> type[Method]:
    """Import a class; modules of the working directory are found."""
    module_name, _, name = method.partition(":")
    if not module_name or not name.isidentifier():
        raise InputError("method", f"{method!r} is not package.module:Name", HINT)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        method_class = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise InputError("method", f"{method!r} cannot be imported: {error}", HINT) from None
    absent = [
        part for part in ("fit", "predict_proba") if not callable(getattr(method_class, part, None))
    ]
    if not isinstance(method_class, type) or absent:
        value = f"{method!r} is no class" if not absent else f"{method!r} has no {absent[0]}()"
        raise InputError("method", value, HINT)
    return method_class


def run_method(
    method: str,
    data: Data,
    seed: int,
    device: str | torch.device = "cpu",
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit a method on a split, and measure it; the part ``run`` of a record.

    The method gets the graph on ``device``, and ``settings`` as arguments of its constructor.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - of code that is not ours
    torch.manual_seed(seed)
    hidden = copy.copy(data)
    hidden.y = data.y.masked_fill(data.test_mask, -1)
    hidden = hidden.to(str(device))
    model = load_method(method)(**(settings or {}))
    start = time.perf_counter()
    model.fit(hidden)
    scores = torch.as_tensor(np.asarray(_detached(model.predict_proba(hidden))))
    seconds = time.perf_counter() - start
    if len(scores) != data.num_nodes:
        value = f"{method} returned {len(scores)} rows for {data.num_nodes} nodes"
        raise InputError("predict_proba", value, "return a row for every node of the graph")
    parts = {
        part: evaluate(
            data.y[data[f"{part}_mask"]],
            scores[data[f"{part}_mask"]],
            sensitive_features=data.sens[data[f"{part}_mask"]],
            bootstrap=0,
        ).to_dict()
        for part in ("val", "test")
    }
    config = {"method": method, **(settings or {})}
    return {"config": config, "seed": seed, "versions": versions(), "seconds": seconds, **parts}


def _detached(scores: Any) -> Any:
    return scores.detach().cpu() if isinstance(scores, torch.Tensor) else scores
