"""``fairmp train --shards``: one of the ranks that train on shards."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.distributed.ranks import Ranks
    from fairmp.distributed.shard_format import Manifest
    from fairmp.training.classifier import FairClassifier

KEPT = "checkpoint"
_PANEL = "Shards"
_LATER = 5.0  # seconds

Shards = Annotated[
    Path | None,
    typer.Option(
        help="Train on the shards 'fairmp shard' wrote, with all processes torchrun started.",
        rich_help_panel=_PANEL,
    ),
]
CheckpointEvery = Annotated[
    int, typer.Option(min=1, help="Epochs between two checkpoints.", rich_help_panel=_PANEL)
]
Timeout = Annotated[
    float,
    typer.Option(help="Seconds to wait for another process.", rich_help_panel=_PANEL),
]


def run(
    shards: Path,
    *,
    name: str,
    make: Callable[[], FairClassifier],
    given: Mapping[str, object],
    device: str,
    splits: int,
    seed: int,
    out: Path | None,
    overwrite: bool,
    checkpoint_every: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Train on shards with all the ranks torchrun started; rank 0 writes and tells.

    Args:
        shards: the folder 'fairmp shard' wrote.
        name: of the method, in tables.
        make: makes a classifier that has not been fitted.
        given: options that say of another graph.
        device: cpu or cuda.
        splits: how many.
        seed: of the initialisation, and of the first split.
        out: folder for the results.
        overwrite: replace results that are there.
        checkpoint_every: epochs between two checkpoints.
        timeout: seconds to wait for another rank.
        as_json: print records instead of a table.
    """
    from fairmp.distributed.launch import joined
    from fairmp.distributed.ranks import LostTouch, SharedError

    stray = [option for option, value in given.items() if value]
    if stray:
        raise InputError(stray[0], "goes without --shards, which hold a graph already")
    # torchrun ends its processes so, and one that waits for another can not be asked to tidy up.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = 0
    try:
        with joined(device=device, timeout=timeout) as ranks:
            rank = ranks.rank
            _train(
                ranks,
                shards,
                name=name,
                make=make,
                device=device,
                seeds=range(seed, seed + splits),
                seed=seed,
                out=out,
                overwrite=overwrite,
                checkpoint_every=checkpoint_every,
                as_json=as_json,
            )
    except SharedError:
        # All ranks stop for the same reason, and one of them says it.
        if rank == 0:
            raise
        sys.exit(2)
    except KeyboardInterrupt:
        if rank == 0:
            print(
                "fairmp: stopped; the same command goes on from the last checkpoint",
                file=sys.stderr,
            )
        sys.exit(130)
    except (InputError, LostTouch) as error:
        # Where rank 0 stops too it speaks first, and torchrun ends the others meanwhile.
        time.sleep(0 if rank == 0 else _LATER)
        if isinstance(error, InputError):
            raise
        print(f"fairmp: {error}", file=sys.stderr)
        sys.exit(1)


def _train(
    ranks: Ranks,
    shards: Path,
    *,
    name: str,
    make: Callable[[], FairClassifier],
    device: str,
    seeds: range,
    seed: int,
    out: Path | None,
    overwrite: bool,
    checkpoint_every: int,
    as_json: bool,
) -> None:
    from fairmp.distributed import FileCheckpoints, fit_shard, load_shard

    start = time.perf_counter()
    model = ranks.together(make)
    setting = {**model.config(), "seed": seed, "splits": len(seeds), "method": name}
    ranks.agree("configuration", setting, "start all ranks with the same command")
    folder = Path(ranks.from_first(ranks.together(lambda: str(_folder(out, overwrite, ranks)))))
    shard = load_shard(shards, ranks, device=device)
    written = ranks.together(lambda: _written(shard.manifest, seeds))
    fingerprint = {**setting, "data": shard.manifest.fingerprint}
    records, first = [], None
    for number, split_seed in enumerate(written):
        shard = shard.with_split(shards, split_seed)
        checkpoints = FileCheckpoints(
            folder / KEPT / f"split-{number}.safetensors",
            ranks,
            {**fingerprint, "split_seed": split_seed},
            every=checkpoint_every,
        )
        model = make()
        found = fit_shard(model, shard, seed=seed, split_seed=split_seed, checkpoints=checkpoints)
        records.append(
            {
                "name": name,
                "dataset": shard.manifest.name,
                "split": number,
                "run": found.to_dict(),
            }
        )
        first = first or model
    assert first is not None
    if ranks.rank == 0:
        _write(shard.manifest, records, first, folder, ranks, as_json, time.perf_counter() - start)
    ranks.objects(None)
    if ranks.rank == 0:
        shutil.rmtree(folder / KEPT, ignore_errors=True)


def _folder(out: Path | None, overwrite: bool, ranks: Ranks) -> Path:
    """Where results go: an empty folder, or one with an unfinished training to go on with."""
    from fairmp.distributed.launch import restarted

    folder, count = out or Path("fairmp-train"), 1
    while out is None and folder.exists() and not _unfinished(folder):
        count += 1
        folder = Path(f"fairmp-train-{count}")
    if ranks.rank == 0:
        again = restarted() or _unfinished(folder)
        outputs.check_free(folder, overwrite=overwrite or again)
        if overwrite and not again:
            shutil.rmtree(folder / KEPT, ignore_errors=True)
    return folder


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [KEPT]


def _written(manifest: Manifest, seeds: range) -> list[int | None]:
    """The seeds of the splits to train on, among those that were written."""
    there = manifest.split_seeds
    if there == (None,):
        return [None]
    missing = [seed for seed in seeds if seed not in there]
    if missing:
        raise InputError(
            "--splits",
            f"no split with seed {missing[0]} was written (there are {', '.join(map(str, there))})",
            f"train with --splits {len(there)} --seed {there[0]}, or shard again with --splits "
            "and --seed",
        )
    return list(seeds)


def _write(
    manifest: Manifest,
    records: list[dict[str, Any]],
    model: FairClassifier,
    folder: Path,
    ranks: Ranks,
    as_json: bool,
    seconds: float,
) -> None:
    from fairmp.comparison import train_report as single
    from fairmp.datasets.statistics import Statistics

    # Whatever is there by now is this training's own, or may be replaced.
    with outputs.results(folder, overwrite=True) as staging:
        lines = single.write(Statistics(**manifest.statistics), records, model, staging)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    from rich.console import Console

    from fairmp.report import over, to_rich

    console = Console(highlight=False)
    for line in manifest.report:
        console.print(line)
    console.print(to_rich(lines, f"{manifest.name}: test nodes, {over(len(records))}"))
    for line in single.of_first(model):
        console.print(line, soft_wrap=True)
    console.print(
        f"{seconds:.0f} s on {ranks.size} rank{'s' * (ranks.size != 1)}. Model in "
        f"{folder / 'model'}; open {folder / 'report.html'}."
    )
