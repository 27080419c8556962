"""Model folders with any value or byte changed: refused in one line, or a model that predicts."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fairmp import FMP, FairClassifier
from fairmp.datasets import from_tables
from fairmp.training import model_files
from tests.fuzz.tables import mutate

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 100_000, 10**9, 2**62, 2**70, 1e308, -1e308, math.nan),
    *(math.inf, "", "FMP", "os.system", "1", [], {}, [[]], {"a": 1}, [None], ["a", "b"]),
    *("x" * 5000, list(range(3)), {"name": "FMP"}),
]


@functools.cache
def original(backbone: str = "mlp") -> tuple[bytes, Any]:
    """A small fitted model as bytes, and a graph to predict."""
    rng = np.random.default_rng(0)
    n = 60
    people = pd.DataFrame(
        {
            "y": rng.choice(["no", "yes"], n),
            "s": rng.choice(["f", "m"], n),
            "income": rng.normal(size=n),
            "town": rng.choice(["Oslo", "Rome"], n),
        }
    )
    ends = rng.integers(n, size=(2, 2 * n))
    ties = pd.DataFrame({"a": ends[0], "b": ends[1]})
    data = from_tables(people, ties, id=None, label="y", sensitive="s")
    model = FairClassifier(FMP(2, 1.0), backbone=backbone, epochs=2, hidden=8, norm="batch_norm")
    model.fit(data, bootstrap=0)
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        model.save(Path(place) / "model")
        return (Path(place) / "model" / model_files.MODEL).read_bytes(), (people, ties)


def classifiers(rng: np.random.Generator, place: Path) -> str:
    """A model with scikit-learn classifiers, stored with skops."""
    return case(rng, place, str(rng.choice(["logistic", "trees"])))


def case(rng: np.random.Generator, place: Path, backbone: str = "mlp") -> str:
    content, (people, ties) = original(backbone)
    path = place / model_files.MODEL
    path.write_bytes(content)
    match rng.integers(0, 4):
        case 0:
            raw = bytearray(content)
            for _ in range(rng.integers(1, 4)):
                mutate(rng, raw)
            path.write_bytes(bytes(raw))
        case 1:
            raw = bytearray(content)
            head = 8 + int.from_bytes(raw[:8], "little")
            part = raw[8:head]
            mutate(rng, part)
            path.write_bytes(len(part).to_bytes(8, "little") + bytes(part) + bytes(raw[head:]))
        case 2:
            tensors, description = model_files.read(place)
            description = json.loads(json.dumps(description))
            for _ in range(rng.integers(1, 3)):
                replace(rng, description)
            model_files.write_tensors(path, tensors, description)
        case 3:
            tensors, description = model_files.read(place)
            name = str(rng.choice(sorted(tensors)))
            if name == model_files.CLASSIFIERS and rng.random() < 0.7:
                raw = bytearray(tensors[name].numpy().tobytes())
                mutate(rng, raw)
                tensors[name] = torch.frombuffer(raw or bytearray(1), dtype=torch.uint8)
            else:
                tensors[name] = change(rng, tensors[name])
            if rng.random() < 0.2:
                tensors[f"network.{rng.integers(99)}"] = tensors.pop(name)
            model_files.write_tensors(path, tensors, description)
    model = FairClassifier.load(place)
    data = from_tables(people, ties, encoding=model.encoding_)
    proba = model.predict_proba(data)
    assert torch.isfinite(proba).all()
    return "loaded"


def replace(rng: np.random.Generator, description: Any) -> None:
    """Put an odd value at a random place of a JSON value."""
    part = description
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if not isinstance(part[key], dict | list) or rng.random() < 0.2:
            part[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
            return
        part = part[key]


def change(rng: np.random.Generator, tensor: torch.Tensor) -> torch.Tensor:
    match rng.integers(0, 6):
        case 0:
            return tensor.to(torch.int32)
        case 1:
            return tensor.double()
        case 2:
            return tensor.reshape(-1)
        case 3:
            return torch.cat([tensor.reshape(-1)] * 2)
        case 4:
            return tensor * float(rng.choice([np.nan, np.inf, 1e30]))
        case _:
            return torch.zeros(0)
