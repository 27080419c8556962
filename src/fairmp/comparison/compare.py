"""Train the runs of a comparison side by side, and append a record of each to a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch
from torch_geometric.data import Data

from fairmp.comparison import Record
from fairmp.comparison.external import is_external, run_method
from fairmp.comparison.grid import (
    PER_NODE,
    THRESHOLDS,
    RunSpec,
    Setting,
    classifier,
    trainings,
)
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Evaluation, evaluate
from fairmp.outputs import exclusive
from fairmp.parallel import WorkerPool, failure_reason
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.training.classifier import FairClassifier

RECORDS = "records.jsonl"
Load = Callable[[str], Data]


def run(
    specs: Sequence[RunSpec],
    load: Load,
    path: str | Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    retry: bool = False,
    stamp: Mapping[str, str] | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Train every run that has no record yet, and return the records of all in order.

    A record is one line of JSON, appended and synced to disk as soon as its run is done: a
    comparison killed at any moment continues where it was. On a CPU a record does not depend on
    ``workers`` or on what ran before. A run that fails is recorded with the reason. ``load`` is
    called once per data set and worker; with several workers it must be picklable. New records
    carry the fields of ``stamp``; runs whose records have others are trained again.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path), path.open("a+b") as file:
        file.seek(0)
        stored, length = _parse(file.read(), path)
        file.truncate(length)  # without an incomplete last line
        records = {record["key"]: record for record in stored}
        jobs = trainings(missing(specs, stored, retry=retry, stamp=stamp))
        train_job = partial(train, load=_Graphs(load).__getitem__, device=device)
        with WorkerPool(train_job, workers) as pool:
            for _, new_records in pool.map(jobs):
                for new_record in new_records:
                    record = {**new_record, **(stamp or {})}
                    _append(record, file)
                    records[record["key"]] = record
                    on_record(record)
    return [records[spec.key] for spec in specs]


def missing(
    specs: Sequence[RunSpec],
    records: Sequence[Record],
    *,
    retry: bool = False,
    stamp: Mapping[str, str] | None = None,
) -> list[RunSpec]:
    """Return the runs without a record of this stamp; with ``retry`` also those that failed."""
    done = {
        record["key"]
        for record in records
        if not (retry and "failed" in record)
        and all(record.get(name) == value for name, value in (stamp or {}).items())
    }
    return [spec for spec in specs if spec.key not in done]


def read(path: str | Path) -> list[Record]:
    """Read a file of records, without an incomplete last line; the last record of a run counts."""
    path = Path(path)
    return _parse(path.read_bytes(), path)[0] if path.exists() else []


def check_folder(folder: Path, setting: Setting | None = None) -> None:
    """Refuse a folder that holds something else, or records of another setting."""
    path = folder / RECORDS
    if folder.is_dir() and any(folder.iterdir()) and not path.is_file():
        value = f"{folder} is not empty and has no {RECORDS}"
        raise InputError("folder", value, "give another folder")
    for record in read(path) if setting is not None else ():
        before = Setting.from_dict(record["spec"]["setting"])
        for name, value in vars(setting).items():
            if getattr(before, name) != value:
                change = f"{name}={getattr(before, name)}, this run has {name}={value}"
                hint = "give another folder, or the same setting"
                raise InputError("folder", f"{folder} has records with {change}", hint)


def train(specs: Sequence[RunSpec], load: Load, device: str = "cpu") -> list[Record]:
    """Train one network, and make the records of all runs that share it."""
    first = specs[0].training()
    if is_external(first.method):
        return [_external_record(spec, load, device) for spec in specs]
    try:
        data = load(first.data)
        model = classifier(first, device)
        if "protocol" in data:  # its split is fixed: initialisations vary instead
            model.fit(data, seed=first.seed + first.split, bootstrap=0, progress=False)
        else:
            model.fit(data, seed=first.seed, split_seed=first.split, bootstrap=0, progress=False)
            data = with_split(data, seed=first.split)
    except Exception as error:  # whatever it was, the other runs go on
        return [_failure(spec, error) for spec in specs]
    return [_record(spec, model, data, device) for spec in specs]


class _Graphs(dict[str, Data]):
    """Loads each graph once."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def __missing__(self, name: str) -> Data:
        self[name] = self.load(name)
        return self[name]


