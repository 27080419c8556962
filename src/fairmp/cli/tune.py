"""``fairmp tune``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import typer

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import argument, option, panel
from fairmp.cli.output import say
from fairmp.cli.spelling import rerun_command, train_command
from fairmp.errors import InputError, check_choice, check_number, plural
from fairmp.progress import bar
from fairmp.training import defaults

if TYPE_CHECKING:
    from fairmp.search.study import TrialResult
    from fairmp.search.tune import Tuned

_goal_option = panel("Goal")
_search = panel("Search")
STUDY, BEST = "study.db", "best.json"
DEFAULT_LIMIT = 0.02
MAX_FRONT_ROWS = 12


def command(
    context: typer.Context,
    source: options.Graph,
    dataset: str | None = argument("A data set, as --data takes it.", None, metavar="[DATASET]"),
    out: Path = option("Folder; a search in it is continued.", Path("fairmp-tune")),
    overwrite: options.Overwrite = False,
    dp: float | None = _goal_option("Largest ΔDP on validation nodes; 0.02, two points."),
    eo: float | None = _goal_option("The same with ΔEO (equal opportunity)."),
    front: bool = _goal_option("The whole Pareto front instead.", False, "--front"),
    criterion: str | None = _goal_option("Gap of the front: dp (the default) or eo."),
    backbone: str = _search("fmp, ppr (fmp uncorrected), mlp, gcn, gat, sgc or appnp.", "fmp"),
    strategy: str = _search("vanilla, or regulariser or adversary (h is searched).", "vanilla"),
    space: list[str] | None = _search("As lr=0.01, hidden=16,64 or lambda_s=1..10; repeatable."),
    trials: int = _search("Total number of trials.", 50, min=1),
    timeout: float | None = _search("Seconds after which no trial begins."),
    workers: int = _search("Processes; with one, the same seed gives the same trials.", 1, min=1),
    storage: str | None = _search("File, or URL like postgresql://user@host/name."),
    study_name: str = _search("Name of the study in its storage.", "fairmp"),
    splits: int = _search("Splits each trial is trained on.", 3, min=1),
    epochs: options.Epochs = defaults.EPOCHS,
    patience: options.Patience = defaults.PATIENCE,
    eval_every: options.EvalEvery = defaults.EVAL_EVERY,
    layers: options.Layers = defaults.NUM_LAYERS,
    pretrain: options.Pretrain = 70,
    device: options.Device = "cpu",
    seed: options.Seed = 0,
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Search for the most accurate settings within a gap, or for the whole front.

    Trials are evaluated on the validation nodes; the test nodes are set aside, and used once, for
    the chosen trial. Each finished trial is kept in --out: if it is stopped or killed, the same
    command continues, and with more --trials it adds some. Another goal needs another folder.
    """
    goal, gap = _goal(dp, eo, front, criterion)
    if dataset is not None:
        if source.data != "embedded":
            value = f"{source.data!r} beside the data set {dataset!r}"
            raise InputError("--data", value, "give one of them")
        source = replace(source, data=dataset)
    continued = any((out / file).is_file() for file in (STUDY, BEST))
    outputs.hold(out, overwrite=overwrite or continued)

    from fairmp.datasets.splits import check_groups, with_split
    from fairmp.search import page
    from fairmp.search.space import Method
    from fairmp.search.tune import tune

    method = Method(backbone, strategy, epochs, layers, patience or None, eval_every, pretrain)
    graph = source.load()
    if backbone == "fmp":
        check_groups(graph, [seed])
    kept = 0
    try:
        with ExitStack() as stack:
            advance: Callable[[str], None]

            def on_start(done: int, left: int) -> None:
                nonlocal kept, advance
                kept = done
                where = f" in {out}" if storage is None else ""
                say(f"{done + left} trials, {done} done already, {left} to go{where}.")
                advance = stack.enter_context(bar(left, "trials"))

            def on_trial(trial: TrialResult) -> None:
                nonlocal kept
                kept += 1
                accuracy, points = 100 * trial.figure("accuracy"), 100 * trial.figure(gap)
                text = f"{accuracy:.1f} %, Δ{gap.upper()} {points:.1f}"
                advance(f"trial {trial.number}: {'failed' if trial.failed else text}")

            shared = ("trials", "timeout", "workers", "splits", "seed", "study_name", "device")
            data = with_split(graph, seed=seed)
            tuned = tune(
                data,
                goal=cast(Any, goal),
                criterion=gap,
                method=method,
                space=space or (),
                storage=storage or str(out / STUDY),
                exclusive=storage is None,
                on_start=on_start,
                on_trial=on_trial,
                **{name: context.params[name] for name in shared},
            )
    except KeyboardInterrupt:
        say(f"fairmp: stopped; {kept} trials are kept, the same command continues")
        sys.exit(130)
    train_options = _train_options(tuned, vars(source))
    train = train_command(train_options)
    with outputs.results(out, overwrite=True, in_place=True) as staging:
        found = page.write(
            tuned,
            staging,
            data,
            train=train,
            panel_command=train_command(train_options, "criterion", "target"),
            command=rerun_command(),
        )
    if track is not None:
        output.track(track, page.trial_records(tuned), out)
    output.report(as_json, found, *_parts(tuned, train, out))
    if not tuned.met:
        hint = "try more --trials, a larger gap, or another --backbone or --strategy"
        say(f"fairmp: {page.not_met(tuned)} Its results are in {out}; {hint}")
        raise typer.Exit(1)


