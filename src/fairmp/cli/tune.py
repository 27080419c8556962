"""``fairmp tune``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import typer

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import argument, option, panel
from fairmp.cli.output import rerun_command, say, train_command
from fairmp.display import bar
from fairmp.errors import InputError, check_choice, check_number, plural
from fairmp.training import defaults

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.tuning.trials import TrialResult
    from fairmp.tuning.tune import Tuned

_goal_option = panel("Goal")
_search = panel("Search")
STUDY, BEST = "study.db", "best.json"
DEFAULT_LIMIT = 0.02
MAX_FRONT_ROWS = 12


def command(
    source: options.Graph,
    dataset: str | None = argument("A data set, as --data takes it.", None, metavar="[DATASET]"),
    out: Path = option("Folder; a search in it is continued.", Path("fairmp-tune")),
    overwrite: options.Overwrite = False,
    dp: float | None = _goal_option("Largest ΔDP on validation nodes; 0.02 is two points."),
    eo: float | None = _goal_option("The same with ΔEO (equal opportunity)."),
    front: bool = _goal_option("The whole Pareto front instead.", False, "--front"),
    criterion: str | None = _goal_option("Gap of the front: dp (the default) or eo."),
    method: str = _search("fmp, ppr (fmp uncorrected), mlp, gcn, gat, sgc or appnp.", "fmp"),
    strategy: str = _search("vanilla, or regulariser or adversary (h is searched).", "vanilla"),
    space: list[str] | None = _search("Space of a setting: lr=0.01, hidden=16,64, lambda_s=1..10."),
    trials: int = _search("Total number of trials.", 50, min=1),
    timeout: float | None = _search("Start no trial after so many seconds."),
    workers: int = _search("Processes; with one, the same seed gives the same trials.", 1, min=1),
    storage: str | None = _search("SQLite file, or URL like postgresql://user@host/name."),
    study_name: str = _search("Name of the study in its storage.", "fairmp"),
    splits: int = _search("Splits each trial is trained on.", 3, min=1),
    epochs: options.Epochs = defaults.EPOCHS,
    patience: options.Patience = defaults.PATIENCE,
    eval_every: options.EvalEvery = defaults.EVAL_EVERY,
    layers: options.Layers = defaults.NUM_LAYERS,
    pretrain: options.Pretrain = defaults.PRETRAIN,
    device: options.Device = "cpu",
    seed: options.Seed = 0,
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Search for the most accurate settings within a gap, or for the whole front.

    Trials are evaluated on the validation nodes. The test nodes are set aside and used once, for
    the chosen trial. Each finished trial is kept in --out: if the command is stopped or killed, run
    it again to continue; a larger --trials adds some. A different goal needs a different folder.
    """
    goal = _goal(dp, eo, front, criterion)
    source = _with_dataset(source, dataset)
    is_continued = any((out / file).is_file() for file in (STUDY, BEST))
    outputs.hold(out, overwrite=overwrite or is_continued)

    from fairmp.datasets.splits import check_groups, with_split
    from fairmp.tuning import page
    from fairmp.tuning.space import Method
    from fairmp.tuning.tune import tune

    searched = Method(method, strategy, epochs, layers, patience or None, eval_every, pretrain)
    graph = _load(source, dataset)
    if method == "fmp":
        check_groups(graph, [seed])
    data = with_split(graph, seed=seed)
    with _progress(goal.criterion, f" in {out}" if storage is None else "") as progress:
        tuned = tune(
            data,
            goal=goal.limit,
            criterion=goal.criterion,
            method=searched,
            space=space or (),
            trials=trials,
            timeout=timeout,
            workers=workers,
            splits=splits,
            seed=seed,
            storage=storage or str(out / STUDY),
            study_name=study_name,
            exclusive=storage is None,
            device=device,
            on_start=progress.start,
            on_trial=progress.add,
        )
    train_options = _train_options(tuned, vars(source))
    commands = page.Commands(
        train=train_command(train_options),
        panel=train_command(train_options, "criterion", "target"),
        rerun=rerun_command(),
    )
    with outputs.results(out, overwrite=True, in_place=True) as staging:
        record = page.write(tuned, staging, data, commands)
    if track is not None:
        output.track(track, page.trial_records(tuned), out)
    output.report(as_json, record, *_parts(tuned, commands.train, out))
    if not tuned.met:
        hint = "try more --trials, a larger gap, or another --method or --strategy"
        say(f"fairmp: {page.not_met(tuned)} Its results are in {out}; {hint}")
        raise typer.Exit(1)


