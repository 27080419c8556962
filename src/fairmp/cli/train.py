"""``fairmp train``, on one graph or on shards."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.distributed.ranks import Ranks
    from fairmp.distributed.shard_format import Manifest
    from fairmp.report import Line
    from fairmp.training.classifier import FairClassifier, Run

CHECKPOINTS = "checkpoint"
REPORT_DELAY_S = 5.0
_fair, _net = options.panel("Fairness"), options.panel("Network and training")
_shards = options.panel("Shards")
_PROPAGATING = ("projection", "papc", "paper", "plain")
_NEEDS = {
    "target": ("projection",),
    "predict_temperature": ("projection",),
    "lambda_f": ("papc", "paper"),
    "k": _PROPAGATING,
    "lambda_s": _PROPAGATING,
}
"""The solvers that use an option."""


def check_used(context: typer.Context, solver: str) -> None:
    """Raise if an option was typed that the solver does not use."""
    for name, solvers in _NEEDS.items():
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and solver in (*_PROPAGATING, "none") and solver not in solvers:
            raise InputError(
                f"--{name.replace('_', '-')}",
                f"--solver {solver} does not use it",
                f"leave it out, or choose --solver {' or '.join(solvers)}",
            )


def command(
    context: typer.Context,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    data: options.DataName = "embedded",
    data_dir: options.DataDir = None,
    nodes: options.Nodes = None,
    edges: options.Edges = None,
    id: options.Id = None,
    label: options.Label = None,
    sensitive: options.Sensitive = None,
    sensitive_bins: options.SensitiveBins = None,
    drop: options.Drop = None,
    solver: Annotated[
        str, _fair("projection, papc, paper; or 'plain' propagation, or 'none'.")
    ] = "projection",
    target: Annotated[
        float,
        _fair(
            "Largest gap allowed, 0.02 for two points; for several groups from the overall rate."
        ),
    ] = 0.0,
    k: Annotated[int, _fair("Propagation steps.", "--k")] = 5,
    lambda_s: Annotated[float, _fair("Strength of the smoothing.")] = 3.0,
    lambda_f: Annotated[float, _fair("Strength of the pull towards parity (papc, paper).")] = 1.0,
    regulariser: Annotated[float, _fair("Weight of the demographic regulariser.")] = 0.0,
    adversary: Annotated[float, _fair("Weight of the adversary.")] = 0.0,
    pretrain: Annotated[int, _fair("Epochs before the adversary is active.")] = 70,
    predict_temperature: Annotated[
        str, _fair("Temperature at prediction: a number, or 'decisions' for the gap of decisions.")
    ] = "decisions",
    backbone: Annotated[str, _net("mlp, gcn, gat, sgc or appnp.")] = "mlp",
    hidden: Annotated[int, _net("Hidden width.")] = 64,
    layers: Annotated[int, _net("Number of layers.")] = 2,
    dropout: Annotated[float, _net("Dropout.")] = 0.0,
    epochs: Annotated[int, _net("Maximum number of epochs.")] = 300,
    lr: Annotated[float, _net("Learning rate.")] = 1e-3,
    weight_decay: Annotated[float, _net("Weight decay.")] = 1e-5,
    patience: Annotated[int | None, _net("Epochs without improvement before stopping.")] = None,
    select: Annotated[
        str, _net("Epoch kept: best validation accuracy or loss, or the last.")
    ] = "accuracy",
    eval_every: Annotated[int, _net("Epochs between two validations.")] = 1,
    device: Annotated[str, _net("cpu or cuda.")] = "cpu",
    splits: options.Splits = 3,
    seed: options.Seed = 0,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the graph in the report.")
    ] = True,
    as_json: options.AsJson = False,
    shards: Annotated[
        Path | None,
        _shards("Train on the shards 'fairmp shard' wrote, with all processes torchrun started."),
    ] = None,
    checkpoint_every: Annotated[int, _shards("Epochs between two checkpoints.", min=1)] = 10,
    timeout: Annotated[float, _shards("Seconds to wait for another process.")] = 600.0,
) -> None:
    """Train one configuration on several splits, and save its model.

    The model under --out is that of the first split; use it with 'fairmp predict', or load it with
    FairClassifier.load. report.html shows what it does to each group.
    """
    start = time.perf_counter()
    check_used(context, solver)
    if shards is None:
        folder = outputs.free_name("fairmp-train") if out is None else out
        outputs.check_free(folder, overwrite=overwrite)
    if regulariser and adversary:
        raise InputError(
            "--adversary", f"{adversary:g} with --regulariser {regulariser:g}", "choose one of them"
        )

    from fairmp.training.classifier import build_classifier
    from fairmp.training.loop import needs_groups

    def make() -> FairClassifier:
        return build_classifier(
            solver,
            K=k,
            lambda_s=lambda_s,
            lambda_f=lambda_f,
            target=target,
            strategy="regulariser" if regulariser else "adversary" if adversary else "vanilla",
            h=regulariser or adversary,
            pretrain=pretrain,
            backbone=backbone,
            hidden=hidden,
            num_layers=layers,
            dropout=dropout,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            patience=patience,
            select=select,
            eval_every=eval_every,
            predict_temperature=predict_temperature,
            device=device,
        )

    seeds = range(seed, seed + splits)
    if shards is not None:
        for option, value in {
            "--data": data != "embedded",
            "--nodes": nodes,
            "--edges": edges,
        }.items():
            if value:
                raise InputError(option, "goes without --shards, which hold a graph already")
        _on_ranks(
            lambda ranks: _train_shards(
                ranks, shards, solver, make, seeds, out, overwrite, checkpoint_every, as_json
            ),
            device,
            timeout,
        )
        return
    graph = options.load_data(
        data, data_dir, nodes, edges, id, label, sensitive, sensitive_bins, drop
    )
    # Wrong input is reported before anything is trained.
    model = make()
    if needs_groups(model.propagation):
        options.check_groups(graph, seeds)
    records: list[dict[str, Any]] = []
    with outputs.results(folder, overwrite=overwrite) as staging:
        for number in range(splits):
            fitted = make() if number else model
            run = fitted.fit(graph, seed=seed, split_seed=seeds[number])
            records.append(_record(solver, graph.name, number, run))
        from fairmp.comparison import train_report

        command = shlex.join(["fairmp", *sys.argv[1:]])
        lines = train_report.write(graph, records, model, staging, command=command, picture=picture)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    report = getattr(graph, "report", None)
    notes = [] if report is None else [str(report)]
    _show(graph.name, notes, lines, model, splits, folder, f"{time.perf_counter() - start:.0f} s")


def _record(method: str, dataset: str, split: int, run: Run) -> dict[str, Any]:
    return {"name": method, "dataset": dataset, "split": split, "run": run.to_dict()}


def _show(
    name: str,
    notes: Iterable[str],
    lines: list[Line],
    model: FairClassifier,
    splits: int,
    folder: Path,
    took: str,
) -> None:
    from rich.console import Console

    from fairmp.comparison.train_report import summary
    from fairmp.report import over, to_rich

    console = Console(highlight=False)
    for line in notes:
        console.print(line)
    console.print(to_rich(lines, f"{name}: test nodes, {over(splits)}"))
    for line in summary(model):
        console.print(line, soft_wrap=True)
    console.print(f"{took}. Model in {folder / 'model'}; open {folder / 'report.html'}.")


def _on_ranks(work: Callable[[Ranks], None], device: str, timeout: float) -> None:
    """Do work on all ranks that torchrun started; one of them reports errors."""
    from fairmp.distributed.launch import joined
    from fairmp.distributed.ranks import RankLostError, SharedError

    # torchrun ends its processes with this signal; one that waits for another cannot clean up.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = 0
    try:
        with joined(device=device, timeout=timeout) as ranks:
            rank = ranks.rank
            work(ranks)
    except SharedError:
        if rank == 0:
            raise
        sys.exit(2)
    except KeyboardInterrupt:
        if rank == 0:
            message = "fairmp: stopped; the same command resumes from the last checkpoint"
            print(message, file=sys.stderr)
        sys.exit(130)
    except (InputError, RankLostError) as error:
        # If rank 0 stops too it reports first, and torchrun ends the others meanwhile.
        time.sleep(0 if rank == 0 else REPORT_DELAY_S)
        if isinstance(error, InputError):
            raise
        print(f"fairmp: {error}", file=sys.stderr)
        sys.exit(1)


def _train_shards(
    ranks: Ranks,
    shards: Path,
    name: str,
    make: Callable[[], FairClassifier],
    seeds: range,
    out: Path | None,
    overwrite: bool,
    checkpoint_every: int,
    as_json: bool,
) -> None:
    from fairmp.distributed import FileCheckpoints, fit_shard, load_shard

    start = time.perf_counter()
    first = ranks.together(make)
    setting = {**first.config(), "seed": seeds[0], "splits": len(seeds), "method": name}
    ranks.agree("configuration", setting, "start all ranks with the same command")
    folder = ranks.on_first(lambda: _shards_folder(out, overwrite))
    shard = load_shard(shards, ranks, device=str(first.device))
    split_seeds = ranks.together(lambda: _written_splits(shard.manifest, seeds))
    fingerprint = {**setting, "data": shard.manifest.fingerprint}
    records: list[dict[str, Any]] = []
    for number, split_seed in enumerate(split_seeds):
        shard = shard.with_split(shards, split_seed)
        checkpoints = FileCheckpoints(
            folder / CHECKPOINTS / f"split-{number}.safetensors",
            ranks,
            {**fingerprint, "split_seed": split_seed},
            every=checkpoint_every,
        )
        model = make() if number else first
        run = fit_shard(model, shard, seed=seeds[0], split_seed=split_seed, checkpoints=checkpoints)
        records.append(_record(name, shard.manifest.name, number, run))
    if ranks.rank == 0:
        _write_shards(shard.manifest, records, first, folder, ranks, as_json, start)
    ranks.objects(None)  # wait for rank 0
    if ranks.rank == 0:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _shards_folder(out: Path | None, overwrite: bool) -> Path:
    """Return an empty folder, or one with an unfinished training to resume."""
    folder, count = out or Path("fairmp-train"), 1
    while out is None and folder.exists() and not _unfinished(folder):
        count += 1
        folder = Path(f"fairmp-train-{count}")
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resumed = restarted or _unfinished(folder)
    outputs.check_free(folder, overwrite=overwrite or resumed)
    if overwrite and not resumed:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return folder


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [CHECKPOINTS]


def _written_splits(manifest: Manifest, seeds: range) -> list[int | None]:
    """Return the seeds of the splits to train on, which must be among those written."""
    written = manifest.split_seeds
    if written == (None,):
        return [None]
    missing = [seed for seed in seeds if seed not in written]
    if missing:
        raise InputError(
            "--splits",
            f"no split with seed {missing[0]} was written (seeds: {', '.join(map(str, written))})",
            f"train with --splits {len(written)} --seed {written[0]}, or shard again with --splits "
            "and --seed",
        )
    return list(seeds)


def _write_shards(
    manifest: Manifest,
    records: list[dict[str, Any]],
    model: FairClassifier,
    folder: Path,
    ranks: Ranks,
    as_json: bool,
    start: float,
) -> None:
    from fairmp.comparison import train_report
    from fairmp.datasets.statistics import Statistics

    launcher = ["torchrun", f"--nproc-per-node={ranks.size}", "-m"] if ranks.size > 1 else []
    command = shlex.join([*launcher, "fairmp", *sys.argv[1:]])
    # Whatever is in the folder by now belongs to this training, or may be replaced.
    with outputs.results(folder, overwrite=True) as staging:
        statistics = Statistics(**manifest.statistics)
        lines = train_report.write(statistics, records, model, staging, command=command)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    took = f"{time.perf_counter() - start:.0f} s on {ranks.size} rank{'s' * (ranks.size != 1)}"
    _show(manifest.name, manifest.report, lines, model, len(records), folder, took)
