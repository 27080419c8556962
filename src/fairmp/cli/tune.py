"""``fairmp tune``."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.errors import InputError
from fairmp.progress import bar

if TYPE_CHECKING:
    from fairmp.search.trials import TrialResult
    from fairmp.search.tune import Tuned

_GOAL, _SEARCH, _NET = "What to look for", "The search", "What all trials share"
STUDY, BEST = "study.db", "best.json"
LIMIT = 0.02
_ROWS = 12


def command(
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="[DATASET]", help="A data set, as --data takes it."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for study and results; a search in it goes on.")
    ] = Path("fairmp-tune"),
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
    dp: Annotated[
        float | None,
        typer.Option(
            help="The best accuracy with ΔDP up to this on validation, 0.02 (the default) for two "
            "points.",
            rich_help_panel=_GOAL,
        ),
    ] = None,
    eo: Annotated[
        float | None,
        typer.Option(help="The same with ΔEO, equal opportunity.", rich_help_panel=_GOAL),
    ] = None,
    front: Annotated[
        bool,
        typer.Option("--front", help="The whole front instead.", rich_help_panel=_GOAL),
    ] = False,
    criterion: Annotated[
        str | None,
        typer.Option(help="Gap of the front: dp (the default) or eo.", rich_help_panel=_GOAL),
    ] = None,
    backbone: Annotated[
        str,
        typer.Option(
            help="fmp; ppr, which is fmp without its correction; or mlp, gcn, gat, sgc, appnp.",
            rich_help_panel=_SEARCH,
        ),
    ] = "fmp",
    strategy: Annotated[
        str,
        typer.Option(
            help="vanilla; or regulariser or adversary, whose strength h is searched too.",
            rich_help_panel=_SEARCH,
        ),
    ] = "vanilla",
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Search a setting elsewhere: lr=0.01, hidden=16,64 or lambda_s=1..10; give "
            "several.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Trials there are to be in all.", rich_help_panel=_SEARCH)
    ] = 50,
    timeout: Annotated[
        float | None,
        typer.Option(help="Begin no trial after so many seconds.", rich_help_panel=_SEARCH),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, help="Processes; with one the same seed finds the same.", rich_help_panel=_SEARCH
        ),
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Where the study is: a file, or a URL of optuna's such as "
            "postgresql://user@host/name; by default study.db in --out.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    study_name: Annotated[
        str, typer.Option(help="Name of the study in its storage.", rich_help_panel=_SEARCH)
    ] = "fairmp",
    splits: Annotated[
        int, typer.Option(min=1, help="Splits a trial is trained on.", rich_help_panel=_SEARCH)
    ] = 3,
    epochs: Annotated[int, typer.Option(help="Most epochs.", rich_help_panel=_NET)] = 300,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many epochs without a gain.", rich_help_panel=_NET),
    ] = None,
    eval_every: Annotated[
        int, typer.Option(help="Look at validation every so many epochs.", rich_help_panel=_NET)
    ] = 1,
    layers: Annotated[int, typer.Option(help="Layers.", rich_help_panel=_NET)] = 2,
    pretrain: Annotated[
        int, typer.Option(help="Epochs before an adversary joins.", rich_help_panel=_NET)
    ] = 70,
    device: Annotated[str, typer.Option(help="cpu or cuda.", rich_help_panel=_NET)] = "cpu",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Search for the most accurate settings within a gap, or for the whole front.

    Trials are judged on the validation nodes; the test nodes are set aside and looked at once, for
    what is chosen. Each trial is in --out as it is done: killed or stopped, the same command goes
    on, and with more --trials it adds some. Another goal needs another folder.
    """
    start = time.perf_counter()
    goal, gap = _goal(dp, eo, front, criterion)
    name = _dataset(dataset, data)
    _check_place(out, overwrite)

    from fairmp.search.tune import load_optuna, tune

    load_optuna()
    from fairmp.datasets.splits import with_split
    from fairmp.search import page as tune_page
    from fairmp.search.space import Method

    method = Method(backbone, strategy, epochs, layers, patience, eval_every, pretrain)
    given = (name, data_dir, nodes, edges, id, label, sensitive, sensitive_bins, drop)
    graph = options.load_data(*given)
    if backbone == "fmp":
        options.check_groups(graph, [seed])
    teller = _Teller(gap, out if storage is None else None)
    try:
        tuned = tune(
            with_split(graph, seed=seed),
            goal=cast(Any, goal),
            criterion=gap,
            method=method,
            space=space or (),
            trials=trials,
            timeout=timeout,
            workers=workers,
            splits=splits,
            seed=seed,
            storage=str(out / STUDY) if storage is None else storage,
            study_name=study_name,
            device=device,
            on_start=teller.start,
            on_trial=teller.tell,
        )
    except KeyboardInterrupt:
        _say(f"fairmp: stopped; {teller.kept} trials are kept, the same command goes on")
        sys.exit(130)
    finally:
        teller.close()
    with outputs.results(out, overwrite=True) as staging:
        found = tune_page.write(
            tuned,
            staging,
            train=train_command(tuned, given, device),
            command=_again(storage),
        )
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _show(tuned, found, out, time.perf_counter() - start)
    if not tuned.met:
        _say(
            f"fairmp: {tune_page.not_met(tuned)} Its results are in {out}; try more --trials, "
            "a larger gap, or another --backbone or --strategy"
        )
        raise typer.Exit(1)


