"""``fairmp train``, on one graph or on shards."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp.cli import options
from fairmp.cli.options import Gate, network, option, own, panel, smoothing, typed_here
from fairmp.errors import InputError
from fairmp.outputs import check_free, hold

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.datasets.statistics import Statistics
    from fairmp.distributed.ranks import Ranks
    from fairmp.training.classifier import FairClassifier, Run

CHECKPOINTS = "checkpoint"
REPORT_DELAY_S = 5.0
_fair = panel("Fairness")
_shards = panel("Shards")
_PROPAGATING = ("projection", "papc", "paper", "plain")
_NEEDS = {  # the solvers that use an option
    "target": ("projection",),
    "predict_temperature": ("projection",),
    "lambda_f": ("papc", "paper"),
    "k": _PROPAGATING,
    "lambda_s": _PROPAGATING,
}
_SETTINGS = (  # options that go to the classifier as they are
    *("lambda_f", "target", "pretrain", "hidden", "dropout", "epochs", "lr", "weight_decay"),
    *("graph_features", "time_budget", "patience", "select", "eval_every", "calibrate"),
    *("predict_temperature", "device", "num_layers"),
)


def check_used(context: typer.Context, solver: str) -> None:
    """Raise if an option was typed that the solver does not use."""
    if solver not in (*_PROPAGATING, "none"):
        return
    for name, solvers in _NEEDS.items():
        own = name == "target" and context.params.get("group_free")
        if typed_here(context, name) and solver not in solvers and not own:
            hint = f"leave it out, or choose --solver {' or '.join(solvers)}"
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, f"--solver {solver} does not use it", hint)


def command(
    context: typer.Context,
    written: options.Results,
    source: options.Graph,
    gate: Gate,
    training: options.Training,
    solver: str = _fair("projection, papc, paper; 'plain' propagation, or 'none'.", "projection"),
    target: float = _fair("Largest gap between two groups, 0.02 for two points.", 0.0),
    criterion: str = _fair(
        "Or equal-opportunity, equalized-odds (plain only).", "demographic-parity"
    ),
    k: int = _fair("Propagation steps.", 5),
    lambda_s: str | None = _fair("Smoothing; 'learned' by default, 3 for papc, paper and shards."),
    lambda_f: float = _fair("Strength of the pull towards parity (papc, paper).", 1.0),
    group_free: bool = _fair("Predict without groups: penalty raised until --target holds.", False),
    regulariser: float = _fair("Weight of the demographic regulariser.", 0.0),
    adversary: float = _fair("Weight of the adversary.", 0.0),
    pretrain: int = _fair("Epochs before the adversary is active.", 70),
    predict_temperature: str = _fair("At prediction: a number, or 'decisions'.", "decisions"),
    backbone: str | None = network(
        "auto (the default), mlp (that of shards), gcn, gat, sgc, appnp; trees, forest, logistic."
    ),
    graph_features: bool | None = network("Features of neighbours; by default auto decides."),
    time_budget: float = network("Seconds after which auto starts no other candidate.", 300.0),
    select: str = network("Epoch kept: best accuracy, best loss, or last.", "accuracy"),
    order: str = network("Of nodes in memory: given, or locality (large graphs).", "given"),
    splits: options.Splits = 3,
    protocol: options.Protocol = None,
    seed: options.Seed = 0,
    picture: bool = option("Draw the graph in the report.", True),
    keep_graph: bool = own("Keep the graph for new nodes, or no data.", True, "--graph/--no-graph"),
    track: options.Track = None,
    shards: Path | None = _shards("Train on what 'fairmp shard' wrote, with torchrun."),
    checkpoint_every: int = _shards("Epochs between two checkpoints.", 10, min=1),
    timeout: float = _shards("Seconds to wait for another process.", 600.0),
) -> None:
    """Train one configuration on several splits, and save its model.

    The model under --out is that of the first split; use it with 'fairmp predict', or load it with
    FairClassifier.load. report.html shows what it does to each group.
    """
    criterion = criterion.replace("-", "_")
    given = training.settle(context)
    backbone, lambda_s = given["backbone"], given["lambda_s"]
    if not keep_graph and graph_features is None:  # columns of labels, which the model would keep
        given["graph_features"] = False
    if group_free and not typed_here(context, "solver"):
        solver = "plain"
    check_used(context, solver)
    if shards is None:
        folder = written.folder("train")
    from fairmp.training.classifier import build_classifier

    penalties = {"regulariser": regulariser, "adversary": adversary, "group-free": group_free}
    strategy, *others = [name for name, weight in penalties.items() if weight] or ["vanilla"]
    if others:
        raise InputError(f"--{others[0]}", f"goes without --{strategy}", "choose one of them")
    if group_free and (solver not in ("plain", "none") or criterion != "demographic_parity"):
        value = f"--solver {solver} and --criterion {criterion}"
        hint = "it is for --solver plain or none, and demographic-parity"
        raise InputError("--group-free", value, hint)

    make = partial(
        build_classifier,
        solver,
        K=k,
        strategy="lagrangian" if group_free else strategy,
        h=regulariser or adversary,
        backbone=backbone or ("auto" if shards is None else "mlp"),
        lambda_s=smoothing(lambda_s, solver, learned=shards is None),
        criterion=criterion,
        **{name: given[name] for name in _SETTINGS},
    )
    seeds = range(seed, seed + splits)
    if shards is not None:
        if gate.fail_over is not None:
            hint = "gate 'fairmp predict' instead"
            raise InputError("--fail-over", "goes without --shards", hint)
        for name in ("data", "nodes", "edges", "weight"):
            if getattr(source, name) not in (None, "embedded"):
                raise InputError(f"--{name}", "goes without --shards, which hold a graph already")
        work = partial(_train_shards, shards, solver, make, seeds, written, checkpoint_every)
        return _on_ranks(work, training.device, timeout)
    if protocol is not None:
        if source.given():
            raise InputError("--protocol", "goes with --data", "leave out --nodes and --edges")
        source = replace(source, data=options.with_protocol([source.data], protocol)[0])
    graph = source.load()
    # Wrong input is reported before anything is trained.
    model = make()
    if model.uses_groups:
        options.check_groups(graph, seeds)
    runs = []
    for number, k in enumerate(seeds):
        # The split of a protocol is fixed: initialisations vary instead.
        first, split = (k, None) if "protocol" in graph else (seed, k)
        one = make() if number else model
        with options.typed({"order": "--order"}):
            runs.append(one.fit(graph, seed=first, split_seed=split, order=order).run_)
    report = getattr(graph, "report", None)
    notes = [] if report is None else [str(report)]
    made = folder, solver, graph, notes, runs, model
    records = _write(written, *made, picture=picture, keep_graph=keep_graph)
    options.track(track, records, folder)
    if gate.fail_over is not None:
        gate.check(options.gap_of_evaluation(runs[0].test.to_dict(), criterion))


def _write(
    written: options.Results,
    folder: Path,
    solver: str,
    data: Data | Statistics,
    notes: Iterable[str],
    runs: Sequence[Run],
    model: FairClassifier,
    *,
    ranks: int | None = None,
    **shown: bool,
) -> list[dict[str, Any]]:
    """Write the results of all splits, and print them; ``ranks`` is the number of processes."""
    from fairmp.comparison import train_report
    from fairmp.report import over, to_rich

    name = str(data.name)
    records = [
        {"name": solver, "dataset": name, "split": number, "run": run.to_dict()}
        for number, run in enumerate(runs)
    ]
    launcher = f"torchrun --nproc-per-node={ranks} -m " if (ranks or 1) > 1 else ""
    command = launcher + options.rerun_command()
    with written.staging(folder) as staging:
        again = options.adjustable_command(command)
        lines = train_report.write(
            data, records, model, staging, command=command, panel_command=again, **shown
        )
    took = f"{options.elapsed():.0f} s"
    if ranks is not None:
        took += f" on {ranks} rank{'s' * (ranks != 1)}"
    table = to_rich(lines, f"{name}: test nodes, {over(len(runs))}")
    last = f"{took}. Model in {folder / 'model'}; open {folder / 'report.html'}."
    options.report(written.as_json, records, *notes, table, *train_report.summary(model), last)
    return records


def _on_ranks(work: Callable[[Ranks], None], device: str, timeout: float) -> None:
    """Do work on all ranks that torchrun started; one of them reports errors."""
    from fairmp.distributed.ranks import RankLostError, SharedError, joined

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
            print("fairmp: stopped; the same command resumes the training", file=sys.stderr)
        sys.exit(130)
    except (InputError, RankLostError) as error:
        # If rank 0 stops too it reports first, and torchrun ends the others meanwhile.
        time.sleep(0 if rank == 0 else REPORT_DELAY_S)
        if isinstance(error, InputError):
            raise
        print(f"fairmp: {error}", file=sys.stderr)
        sys.exit(1)


def _train_shards(
    shards: Path,
    solver: str,
    make: Callable[[], FairClassifier],
    seeds: range,
    written: options.Results,
    checkpoint_every: int,
    ranks: Ranks,
) -> None:
    from fairmp.datasets.statistics import Statistics
    from fairmp.distributed import FileCheckpoints, fit_shard, load_shard
    from fairmp.distributed.loading import split_column

    first = ranks.raise_on_all_ranks(make)
    setting = {**first.config(), "seed": seeds[0], "splits": len(seeds), "method": solver}
    ranks.check_equal("configuration", setting, "start all ranks with the same command")
    folder = ranks.on_rank_zero(lambda: _shards_folder(written.out, written.overwrite))
    shard = load_shard(shards, ranks, device=str(first.device))
    manifest = shard.manifest
    runs: list[Run] = []
    chosen: list[int | None] = [None] if manifest.split_seeds == (None,) else list(seeds)

    def check_written() -> None:
        with options.typed({"split_seed": "--splits"}):
            for split_seed in chosen:
                split_column(manifest, split_seed)

    ranks.raise_on_all_ranks(check_written)
    for number, split_seed in enumerate(chosen):
        path = folder / CHECKPOINTS / f"split-{number}.pt"
        fingerprint = {**setting, "data": manifest.fingerprint, "split_seed": split_seed}
        checkpoints = FileCheckpoints(path, ranks, fingerprint, every=checkpoint_every)
        shard = shard.with_split(shards, split_seed)
        model = make() if number else first
        run = fit_shard(model, shard, seed=seeds[0], split_seed=split_seed, checkpoints=checkpoints)
        runs.append(run)
    if ranks.rank == 0:
        # Whatever is in the folder by now belongs to this training, or may be replaced.
        graph = Statistics(**manifest.statistics)
        made = folder, solver, graph, manifest.report, runs, first
        _write(replace(written, overwrite=True), *made, ranks=ranks.size)
    ranks.objects(None)  # wait for rank 0
    if ranks.rank == 0:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _shards_folder(out: Path | None, overwrite: bool) -> Path:
    """Return an empty folder, or one with an unfinished training to resume."""
    usual = map(Path, chain(["fairmp-train"], (f"fairmp-train-{k}" for k in count(2))))
    folder = out or next(name for name in usual if not name.exists() or _unfinished(name))
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resumed = restarted or _unfinished(folder)
    hold(folder, overwrite=True)
    # Of a training that was killed after it had written its results, or is to be replaced.
    if not resumed and (overwrite or (folder / "records.jsonl").is_file()):
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    check_free(folder, overwrite=overwrite or resumed)
    return folder


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [CHECKPOINTS]
