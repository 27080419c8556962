"""Training of one configuration on several splits, of a graph in memory or of shards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.data import Data

from fairmp.comparison import Record
from fairmp.datasets.statistics import Statistics
from fairmp.outputs import check_free, hold
from fairmp.training.classifier import FairClassifier, Run

if TYPE_CHECKING:
    from fairmp.distributed.ranks import Ranks

CHECKPOINTS = "checkpoint"


@dataclass(frozen=True)
class TrainingJob:
    """A configuration, and the splits it is trained on."""

    name: str  # of the method, in tables
    make: Callable[[], FairClassifier]
    seeds: range  # of the splits; the first is also that of the initialisation


@dataclass(frozen=True)
class TrainedSplits:
    """The figures of all splits, and the model of the first."""

    data: Data | Statistics  # statistics of a graph that does not fit in memory
    model: FairClassifier
    runs: Sequence[Run]
    notes: Sequence[str]  # what was noticed when the data was read

    def records(self, name: str) -> list[Record]:
        """One record per split."""
        return [
            {"name": name, "dataset": str(self.data.name), "split": k, "run": run.to_dict()}
            for k, run in enumerate(self.runs)
        ]


def train_splits(job: TrainingJob, data: Data, *, order: str = "given") -> TrainedSplits:
    """Train on several splits of a graph; if its split is fixed, with several initialisations."""
    models = []
    for seed in job.seeds:
        has_split = "protocol" in data
        models.append(
            job.make().fit(
                data,
                seed=seed if has_split else job.seeds[0],
                split_seed=None if has_split else seed,
                order=order,
            )
        )
    report = getattr(data, "report", None)
    notes = [] if report is None else [str(report)]
    return TrainedSplits(data, models[0], [model.run_ for model in models], notes)


def train_shards(
    job: TrainingJob,
    shards: Path,
    ranks: Ranks,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    checkpoint_every: int = 10,
) -> tuple[TrainedSplits, Path]:
    """Train on several splits of shards; all ranks call it together.

    Returns what was trained, and the folder for the results: ``out``, a new one, or that of an
    unfinished training. It has checkpoints until :func:`remove_checkpoints` removes them.
    """
    from fairmp.distributed import FileCheckpoints, fit_shard, load_shard
    from fairmp.distributed.loading import split_column

    first = ranks.raise_on_all_ranks(job.make)
    setting = {
        **first.config(),
        "seed": job.seeds[0],
        "splits": len(job.seeds),
        "method": job.name,
    }
    ranks.check_equal("configuration", setting, "start all ranks with the same command")
    folder = ranks.on_rank_zero(lambda: _results_folder(out, overwrite=overwrite))
    shard = load_shard(shards, ranks, device=str(first.device))
    manifest = shard.manifest
    has_split = manifest.split_seeds == (None,)
    split_seeds: list[int | None] = [None] if has_split else list(job.seeds)

    def check_splits() -> None:
        for split_seed in split_seeds:
            split_column(manifest, split_seed)

    ranks.raise_on_all_ranks(check_splits)
    runs: list[Run] = []
    for number, split_seed in enumerate(split_seeds):
        path = folder / CHECKPOINTS / f"split-{number}.pt"
        fingerprint = {**setting, "data": manifest.fingerprint, "split_seed": split_seed}
        checkpoints = FileCheckpoints(path, ranks, fingerprint, every=checkpoint_every)
        shard = shard.with_split(shards, split_seed)
        model = job.make() if number else first
        run = fit_shard(
            model, shard, seed=job.seeds[0], split_seed=split_seed, checkpoints=checkpoints
        )
        runs.append(run)
    data = Statistics(**manifest.statistics)
    return TrainedSplits(data, first, runs, manifest.report), folder


def _results_folder(out: Path | None, *, overwrite: bool) -> Path:
    """Return an empty folder, or one with an unfinished training to resume."""
    usual = (Path("fairmp-train" if k == 1 else f"fairmp-train-{k}") for k in count(1))
    folder = out or next(name for name in usual if not name.exists() or _unfinished(name))
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resumed = restarted or _unfinished(folder)
    hold(folder, overwrite=True)
    # Checkpoints of a training that was killed after it wrote its results, or is to be replaced.
    if not resumed and (overwrite or (folder / "records.jsonl").is_file()):
        remove_checkpoints(folder)
    check_free(folder, overwrite=overwrite or resumed)
    return folder


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished training."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [CHECKPOINTS]