def train_command(tuned: Tuned, given: tuple[Any, ...], device: str) -> str | None:
    """Write the ``fairmp train`` command for the chosen classifier; ``None`` if there is none."""
    import inspect

    from fairmp.cli import train
    from fairmp.search.space import train_options

    names = ("data", "data_dir", "nodes", "edges", "id", "label", "sensitive")
    of_data = dict(zip((*names, "sensitive_bins", "drop"), given, strict=True))
    chosen = train_options(tuned.search.method, tuned.chosen.settings, tuned.search.seed)
    chosen |= {} if device == "cpu" else {"device": device}
    if not set(chosen) <= set(inspect.signature(train.command).parameters):
        return None
    return shlex.join(["fairmp", "train", *_typed(of_data), *_typed(chosen)])


def _again(storage: str | None) -> str:
    """What was typed, fit to be shown: a password in it stays unknown."""
    from fairmp.search.study import shown_place

    words = [
        word if storage is None else word.replace(storage, shown_place(storage))
        for word in sys.argv[1:]
    ]
    return shlex.join(["fairmp", *words])


def _typed(values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        if value is None or (name == "data" and value == "embedded"):
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", str(one)]
    return words


def _goal(
    dp: float | None, eo: float | None, front: bool, criterion: str | None
) -> tuple[float | str, Literal["dp", "eo"]]:
    asked = {"--dp": dp, "--eo": eo, "--front": True if front else None}
    several = [option for option, value in asked.items() if value is not None]
    if len(several) > 1:
        raise InputError(several[1], f"does not go with {several[0]}", "give one goal")
    if criterion is not None and criterion not in ("dp", "eo"):
        raise InputError("--criterion", f"{criterion!r} is unknown", "choose dp or eo")
    gap = cast(Literal["dp", "eo"], criterion or ("dp" if eo is None else "eo"))
    if several and several[0] in ("--dp", "--eo") and several[0] != f"--{gap}":
        raise InputError(several[0], f"does not go with --criterion {gap}", f"give --{gap}")
    for option, value in (("--dp", dp), ("--eo", eo)):
        if value is not None and not 0 <= value <= 1:
            raise InputError(
                option,
                f"{value} is outside [0, 1]",
                "give the largest gap you accept, 0.02 for two points",
            )
    limit = dp if dp is not None else eo
    return ("front" if front else LIMIT if limit is None else limit), gap


def _dataset(dataset: str | None, data: str) -> str:
    if dataset is not None and data != "embedded":
        raise InputError("--data", f"{data!r} goes without a second name ({dataset!r})", "give one")
    return data if dataset is None else dataset


def _check_place(out: Path, overwrite: bool) -> None:
    """Refuse a folder that holds neither a search nor its results."""
    if out.is_dir() and any((out / name).is_file() for name in (STUDY, BEST)):
        return
    outputs.check_free(out, overwrite=overwrite)


class _Teller:
    """Says how many trials there are, and shows a bar of those to come."""

    def __init__(self, gap: str, out: Path | None) -> None:
        self.gap, self.out, self.kept = gap, out, 0
        self._bar: Any = None

    def start(self, done: int, left: int) -> None:
        where = f" in {self.out}" if self.out is not None else ""
        _say(f"{done + left} trials, {done} done already, {left} to go{where}.")
        self.kept = done
        self._bar = bar(left, "trials")
        self._advance = self._bar.__enter__()

    def tell(self, trial: TrialResult) -> None:
        self.kept += 1
        if trial.failed is not None:
            self._advance(f"trial {trial.number} failed")
            return
        accuracy, gap = trial.figure("accuracy"), trial.figure(self.gap)
        name = f"Δ{self.gap.upper()}"
        self._advance(f"trial {trial.number}: {100 * accuracy:.1f} %, {name} {100 * gap:.1f}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


def _show(tuned: Tuned, found: dict[str, Any], out: Path, seconds: float) -> None:
    from rich.console import Console

    from fairmp.report.formats import Table, rich_table
    from fairmp.search import page as tune_page
    from fairmp.search.space import told

    console = Console(highlight=False)
    console.print(tune_page.title(tuned), style="bold")
    console.print(tune_page.summary(tuned))
    rows = tune_page.figures_table(tuned)
    console.print(rich_table(Table("", [f"trial {tuned.chosen.number}", *tune_page.HEADER], rows)))
    console.print("Settings: " + told(tuned.chosen.settings))
    if tuned.search.limit is None:
        console.print(rich_table(Table("The front", *tune_page.front_table(tuned, _ROWS))))
    for reason in dict.fromkeys(t.failed for t in tuned.trials if t.failed is not None):
        count = sum(trial.failed == reason for trial in tuned.trials)
        console.print(f"{count} trial{'s' * (count != 1)} failed: {reason}", soft_wrap=True)
    if tuned.running:
        console.print(
            f"Other processes are at {tuned.running} more; the same command takes them in."
        )
    if found["chosen"]["train_command"]:
        console.print("Again: " + found["chosen"]["train_command"], soft_wrap=True)
    console.print(f"{seconds:.0f} s. Model in {out / 'model'}; open {out / 'report.html'}.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