class _Goal(NamedTuple):
    limit: float | Literal["front"]
    criterion: Literal["dp", "eo"]


def _goal(dp: float | None, eo: float | None, front: bool, criterion: str | None) -> _Goal:
    goals = {"--dp": dp, "--eo": eo, "--front": "front" if front else None}
    asked = [option for option, goal in goals.items() if goal is not None]
    if len(asked) > 1:
        raise InputError(asked[1], f"cannot be combined with {asked[0]}", "give one goal")
    gap = check_choice("--criterion", criterion or ("dp" if eo is None else "eo"), ("dp", "eo"))
    key = cast(Literal["dp", "eo"], gap)
    if front:
        return _Goal("front", key)
    option = asked[0] if asked else f"--{gap}"
    if option != f"--{gap}":
        raise InputError(option, f"cannot be combined with --criterion {gap}", f"give --{gap}")
    limit = DEFAULT_LIMIT if goals[option] is None else goals[option]
    hint = "give the largest gap you accept in [0, 1], 0.02 for two points"
    return _Goal(check_number(option, limit, hint, low=0, high=1), key)


def _with_dataset(source: options.Graph, dataset: str | None) -> options.Graph:
    if dataset is None:
        return source
    if source.data != "embedded":
        value = f"{source.data!r} beside the data set {dataset!r}"
        raise InputError("--data", value, "give one of them")
    return replace(source, data=dataset)


def _load(source: options.Graph, dataset: str | None) -> Data:
    """Load the graph; errors about a data set named without --data are about the argument."""
    try:
        return source.load()
    except InputError as error:
        by_option = error.argument in ("data", "--data", "name")
        raise (error.rename("dataset") if dataset and by_option else error) from None


@contextmanager
def _progress(criterion: str, where: str) -> Iterator[_Progress]:
    """Show the progress of trials; if they are stopped, say how many are kept."""
    with ExitStack() as bars:
        progress = _Progress(criterion, where, bars)
        try:
            yield progress
        except KeyboardInterrupt:
            bars.close()
            say(f"fairmp: stopped; {progress.finished} trials are kept, the same command continues")
            sys.exit(130)


class _Progress:
    """A bar over the trials, shown once their number is known."""

    def __init__(self, criterion: str, where: str, bars: ExitStack) -> None:
        self.criterion, self.where, self.bars = criterion, where, bars
        self.finished = 0
        self.advance: Callable[[str], None] = lambda text: None

    def start(self, done: int, left: int) -> None:
        self.finished = done
        say(f"{done + left} trials, {done} done already, {left} to go{self.where}.")
        self.advance = self.bars.enter_context(bar(left, "trials"))

    def add(self, trial: TrialResult) -> None:
        self.finished += 1
        accuracy, gap = trial.figure("accuracy"), trial.figure(self.criterion)
        figures = f"{100 * accuracy:.1f} %, Δ{self.criterion.upper()} {100 * gap:.1f}"
        self.advance(f"trial {trial.number}: {'failed' if trial.failed else figures}")


def _train_options(tuned: Tuned, source: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``fairmp train`` for the chosen classifier, on the first split."""
    from fairmp.tuning.space import PROPAGATING, format_value

    search, method = tuned.search, tuned.search.method
    chosen: dict[str, Any] = {"solver": PROPAGATING.get(method.name, "none")}
    chosen["backbone"] = method.backbone
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
        for name, value in {**source, **chosen}.items()
        if value is not None and (name, value) != ("data", "embedded")
    }


def _parts(tuned: Tuned, train: str, out: Path) -> list[Any]:
    """What is printed for people."""
    from rich.text import Text

    from fairmp.report.formats import Table, rich_table
    from fairmp.tuning import page
    from fairmp.tuning.space import format_settings

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
        elsewhere = f"Other processes have {tuned.running} more running"
        parts.append(f"{elsewhere}; the same command includes them.")
    last = f"{output.elapsed():.0f} s. Model in {out / 'model'}; open {out / 'report.html'}."
    return [*parts, "Again: " + train, last]
