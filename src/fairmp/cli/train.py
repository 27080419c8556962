"""``fairmp train``, on one graph or on shards."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp.cli import options, output
from fairmp.cli.options import Gap, Gate, network, option, panel, smoothing, table
from fairmp.cli.output import adjustable_command, rerun_command, typed_here
from fairmp.errors import InputError, plural
from fairmp.training import defaults

if TYPE_CHECKING:
    from fairmp.comparison.training import TrainedSplits, TrainingJob
    from fairmp.distributed.ranks import Ranks

REPORT_DELAY_S = 5.0
COMMON = (  # options of --help
    *("nodes", "edges", "id", "label", "sensitive", "target", "criterion", "group_free"),
    "confidence",
    *(
        "data",
        "out",
        "overwrite",
        "as_json",
        "splits",
        "seed",
        "positive",
        "fail_above",
        "fail_below",
    ),
)
EPILOG = (
    "Example: fairmp train --nodes people.csv --edges friends.csv --id user --label hired "
    "--sensitive gender --target 0.02 --out run. All options: fairmp train --help-all."
)
_fair = panel("Fairness")
_shards = panel("Shards")
METHOD_NAMES = {
    "projection": "FMP",
    "papc": "FMP, papc",
    "paper": "FMP, as printed",
    "released": "FMP, as released",
    "plain": "plain propagation",
    "none": "no propagation",
}
_PROPAGATING = ("projection", "papc", "paper", "released", "plain")
_NEEDS = {  # the solvers that use an option
    "target": ("projection",),
    "on": ("projection",),
    "group_free": ("projection",),
    "confidence": ("projection",),
    "lambda_f": ("papc", "paper", "released"),
    "k": _PROPAGATING,
    "lambda_s": _PROPAGATING,
}
_SETTINGS = (  # options that go to the classifier as they are
    *("lambda_f", "target", "pretrain", "hidden", "dropout", "epochs", "lr", "weight_decay"),
    *("graph_features", "folds", "time_budget", "patience", "select", "eval_every", "calibrate"),
    *("on", "device", "num_layers", "group_free", "neighbour_groups", "confidence"),
)


def check_used(context: typer.Context, solver: str) -> None:
    """Raise if an option was typed that the solver does not use."""
    if solver not in (*_PROPAGATING, "none"):
        return
    for name, solvers in _NEEDS.items():
        if typed_here(context, name) and solver not in solvers:
            hint = f"leave it out, or choose --solver {' or '.join(solvers)}"
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, f"--solver {solver} does not use it", hint)


def command(
    context: typer.Context,
    written: options.Results,
    source: options.Graph,
    gate: Gate,
    training: options.Training,
    solver: str = _fair(
        "projection, papc, paper, released; 'plain' propagation, or 'none'.", "projection"
    ),
    target: float = _fair("Largest gap between two groups, 0.02 for two points.", 0.0),
    on: str = _fair("Make equal: decisions or probabilities.", "decisions"),
    criterion: str = _fair(
        "What should be equal: demographic-parity, equal-opportunity, "
        "false-positive-rate-parity or equalized-odds.",
        "demographic-parity",
    ),
    k: int = _fair("Propagation steps.", defaults.K),
    lambda_s: str | None = _fair("Smoothing: a number, or 'learned' (the default)."),
    lambda_f: float = _fair(
        "Strength of the pull towards parity (papc, paper, released).", defaults.LAMBDA_F
    ),
    group_free: bool = _fair(
        "Read nobody's group at prediction: it is estimated instead.", False, "--group-free"
    ),
    neighbour_groups: bool = _fair(
        "With --group-free: estimate it from neighbours' known groups, too.", True
    ),
    confidence: float | None = _fair(
        "Promise --target for new people with this confidence, such as 0.95."
    ),
    regulariser: float = _fair("Weight of the demographic regulariser.", 0.0),
    adversary: float = _fair("Weight of the adversary.", 0.0),
    pretrain: int = _fair("Epochs before the adversary is active.", defaults.PRETRAIN),
    backbone: str | None = network(
        "auto (the default), mlp (with --shards), gcn, gat, sgc, appnp, trees, forest, logistic."
    ),
    graph_features: bool | None = network("Add neighbourhood columns; by default auto decides."),
    folds: int = network(
        "Folds that auto is cross-fitted on; 1 chooses on the validation nodes.",
        defaults.FOLDS,
        min=1,
    ),
    time_budget: float = network(
        "Seconds after which auto starts no other candidate or fold.", defaults.TIME_BUDGET
    ),
    select: str = network("Epoch kept: best accuracy, best loss, or last.", "accuracy"),
    order: str = network("Order of nodes in memory: given, or locality (large graphs).", "given"),
    splits: options.Splits = 3,
    protocol: options.Protocol = None,
    seed: options.Seed = 0,
    picture: bool = option("Draw the graph in the report.", True),
    keep_graph: bool = table(
        "Store the graph in the model so that new nodes can be linked to it.",
        True,
        "--graph/--no-graph",
    ),
    track: options.Track = None,
    shards: Path | None = _shards("Folder that 'fairmp shard' wrote; train with torchrun."),
    checkpoint_every: int = _shards("Epochs between two checkpoints.", 10, min=1),
    timeout: float = _shards("Seconds to wait for another process.", 600.0),
) -> None:
    """Train one configuration on several splits, and save its model.

    The model under --out is that of the first split; use it with 'fairmp predict', or load it with
    FairClassifier.load. report.html shows what it does to each group.
    """
    settings = training.settle(context)
    check_used(context, settings["solver"])
    if shards is not None:
        _check_without_graph(source, gate)
        return _on_ranks(
            partial(_train_shards, _job(settings), shards, written, checkpoint_every),
            training.device,
            timeout,
        )
    folder = written.folder("train")
    output.starting(f"training on {plural(splits, 'split')}")
    job = _job(settings)
    if protocol is not None:
        if source.has_tables():
            raise InputError("--protocol", "needs --data", "leave out --nodes and --edges")
        source = replace(source, data=options.with_protocol([source.data], protocol)[0])
    from fairmp.comparison.training import train_splits
    from fairmp.datasets.splits import check_groups

    graph = source.load()
    # Wrong input is reported before anything is trained.
    if job.make().corrects:
        check_groups(graph, job.seeds)
    trained = train_splits(job, graph, order=order)
    records = _write(
        job,
        trained,
        written,
        folder,
        panel_command=adjustable_command(context, "criterion", "target"),
        picture=picture,
        keep_graph=keep_graph,
    )
    output.track(track, records, folder)
    if gate.is_set:
        test = trained.runs[0].test.to_dict()
        gate.check(Gap.of_evaluation(test, criterion), impact_ratio=Gap.impact_ratio(test))


def _job(settings: Mapping[str, Any]) -> TrainingJob:
    """The configuration that the options describe."""
    from fairmp.comparison.training import TrainingJob
    from fairmp.training.classifier import build_classifier

    solver, seed, on_shards = settings["solver"], settings["seed"], settings["shards"] is not None
    arguments = {name: settings[name] for name in _SETTINGS}
    if not settings["keep_graph"] and settings["graph_features"] is None:
        arguments["graph_features"] = False  # its columns of labels would be kept with the model
    if not settings["keep_graph"]:
        arguments["neighbour_groups"] = False
    make = partial(
        build_classifier,
        solver,
        K=settings["k"],
        strategy=_strategy(settings),
        h=settings["regulariser"] or settings["adversary"],
        backbone=settings["backbone"] or ("mlp" if on_shards else "auto"),
        lambda_s=smoothing(settings["lambda_s"]),
        criterion=options.criterion_name(settings["criterion"]),
        **arguments,
    )
    name = METHOD_NAMES.get(solver, solver)  # which the classifier refuses if it is none
    return TrainingJob(name, make, range(seed, seed + settings["splits"]))


def _strategy(settings: Mapping[str, Any]) -> str:
    """The penalty that the options ask for, at most one."""
    asked = [name for name in ("regulariser", "adversary") if settings[name]]
    if len(asked) > 1:
        raise InputError(
            f"--{asked[1]}", f"cannot be combined with --{asked[0]}", "choose one of them"
        )
    return asked[0] if asked else "vanilla"


def _check_without_graph(source: options.Graph, gate: Gate) -> None:
    """Raise if an option was given that cannot be combined with shards."""
    if gate.is_set:
        hint = "gate 'fairmp predict' instead"
        raise InputError("--fail-above", "cannot be combined with --shards", hint)
    for name in ("data", "nodes", "edges", "weight"):
        if getattr(source, name) not in (None, "embedded"):
            raise InputError(
                f"--{name}", "cannot be combined with --shards, which hold a graph already"
            )


def _write(
    job: TrainingJob,
    trained: TrainedSplits,
    written: options.Results,
    folder: Path,
    *,
    ranks: int | None = None,
    panel_command: str = "",
    picture: bool = False,
    keep_graph: bool = False,
) -> list[dict[str, Any]]:
    """Write the results of all splits, and print them; ``ranks`` is the number of processes."""
    from fairmp.comparison import training
    from fairmp.report import over, to_rich
    from fairmp.report.document import read, story_lines

    records = trained.records(job.name)
    launcher = f"torchrun --nproc-per-node={ranks} -m " if (ranks or 1) > 1 else ""
    command = launcher + rerun_command()
    with written.staging(folder) as staging:
        lines = training.write(
            trained.data,
            records,
            trained.model,
            staging,
            command=command,
            panel_command=panel_command,
            picture=picture,
            keep_graph=keep_graph,
        )
    where = "" if ranks is None else f" on {plural(ranks, 'rank')}"
    figures = to_rich(lines, f"{trained.data.name}: test part, {over(len(records))}")
    summary = training.summary(trained.model)
    story = story_lines(read(folder))
    last = f"{output.elapsed():.0f} s{where}. Model in {folder / 'model'}; "
    last += f"open {folder / 'report.html'}."
    held = training.held_data(trained.data, trained.model, keep_graph=keep_graph)
    if held:
        held += " Train with --no-graph to keep none." if keep_graph else ""
    following = f"Next: fairmp predict {shlex.quote(str(folder))} --nodes new.csv"
    story += [last, held, following]
    output.report(written.as_json, records, *trained.notes, figures, *summary, "", *story)
    return records


def _on_ranks(function: Callable[[Ranks], None], device: str, timeout: float) -> None:
    """Call a function on all ranks that torchrun started; one of them reports errors."""
    from fairmp.distributed.ranks import RankLostError, SharedError, joined

    # torchrun ends its processes with this signal; one that waits for another cannot clean up.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rank = 0
    try:
        with joined(device=device, timeout=timeout) as ranks:
            rank = ranks.rank
            function(ranks)
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
    job: TrainingJob, shards: Path, written: options.Results, checkpoint_every: int, ranks: Ranks
) -> None:
    from fairmp.comparison.training import remove_checkpoints, train_shards

    trained, folder = train_shards(
        job,
        shards,
        ranks,
        out=written.out,
        overwrite=written.overwrite,
        checkpoint_every=checkpoint_every,
    )
    if ranks.rank == 0:
        # Whatever is in the folder by now belongs to this training, or may be replaced.
        _write(job, trained, replace(written, overwrite=True), folder, ranks=ranks.size)
    ranks.objects(None)  # wait for rank 0
    if ranks.rank == 0:
        remove_checkpoints(folder)