def _record(spec: RunSpec, model: FairClassifier, data: Data, device: str) -> Record:
    run = model.run_.to_dict()
    for part in ("train", "uncorrected"):
        run.pop(part, None)
    if spec.strategy in THRESHOLDS or spec.strategy == PER_NODE:
        start = time.perf_counter()
        try:
            parts = _post_processed(spec, model, data)
        except Exception as error:  # whatever it was, the other runs go on
            return _failure(spec, error)
        run |= {name: evaluation.to_dict() for name, evaluation in parts.items()}
        run["seconds"] += time.perf_counter() - start
    return _with_answers(spec, data, device, run)


def _with_answers(spec: RunSpec, data: Data, device: str, run: Record) -> Record:
    """The record of a run, with what constant answers would score."""
    labels = data.y[data.test_mask]
    return {
        **_head(spec),
        "device": device,
        "dataset": str(getattr(data, "name", spec.data)),
        "majority": float(torch.bincount(labels).max() / labels.numel()),
        "positive": float((labels == 1).float().mean()),
        "run": run,
    }


def _external_record(spec: RunSpec, load: Load, device: str) -> Record:
    """Run a method of others on a split, or on a graph with a split of its own."""
    try:
        data = load(spec.data)
        seed = spec.seed
        if "protocol" in data:
            seed += spec.split
        else:
            data = with_split(data, seed=spec.split)
        run = run_method(spec.method, data, seed)
    except Exception as error:  # whatever it was, the other runs go on
        return _failure(spec, error)
    return _with_answers(spec, data, device, run)


def _post_processed(spec: RunSpec, model: FairClassifier, data: Data) -> dict[str, Evaluation]:
    """Evaluate other predictions of a network: per node, or with a threshold per group."""
    test = data.test_mask
    if spec.strategy == PER_NODE:
        evaluations = {"test": model.evaluate(data, nodes=test, mode="per-node", bootstrap=0)}
        if not model.cross_fits:  # whose models have been fitted on the validation nodes
            val = model.evaluate(data, nodes=data.val_mask, mode="per-node", bootstrap=0)
            evaluations["val"] = val
        return evaluations
    assert spec.strength is not None
    held, held_logits = model.held_out_.nodes.cpu(), model.held_out_.logits.cpu()
    # Thresholds take the place of FMP's correction, so both parts are uncorrected.
    parts = {"val": (held, held_logits), "test": (test, model.uncorrected().cpu()[test])}
    fitted = GroupThresholds(spec.strength, kind="logits").fit(
        held_logits, data.y[held], sensitive_features=data.sens[held]
    )
    evaluations = {}
    for name, (nodes, logits) in parts.items():
        sens = data.sens[nodes]
        in_batch = spec.strategy == "thresholds-batch"
        thresholds = fitted.solve(logits, sensitive_features=sens) if in_batch else fitted
        evaluations[name] = evaluate(
            data.y[nodes],
            thresholds.shift(logits, sensitive_features=sens),
            sensitive_features=sens,
            class_names=model.classes_,
            group_names=model.groups_,
            bootstrap=0,
        )
    return evaluations


def _head(spec: RunSpec) -> Record:
    """The part of a record that every run has."""
    return {
        "key": spec.key,
        "name": spec.name,
        "family": spec.family,
        "data": spec.data,
        "split": spec.split,
        "seed": spec.seed,
        "strength": spec.strength,
        "spec": spec.to_dict(),
    }


def _failure(spec: RunSpec, error: Exception) -> Record:
    return {**_head(spec), "failed": failure_reason(error)}


def _append(record: Record, file: BinaryIO) -> None:
    line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
    file.write(line.encode())
    file.flush()
    os.fsync(file.fileno())


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
            value = f"line {number} of {path} is not a record of a comparison"
            raise InputError("folder", value, "give another folder, or repair the file") from None
        length += len(line)
    return list(records.values()), length