def _train_options(tuned: Tuned, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``fairmp train`` for the chosen classifier, on the first split."""
    from fairmp.search.space import format_value

    search, method = tuned.search, tuned.search.method
    chosen: dict[str, Any] = {"solver": "plain" if method.backbone == "ppr" else "none"}
    chosen["backbone"] = method.transform
    for name, value in tuned.chosen.settings.items():
        if (name, value) != ("on", "decisions"):  # the default
            chosen[method.strategy if name == "h" else name.lower()] = format_value(value)
    chosen |= {"layers": method.num_layers, "epochs": method.epochs}
    chosen["patience"] = method.patience or 0  # all epochs
    chosen |= {} if method.eval_every == 1 else {"eval_every": method.eval_every}
    if method.strategy == "adversary":
        chosen |= {"pretrain": method.pretrain, "select": method.select}
    chosen |= {"splits": 1, "seed": search.seed}
    chosen |= {} if search.device == "cpu" else {"device": search.device}
    return {
        name: value
        for name, value in {**given, **chosen}.items()
        if value is not None and (name, value) != ("data", "embedded")
    }


def _goal(
    dp: float | None, eo: float | None, front: bool, criterion: str | None
) -> tuple[float | str, Literal["dp", "eo"]]:
    goals = {"--dp": dp, "--eo": eo, "--front": "front" if front else None}
    given = [(option, goal) for option, goal in goals.items() if goal is not None]
    if len(given) > 1:
        raise InputError(given[1][0], f"does not go with {given[0][0]}", "give one goal")
    gap = check_choice("--criterion", criterion or ("dp" if eo is None else "eo"), ("dp", "eo"))
    option, goal = given[0] if given else (f"--{gap}", DEFAULT_LIMIT)
    if not front:
        hint = "give the largest gap you accept in [0, 1], 0.02 for two points"
        check_number(option, goal, hint, low=0, high=1)
        if option != f"--{gap}":
            raise InputError(option, f"does not go with --criterion {gap}", f"give --{gap}")
    return goal, cast(Literal["dp", "eo"], gap)


def _parts(tuned: Tuned, train: str, out: Path) -> list[Any]:
    """What is printed for people."""
    from rich.text import Text

    from fairmp.report.formats import Table, rich_table
    from fairmp.search import page
    from fairmp.search.space import format_settings

    header = [f"trial {tuned.chosen.number}", *page.COLUMNS.values()]
    figures = rich_table(Table("", header, page.figures_table(tuned)))
    settings = Text("Settings: " + format_settings(tuned.chosen.settings))
    heading = Text(page.title(tuned), "bold")
    parts: list[Any] = [heading, Text(page.summary(tuned)), figures, settings]
    if tuned.search.limit is None:
        parts.append(rich_table(Table("Pareto front", *page.front_table(tuned, MAX_FRONT_ROWS))))
    failed = page.failures(tuned).items()
    parts += [f"{plural(count, 'trial')} failed: {reason}" for reason, count in failed]
    if tuned.running:
        more = f"Other processes have {tuned.running} more running"
        parts.append(f"{more}; the same command includes them.")
    last = f"{output.elapsed():.0f} s. Model in {out / 'model'}; open {out / 'report.html'}."
    return [*parts, "Again: " + train, last]
