"""Train the cells of a comparison side by side, and keep a record of each as it is done.

``python -m fairmp.comparison.compare --npz FOLDER --out records.jsonl`` runs a grid where only
torch, PyG, numpy and scipy are installed, on graphs written by :mod:`fairmp.datasets.by_name`;
``fairmp compare`` makes tables and figures of the same records.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.comparison.grid import THRESHOLDS, RunSpec, classifier, trainings
from fairmp.comparison.runner import Record
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Evaluation, evaluate
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.training.classifier import FairClassifier, Run

Load = Callable[[str], Data]


def run(
    cells: Sequence[RunSpec],
    load: Load,
    path: str | Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    retry: bool = False,
    on_record: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Train every cell that has no record yet, and return the records of all.

    A record is one line of JSON, appended and synced to disk by this process as its cell is done,
    so that a run killed at any moment goes on where it was. On a CPU a cell's figures depend on
    nothing but the cell, its graph and the versions it names: neither on ``workers`` nor on what
    ran before. A cell that fails is recorded with its reason, and the others go on.

    Args:
        cells: what to train; see :func:`fairmp.comparison.grid.cells`.
        load: gives a graph for a data set's name; for several workers it must be picklable. Each
            worker calls it once a data set.
        path: the file of records.
        workers: processes, with one torch thread each.
        device: where to compute.
        retry: train the cells again whose record says that they failed.
        on_record: called with each new record.

    Returns:
        One record a cell, in the order of ``cells``.

    Example:
        >>> import tempfile
        >>> from fairmp.datasets.by_name import from_files
        >>> from fairmp.comparison.grid import Setting, cells
        >>> grid = cells(["embedded:300"], ["mlp", "fmp"], ["vanilla"], splits=1,
        ...              setting=Setting(epochs=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = run(grid, from_files, Path(folder) / "records.jsonl")
        >>> [record["name"] for record in records]
        ['MLP', 'FMP target=0']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as (file, kept):
        found = {record["key"]: record for record in kept}
        wanted = [
            cell
            for cell in cells
            if cell.key not in found or (retry and "failed" in found[cell.key])
        ]
        for records in _in_parallel(trainings(wanted), load, device, workers):
            for record in records:
                line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
                found[record["key"]] = record
                on_record(record)
    return [found[cell.key] for cell in cells]


def read(path: str | Path) -> list[Record]:
    """Read a file of records; a last line that was cut short by a kill is left out.

    Where a cell has several records the last one counts.
    """
    path = Path(path)
    return _parsed(path.read_bytes(), path)[0] if path.exists() else []


def train(cells: Sequence[RunSpec], data: Data, device: str = "cpu") -> list[Record]:
    """Train one network and make the records of all cells that share it."""
    first = cells[0].training()
    try:
        model = classifier(first, device)
        fitted = model.fit(
            data, seed=first.seed, split_seed=first.split, bootstrap=0, progress=False
        )
        data = with_split(data, seed=first.split)
    except Exception as error:  # whatever it was, the other cells go on
        return [_failed(cell, error) for cell in cells]
    return [_record(cell, model, fitted, data, device) for cell in cells]


def _record(cell: RunSpec, model: FairClassifier, fitted: Run, data: Data, device: str) -> Record:
    record = fitted.to_dict()
    record.pop("train")
    if cell.strategy in THRESHOLDS:
        start = time.perf_counter()
        try:
            parts = _with_thresholds(cell, model, data)
        except Exception as error:
            return _failed(cell, error)
        record |= {name: part.to_dict() for name, part in parts.items()}
        record["seconds"] += time.perf_counter() - start
    labels = data.y[data.test_mask]
    return {
        **_head(cell),
        "device": device,
        "dataset": str(getattr(data, "name", cell.data)),
        "majority": float(torch.bincount(labels).max() / labels.numel()),
        "run": record,
    }


def _with_thresholds(cell: RunSpec, model: FairClassifier, data: Data) -> dict[str, Evaluation]:
    val, test = (_logits(model, data, mask) for mask in (data.val_mask, data.test_mask))
    assert cell.strength is not None
    fitted = GroupThresholds(cell.strength, kind="logits").fit(
        val, data.y[data.val_mask], data.sens[data.val_mask]
    )
    found = {}
    for name, logits, mask in (("val", val, data.val_mask), ("test", test, data.test_mask)):
        sens = data.sens[mask]
        chosen = fitted if cell.strategy == "thresholds-val" else fitted.solve(logits, sens)
        found[name] = evaluate(
            chosen.shift(logits, sens),
            data.y[mask],
            sens,
            class_names=model.classes_,
            group_names=model.groups_,
            bootstrap=0,
        )
    return found


def _logits(model: FairClassifier, data: Data, mask: Tensor) -> Tensor:
    scores = model.predict_proba(data, nodes=mask).cpu()
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()


def _head(cell: RunSpec) -> Record:
    return {
        "key": cell.key,
        "name": cell.name,
        "family": cell.family,
        "data": cell.data,
        "split": cell.split,
        "seed": cell.seed,
        "strength": cell.strength,
        "spec": cell.to_dict(),
    }


def _failed(cell: RunSpec, error: Exception) -> Record:
    reason = " ".join(str(error).split())[:300]
    if not isinstance(error, InputError):
        reason = f"{type(error).__name__}: {reason}"
    return {**_head(cell), "failed": reason}


def _in_parallel(
    jobs: Sequence[list[RunSpec]], load: Load, device: str, workers: int
) -> Iterator[list[Record]]:
    if workers < 1:
        raise InputError("workers", f"{workers} is too few", "give a whole number, 1 or more")
    if not jobs:
        return
    if workers == 1:
        graphs: dict[str, Data] = {}
        threads = torch.get_num_threads()
        # Sums over several threads round differently, and figures must not depend on that.
        torch.set_num_threads(1)
        try:
            for job in jobs:
                yield _load_and_train(job, load, device, graphs)
        finally:
            torch.set_num_threads(threads)
        return
    # A fresh interpreter each: a forked one would inherit torch's threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_start, initargs=(load, device)
    )
    done = False
    try:
        running = [pool.submit(_work, job) for job in jobs]
        for future in as_completed(running):
            yield future.result()
        done = True
    except BrokenProcessPool:
        raise InputError(
            "workers",
            f"one of {workers} processes died, perhaps for want of memory",
            "the records are kept, run the same again with fewer workers",
        ) from None
    finally:
        pool.shutdown(wait=done, cancel_futures=True)
        if not done:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()


_graphs: dict[str, Data] = {}
_given: dict[str, Any] = {}


def _start(load: Load, device: str) -> None:
    import signal

    # Ctrl-C reaches every process of a terminal; the one that keeps the records ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _given.update(load=load, device=device)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(job: list[RunSpec]) -> list[Record]:
    return _load_and_train(job, _given["load"], _given["device"], _graphs)


def _load_and_train(
    job: list[RunSpec], load: Load, device: str, graphs: dict[str, Data]
) -> list[Record]:
    name = job[0].data
    if name not in graphs:
        try:
            graphs[name] = load(name)
        except Exception as error:
            return [_failed(cell, error) for cell in job]
    return train(job, graphs[name], device)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], list[Record]]]:
    """Open a file of records to append to, alone, without a last line that was cut short."""
    with path.open("a+b") as file:
        _lock(file, path)
        file.seek(0)
        kept, length = _parsed(file.read(), path)
        file.truncate(length)
        yield file, kept


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on this system; two runs on one file are then not told apart
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            "out", f"another run is writing to {path}", "wait for it, or give another place"
        ) from None
    except OSError:  # a file system without locks
        return


def _parsed(content: bytes, path: Path) -> tuple[list[Record], int]:
    """The records of whole lines, and where the last whole line ends."""
    records: dict[str, Record] = {}
    lines = content.splitlines(keepends=True)
    length = 0
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError
            record = json.loads(line)
            records[record["key"]] = record
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise InputError(
                "out",
                f"line {number} of {path} is no record of a comparison",
                "give another place, or mend the file",
            ) from None
        length += len(line)
    return list(records.values()), length


if __name__ == "__main__":
    from fairmp.comparison.compare_main import main

    raise SystemExit(main())
