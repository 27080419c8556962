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
    from fairmp.training.classifier import FairClassifier

CHECKPOINTS = "checkpoint"
REPORT_DELAY_S = 5.0
_FAIR, _NET, _SHARDS = "Fairness", "Network and training", "Shards"
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
        str,
        typer.Option(
            help="projection, papc, paper; or 'plain' propagation, or 'none'.",
            rich_help_panel=_FAIR,
        ),
    ] = "projection",
    target: Annotated[
        float,
        typer.Option(
            help="Largest gap allowed, 0.02 for two points; with more than two groups, that of "
            "each from the overall rate.",
            rich_help_panel=_FAIR,
        ),
    ] = 0.0,
    k: Annotated[int, typer.Option("--k", help="Propagation steps.", rich_help_panel=_FAIR)] = 5,
    lambda_s: Annotated[
        float, typer.Option(help="Strength of the smoothing.", rich_help_panel=_FAIR)
    ] = 3.0,
    lambda_f: Annotated[
        float,
        typer.Option(
            help="Strength of the pull towards parity (papc, paper).", rich_help_panel=_FAIR
        ),
    ] = 1.0,
    regulariser: Annotated[
        float,
        typer.Option(help="Weight of the demographic regulariser.", rich_help_panel=_FAIR),
    ] = 0.0,
    adversary: Annotated[
        float, typer.Option(help="Weight of the adversary.", rich_help_panel=_FAIR)
    ] = 0.0,
    pretrain: Annotated[
        int, typer.Option(help="Epochs before the adversary is active.", rich_help_panel=_FAIR)
    ] = 70,
    predict_temperature: Annotated[
        str,
        typer.Option(
            help="Temperature at prediction: a number, or 'decisions' for the gap of decisions.",
            rich_help_panel=_FAIR,
        ),
    ] = "decisions",
    backbone: Annotated[
        str, typer.Option(help="mlp, gcn, gat, sgc or appnp.", rich_help_panel=_NET)
    ] = "mlp",
    hidden: Annotated[int, typer.Option(help="Hidden width.", rich_help_panel=_NET)] = 64,
    layers: Annotated[int, typer.Option(help="Number of layers.", rich_help_panel=_NET)] = 2,
    dropout: Annotated[float, typer.Option(help="Dropout.", rich_help_panel=_NET)] = 0.0,
    epochs: Annotated[
        int, typer.Option(help="Maximum number of epochs.", rich_help_panel=_NET)
    ] = 300,
    lr: Annotated[float, typer.Option(help="Learning rate.", rich_help_panel=_NET)] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=_NET)] = 1e-5,
    patience: Annotated[
        int | None,
        typer.Option(help="Epochs without improvement before stopping.", rich_help_panel=_NET),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            help="Epoch kept: best validation accuracy or loss, or the last.", rich_help_panel=_NET
        ),
    ] = "accuracy",
    eval_every: Annotated[
        int, typer.Option(help="Epochs between two validations.", rich_help_panel=_NET)
    ] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_NET)] = "cpu",
    splits: options.Splits = 3,
    seed: options.Seed = 0,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the graph in the report.")
    ] = True,
    as_json: options.AsJson = False,
    shards: Annotated[
        Path | None,
        typer.Option(
            help="Train on the shards 'fairmp shard' wrote, with all processes torchrun started.",
            rich_help_panel=_SHARDS,
        ),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Epochs between two checkpoints.", rich_help_panel=_SHARDS)
    ] = 10,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for another process.", rich_help_panel=_SHARDS)
    ] = 600.0,
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

    from fairmp.comparison.runner import one_split, temperature
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
            predict_temperature=temperature(predict_temperature),
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
    if needs_groups(make().propagation):
        options.check_groups(graph, seeds)
    records, model = [], None
    with outputs.results(folder, overwrite=overwrite) as staging:
        for number in range(splits):
            record, fitted = one_split(
                solver, make, graph, split=number, seed=seed, bootstrap=1000, progress=None
            )
            records.append(record)
            model = model or fitted
        assert model is not None
        from fairmp.comparison import train_report

        command = shlex.join(["fairmp", *sys.argv[1:]])
        lines = train_report.write(graph, records, model, staging, command=command, picture=picture)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    report = getattr(graph, "report", None)
    notes = [] if report is None else [str(report)]
    _show(graph.name, notes, lines, model, splits, folder, f"{time.perf_counter() - start:.0f} s")


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
        dataset = shard.manifest.name
        records.append({"name": name, "dataset": dataset, "split": number, "run": run.to_dict()})
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
