"""``fairmp reproduce``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import grid_options, options
from fairmp.cli.grid_options import duration, print_tables, rerun_command, say
from fairmp.errors import InputError
from fairmp.progress import bar

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.datasets.statistics import Statistics
    from fairmp.report.formats import Table

app = typer.Typer(
    help="Rerun the paper's experiments, by default on every data set whose files are found.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add_grid_command(name: str, description: str) -> None:
    """Add the command of an experiment that is a grid; like ``fairmp compare`` it can resume."""

    def command(
        out: options.Out = None,
        quick: grid_options.Quick = False,
        data: grid_options.DataNames = None,
        data_dir: options.DataDir = None,
        splits: grid_options.Splits = None,
        workers: grid_options.Workers = None,
        device: grid_options.Device = "cpu",
        as_json: options.AsJson = False,
    ) -> None:
        folder = out or Path(f"fairmp-{name}")

        from fairmp.cli import compare as compare_command
        from fairmp.comparison import compare
        from fairmp.datasets.by_name import from_files
        from fairmp.reproduction.grids import GRIDS

        compare_command.check_folder(folder)
        graphs, _ = _graphs(data or (["embedded:2000"] if quick else None), data_dir)
        specs = GRIDS[name](list(graphs), quick=quick, splits=splits)
        records = compare.read(folder / compare_command.RECORDS)
        if {record["key"] for record in records} - {spec.key for spec in specs}:
            hint = "give another folder, or the options they were made with"
            raise InputError("--out", f"{folder} has records of another run", hint)
        if quick:
            say("This takes under two minutes on two cores.")
        load = partial(from_files, data_dir=data_dir)
        how: dict[str, Any] = {"workers": workers, "device": device, "retry": False}
        records = compare_command.run_with_progress(specs, load, folder, **how)
        experiment = import_module(f"fairmp.reproduction.{name}")
        found = experiment.write(records, folder, command=rerun_command())
        compare_command.show(found, folder, as_json=as_json)

    app.command(name, help=description)(command)


_add_grid_command(
    "table1", "Compare graph neural networks and FMP without any strategy (the paper's Table 1)."
)
_add_grid_command(
    "pareto", "Draw accuracy against the gap: regulariser above, adversary below, FMP in both."
)
_add_grid_command("hyperparameters", "Vary λ_f, the projection's target and λ_s, one at a time.")


@app.command("runtime")
def runtime(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: grid_options.Quick = False,
    data: grid_options.DataNames = None,
    data_dir: options.DataDir = None,
    device: grid_options.Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Time 200 epochs of every network with every strategy, relative to an MLP."""
    folder = _free_folder("runtime", out, overwrite)

    from fairmp.reproduction import grids
    from fairmp.reproduction import runtime as experiment

    graphs, _ = _graphs(data or (["embedded:1000"] if quick else None), data_dir)
    specs = grids.runtime(list(graphs), quick=quick)
    say(f"{len(specs)} runs, one at a time.")
    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(len(specs), "runs") as advance:
            records = experiment.run(specs, graphs, staging, device, advance)
        tables = experiment.write(records, staging, command=rerun_command())
    _show(records, tables, folder, as_json)


