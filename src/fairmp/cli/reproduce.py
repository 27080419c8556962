"""``fairmp reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp.cli import options
from fairmp.cli.options import option, rerun_command, say
from fairmp.errors import InputError
from fairmp.outputs import bar

if TYPE_CHECKING:
    from fairmp.comparison.page import Content
    from fairmp.report.formats import Table

app = typer.Typer(
    help="Rerun the paper's experiments, by default on every data set whose files are found.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
QUICK = "A small run with the same structure, in two minutes."
Quick = Annotated[bool, option(QUICK, ..., "--quick")]
SPLITS = "Number of splits; by default the experiment's."
Splits = Annotated[int | None, option(SPLITS, ..., min=1)]
Device = Annotated[str, option("cpu or cuda.", ...)]


@dataclass(frozen=True)
class Scope:
    """On what an experiment is run."""

    quick: Quick = False
    data: options.DataNames = None
    data_dir: options.DataDir = None

    def graphs(
        self, quick: list[str], usual: list[str] | None = None, load: Any = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Load the graphs whose files are found, by default ``usual``; say why others are not."""
        from fairmp.datasets.by_name import available, from_files

        names = self.data or (quick if self.quick else usual)
        found, absent = available(names, self.data_dir, load or from_files)
        for name, why in absent.items():
            say(f"Left out, {name}: {why}.")
        if not found:
            hint = "name their folder with --data-dir or FAIRMP_DATA, or use --data embedded"
            raise InputError("--data", "no data set's files were found", hint)
        return found, absent


def _register(command: Callable[..., None]) -> None:
    app.command(command.__name__)(options.expand(command))


def _add_grid_command(
    name: str, description: str, quick: str = "embedded:2000", usual: list[str] | None = None
) -> None:
    """Add the command of an experiment that is a grid; like ``fairmp compare`` it can resume."""

    def command(
        scope: Scope,
        out: Path | None = option("Folder for the results; one with records is continued."),
        splits: Splits = None,
        workers: options.Workers = None,
        device: Device = "cpu",
        as_json: options.AsJson = False,
    ) -> None:
        from fairmp.cli import compare as compare_command
        from fairmp.comparison import compare
        from fairmp.datasets.by_name import from_files
        from fairmp.reproduction.experiments import WRITERS
        from fairmp.reproduction.grids import GRIDS

        folder = out or Path(f"fairmp-{name}")
        compare_command.check_folder(folder)
        graphs, _ = scope.graphs([quick], usual)
        specs = GRIDS[name](list(graphs), quick=scope.quick, splits=splits)
        records = compare.read(folder / compare_command.RECORDS)
        if {record["key"] for record in records} - {spec.key for spec in specs}:
            hint = "give another folder, or the options they were made with"
            raise InputError("--out", f"{folder} has records of another run", hint)
        load = partial(from_files, data_dir=scope.data_dir)
        records = compare_command.run_with_progress(
            specs, load, folder, workers=workers, device=device, retry=False
        )
        found = WRITERS[name](records, folder, command=rerun_command())
        compare_command.show(found, folder, as_json=as_json)

    app.command(name, help=description)(options.expand(command))


_add_grid_command(
    "table1", "Compare graph neural networks and FMP without any strategy (the paper's Table 1)."
)
_add_grid_command(
    "pareto", "Draw accuracy against the gap: regulariser above, adversary below, FMP in both."
)
_add_grid_command(
    "published",
    "Quote published methods under NIFTY's protocol beside ours: German, Bail and Credit.",
    "german+nifty",
    [f"{name}+nifty" for name in ("german", "bail", "bail-without-time", "credit")],
)
_add_grid_command("hyperparameters", "Vary λ_f, the projection's target and λ_s, one at a time.")


