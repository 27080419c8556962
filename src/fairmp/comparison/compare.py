"""Train the runs of a comparison side by side, and append a record of each to a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.comparison import Record
from fairmp.comparison.grid import PER_NODE, THRESHOLDS, RunSpec, classifier, trainings
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Evaluation, evaluate
from fairmp.outputs import exclusive
from fairmp.parallel import WorkerPool
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.training.classifier import FairClassifier

Load = Callable[[str], Data]


def run(
    specs: Sequence[RunSpec],
    load: Load,
    path: str | Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    retry: bool = False,
    on_record: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Train every run that has no record yet, and return the records of all in order.

    A record is one line of JSON, appended and synced to disk as soon as its run is done: a
    comparison killed at any moment continues where it was. On a CPU a record does not depend on
    ``workers`` or on what ran before. A run that fails is recorded with the reason. ``load`` is
    called once per data set and worker; with several workers it must be picklable.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path), path.open("a+b") as file:
        file.seek(0)
        kept, length = _parse(file.read(), path)
        file.truncate(length)  # without an incomplete last line
        found = {record["key"]: record for record in kept}
        jobs = trainings(missing(specs, kept, retry=retry))
        work = partial(train, load=_Graphs(load).__getitem__, device=device)
        with WorkerPool(work, workers) as pool:
            for _, records in pool.map(jobs):
                for record in records:
                    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())
                    found[record["key"]] = record
                    on_record(record)
    return [found[spec.key] for spec in specs]


def missing(
    specs: Sequence[RunSpec], records: Sequence[Record], *, retry: bool = False
) -> list[RunSpec]:
    """Return the runs without a record; with ``retry`` also those that failed."""
    done = {record["key"] for record in records if not (retry and "failed" in record)}
    return [spec for spec in specs if spec.key not in done]


def read(path: str | Path) -> list[Record]:
    """Read a file of records, without an incomplete last line; the last record of a run counts."""
    path = Path(path)
    return _parse(path.read_bytes(), path)[0] if path.exists() else []


def train(specs: Sequence[RunSpec], load: Load, device: str = "cpu") -> list[Record]:
    """Train one network, and make the records of all runs that share it."""
    first = specs[0].training()
    try:
        data = load(first.data)
        model = classifier(first, device)
        fixed = "protocol" in data  # its split: initialisations vary instead
        seed, split = (first.seed + first.split, None) if fixed else (first.seed, first.split)
        model.fit(data, seed=seed, split_seed=split, bootstrap=0, progress=False)
        data = data if split is None else with_split(data, seed=split)
    except Exception as error:  # whatever it was, the other runs go on
        return [_failed(spec, error) for spec in specs]
    return [_record(spec, model, data, device) for spec in specs]


class _Graphs(dict[str, Data]):
    """Loads each graph once."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def __missing__(self, name: str) -> Data:
        self[name] = self.load(name)
        return self[name]


def _record(spec: RunSpec, model: FairClassifier, data: Data, device: str) -> Record:
    record = model.run_.to_dict()
    record.pop("train")
    if spec.strategy in THRESHOLDS or spec.strategy == PER_NODE:
        start = time.perf_counter()
        try:
            parts = _post_processed(spec, model, data)
        except Exception as error:
            return _failed(spec, error)
        record |= {name: part.to_dict() for name, part in parts.items()}
        record["seconds"] += time.perf_counter() - start
    labels = data.y[data.test_mask]
    return {
        **_head(spec),
        "device": device,
        "dataset": str(getattr(data, "name", spec.data)),
        "majority": float(torch.bincount(labels).max() / labels.numel()),
        "positive": float((labels == 1).float().mean()),
        "run": record,
    }


def _post_processed(spec: RunSpec, model: FairClassifier, data: Data) -> dict[str, Evaluation]:
    """Evaluate other predictions of a network: per node, or with a threshold per group."""
    if spec.strategy == PER_NODE:
        return {
            name: model.evaluate(data, nodes=data[f"{name}_mask"], mode="per-node", bootstrap=0)
            for name in ("val", "test")
        }

    def logits_of(mask: Tensor) -> Tensor:
        scores = model.predict_proba(data, nodes=mask).cpu()
        return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()

    assert spec.strength is not None
    val = logits_of(data.val_mask)
    fitted = GroupThresholds(spec.strength, kind="logits").fit(
        val, data.y[data.val_mask], data.sens[data.val_mask]
    )
    names: dict[str, Any] = {"class_names": model.classes_, "group_names": model.groups_}
    found = {}
    for name, logits in (("val", val), ("test", logits_of(data.test_mask))):
        mask = data[f"{name}_mask"]
        sens = data.sens[mask]
        chosen = fitted if spec.strategy == "thresholds-val" else fitted.solve(logits, sens)
        shifted = chosen.shift(logits, sens)
        found[name] = evaluate(shifted, data.y[mask], sens, bootstrap=0, **names)
    return found


def _head(spec: RunSpec) -> Record:
    names = ("key", "name", "family", "data", "split", "seed", "strength")
    return {name: getattr(spec, name) for name in names} | {"spec": asdict(spec)}


def _failed(spec: RunSpec, error: Exception) -> Record:
    reason = " ".join(str(error).split())[:300]
    if not isinstance(error, InputError):
        reason = f"{type(error).__name__}: {reason}"
    return {**_head(spec), "failed": reason}


def _parse(content: bytes, path: Path) -> tuple[list[Record], int]:
    """Return the records of complete lines, and where the last complete line ends."""
    records: dict[str, Record] = {}
    lines, length = content.splitlines(keepends=True), 0
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError
            record = json.loads(line)
            records[record["key"]] = record
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            reason = f"line {number} of {path} is not a record of a comparison"
            raise InputError("out", reason, "give another folder, or repair the file") from None
        length += len(line)
    return list(records.values()), length