@app.command("statistics")
def statistics(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the embedded network and the smaller files.")
    ] = False,
    data: grid_options.DataNames = None,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Count nodes, edges and homophily of each data set, next to what the paper prints."""
    folder = _free_folder("statistics", out, overwrite)

    from fairmp.datasets.by_name import present
    from fairmp.reproduction import statistics as experiment

    names, absent = present(data or (experiment.QUICK if quick else None), data_dir)
    say("This takes at most a minute.")
    found: dict[str, Statistics] = {}
    with bar(len(names), "data sets") as advance:
        for name in names:
            try:
                found[name] = experiment.measure(name, data_dir)
            except InputError as error:
                absent[name] = " ".join(str(error).split())
            advance(name)
    _check_some(found, absent)
    with outputs.results(folder, overwrite=overwrite) as staging:
        table = experiment.write(found, absent, staging, command=rerun_command())
    _show({key: row.as_dict() for key, row in found.items()}, [table], folder, as_json)


@app.command("topology")
def topology(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: grid_options.Quick = False,
    data: grid_options.DataNames = None,
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of samples and layouts.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Draw each data set's graph, with the edges between groups in red."""
    folder = _free_folder("topology", out, overwrite)

    from fairmp.reproduction import topology as experiment

    graphs, absent = _graphs(data or (["embedded:1000"] if quick else None), data_dir)
    say(f"This takes about {duration(15.0 * len(graphs))}, on one core.")
    with outputs.results(folder, overwrite=overwrite) as staging:
        command = rerun_command()
        with bar(len(graphs), "pictures") as advance:
            paths = experiment.write(graphs, absent, staging, command, seed, advance)
    _show([str(folder / path.name) for path in paths], [], folder, as_json)


@app.command("synthetic")
def synthetic(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller run with the same structure, in a minute.")
    ] = False,
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the graphs.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Bias under message passing on synthetic graphs, measured against the theory.

    Data sets whose files are found are placed on the phase diagram.
    """
    folder = _free_folder("synthetic", out, overwrite)

    from fairmp.datasets.by_name import available
    from fairmp.reproduction import synthetic as experiment

    say(f"This takes about {'a minute' if quick else '15 minutes'} on two cores.")
    graphs, absent = available(None, data_dir)
    count = sum(len(settings) for _, settings in experiment.designs(quick).values())
    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(count, "settings") as advance:
            summary = experiment.run(staging, quick, seed, graphs.values(), advance)
        experiment.write(summary, staging, command=rerun_command())
    if not as_json:
        typer.echo(experiment.witness_text(summary))
        if absent:
            typer.echo(f"Not placed, their files were not found: {', '.join(absent)}.")
    _show(summary, [experiment.table(summary)], folder, as_json)


@app.command("unknown")
def unknown(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: grid_options.Quick = False,
    data: grid_options.DataNames = None,
    data_dir: options.DataDir = None,
    splits: grid_options.Splits = None,
    workers: grid_options.Workers = None,
    as_json: options.AsJson = False,
) -> None:
    """Hide the groups of all but 1 to 100 % of the nodes, and correct with and without estimates.

    By default on the embedded network, Pokec province and Bail.
    """
    folder = _free_folder("unknown", out, overwrite)

    from fairmp.parallel import default_workers
    from fairmp.reproduction import unknown as experiment

    default = ["embedded:3000"] if quick else list(experiment.DATA)
    graphs, absent = _graphs(data or default, data_dir)
    setting = experiment.QUICK if quick else experiment.Setting()
    setting = replace(setting, splits=splits or setting.splits)
    time = "under two minutes" if quick else "minutes, about ten for Pokec"
    say(f"This takes {time}, on two cores.")
    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(len(graphs) * setting.splits, "splits") as advance:
            records = experiment.run(graphs, setting, workers or default_workers(), advance)
        tables = experiment.write(records, staging, command=rerun_command(), absent=absent)
    _show(records, tables, folder, as_json)


def _free_folder(name: str, out: Path | None, overwrite: bool) -> Path:
    folder = outputs.free_name(f"fairmp-{name}") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)
    return folder


def _graphs(
    names: list[str] | None, data_dir: Path | None
) -> tuple[dict[str, Data], dict[str, str]]:
    """Load the graphs whose files are found; report the others, and refuse to run on none."""
    from fairmp.datasets.by_name import available

    graphs, absent = available(names, data_dir)
    _check_some(graphs, absent)
    return graphs, absent


def _check_some(graphs: object, absent: dict[str, str]) -> None:
    for name, why in absent.items():
        say(f"Left out, {name}: {why}.")
    if not graphs:
        hint = "name their folder with --data-dir or FAIRMP_DATA, or use --data embedded"
        raise InputError("--data", "no data set's files were found", hint)


def _show(found: object, tables: Sequence[Table], folder: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_tables(tables, folder)