@_register
def runtime(results: options.Results, scope: Scope, device: Device = "cpu") -> None:
    """Time 200 epochs of every network with every strategy, relative to an MLP."""
    folder = results.folder("runtime")

    from fairmp.reproduction import experiments, grids

    graphs, _ = scope.graphs(["embedded:1000"])
    specs = grids.runtime(list(graphs), quick=scope.quick)
    say(f"{len(specs)} runs, one at a time.")
    with results.staging(folder) as staging, bar(len(specs), "runs") as advance:
        records = experiments.run_times(specs, graphs, staging, device, advance)
        tables = _write(staging, experiments.times(records))
    _show(results, records, tables, folder)


@_register
def statistics(results: options.Results, scope: Scope) -> None:
    """Count nodes, edges and homophily of each data set, next to what the paper prints."""
    folder = results.folder("statistics")

    from fairmp.reproduction import experiments

    found, absent = scope.graphs(experiments.SOME_DATA, load=experiments.described)
    with results.staging(folder) as staging:
        tables = _write(staging, experiments.data_sets(found, staging), absent)
    _show(results, {key: row.as_dict() for key, row in found.items()}, tables, folder)


@_register
def topology(
    results: options.Results,
    scope: Scope,
    seed: int = option("Seed of samples and layouts.", 0, min=0),
) -> None:
    """Draw each data set's graph, with the edges between groups in red."""
    folder = results.folder("topology")

    from fairmp.reproduction.experiments import pictures

    graphs, absent = scope.graphs(["embedded:1000"])
    with results.staging(folder) as staging, bar(len(graphs), "pictures") as advance:
        _write(staging, pictures(graphs, staging, seed, advance), absent)
    _show(results, [str(path) for path in sorted(folder.glob("*.png"))], [], folder)


@_register
def synthetic(
    results: options.Results,
    quick: Quick = False,
    data_dir: options.DataDir = None,
    seed: int = option("Seed of the graphs.", 0),
) -> None:
    """Bias under message passing on synthetic graphs, measured against the theory.

    Data sets whose files are found are placed on the phase diagram.
    """
    folder = results.folder("synthetic")

    from fairmp.datasets.by_name import available
    from fairmp.reproduction import synthetic as experiment

    say(f"This takes about {'a minute' if quick else '15 minutes'} on two cores.")
    graphs, absent = available(None, data_dir)
    count = sum(len(settings) for _, settings in experiment.designs(quick).values())
    with results.staging(folder) as staging, bar(count, "settings") as advance:
        summary = experiment.run(staging, quick, seed, graphs.values(), advance)
        tables = _write(staging, experiment.content(summary, staging))[:2]
    notes = [experiment.witness_text(summary)]
    if absent:
        notes.append(f"Not placed, their files were not found: {', '.join(absent)}.")
    _show(results, summary, tables, folder, *notes)


@_register
def unknown(
    results: options.Results,
    scope: Scope,
    splits: Splits = None,
    workers: options.Workers = None,
) -> None:
    """Hide the groups of all but 1 to 100 % of the nodes, and correct with and without estimates.

    By default on the embedded network, Pokec province and Bail.
    """
    folder = results.folder("unknown")

    from fairmp.parallel import default_workers
    from fairmp.reproduction import unknown as experiment

    graphs, absent = scope.graphs(["embedded:3000"], list(experiment.DATA))
    setting = experiment.QUICK if scope.quick else experiment.Setting()
    setting = replace(setting, splits=splits or setting.splits)
    with results.staging(folder) as staging, bar(len(graphs) * setting.splits, "splits") as advance:
        records = experiment.run(graphs, setting, workers or default_workers(), advance)
        tables = _write(staging, experiment.write(records, staging), absent)
    _show(results, records, tables, folder)


def _write(folder: Path, content: Content, absent: dict[str, str] | None = None) -> Sequence[Table]:
    from fairmp.comparison.page import write_page

    return write_page(folder, *content, command=rerun_command(), absent=absent)


def _show(
    results: options.Results, found: object, tables: Sequence[Table], folder: Path, *notes: str
) -> None:
    options.report(results.as_json, found, *notes, *options.tables(tables, folder))
