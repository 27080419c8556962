"""``fairmp reproduce``."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options, unknown
from fairmp.errors import InputError
from fairmp.progress import bar

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.datasets.statistics import Statistics
    from fairmp.report.formats import Table

app = typer.Typer(
    help="Run the paper's experiments again, one by name.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_STEPS = 4

_Quick = Annotated[
    bool,
    typer.Option("--quick", help="A small run on the embedded network, in under two minutes."),
]
_Data = Annotated[
    list[str] | None,
    typer.Option(help="A data set; give several. By default all whose files are there."),
]
_Splits = Annotated[int | None, typer.Option(min=1, help="Splits; by default the experiment's.")]
_Workers = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")]
_Device = Annotated[str, typer.Option(help="cpu or cuda.")]


app.command("unknown")(unknown.command)


@app.callback()
def _group() -> None:
    """Run the paper's experiments again, one by name."""


@app.command("synthetic")
def synthetic(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller run that shows its shape, in a minute.")
    ] = False,
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the graphs.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Bias under message passing on graphs whose truth is known, against the theory.

    Data sets whose files are there are placed on the phase diagram.
    """
    folder = outputs.free_name("fairmp-synthetic") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.reproduction import synthetic as experiment
    from fairmp.reproduction import synthetic_page

    length = "about a minute" if quick else "about 15 minutes"
    print(f"This takes {length} on two cores.", file=sys.stderr)
    found, absent = _graphs(data_dir)
    graphs = list(found.values())
    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(100 * _STEPS, "experiments") as advance:
            seen = {"": 0}

            def tell(name: str, done: int, total: int) -> None:
                reached = 100 * done // total
                for _ in range(reached - seen.setdefault(name, 0)):
                    advance(name)
                seen[name] = reached

            summary = experiment.run(staging, quick=quick, seed=seed, graphs=graphs, progress=tell)
        again = f"fairmp reproduce synthetic --seed {seed}" + " --quick" * quick
        text = synthetic_page.page(summary, staging, again)
        (staging / "report.html").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="How often each form says what is measured", title_justify="left")
    header, rows = synthetic_page.agreement(summary)
    for column in header:
        table.add_column(column, justify="left" if column == "form" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(synthetic_page.witness(summary))
    if absent:
        console.print(f"Not placed, their files are not there: {', '.join(absent)}.")
    console.print(f"Open {folder / 'report.html'}.")


@app.command("table1")
def table1(
    out: options.Out = None,
    quick: _Quick = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    splits: _Splits = None,
    workers: _Workers = None,
    device: _Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Compare graph neural networks and FMP, without any other remedy (the paper's Table 1)."""
    from fairmp.reproduction import table1 as experiment

    _grid_of("table1", experiment, out, quick, data, data_dir, splits, workers, device, as_json)


@app.command("pareto")
def pareto(
    out: options.Out = None,
    quick: _Quick = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    splits: _Splits = None,
    workers: _Workers = None,
    device: _Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Draw accuracy against the gap: regulariser above, adversary below, FMP in both."""
    from fairmp.reproduction import pareto as experiment

    _grid_of("pareto", experiment, out, quick, data, data_dir, splits, workers, device, as_json)


@app.command("hyperparameters")
def hyperparameters(
    out: options.Out = None,
    quick: _Quick = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    splits: _Splits = None,
    workers: _Workers = None,
    device: _Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Move λ_f, the projection's target and λ_s, each on its own."""
    from fairmp.reproduction import hyperparameters as experiment

    _grid_of(
        "hyperparameters",
        experiment,
        out,
        quick,
        data,
        data_dir,
        splits,
        workers,
        device,
        as_json,
    )


@app.command("runtime")
def runtime(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: _Quick = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    device: _Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Time 200 epochs of every network with every strategy, against an MLP's."""
    folder = outputs.free_name("fairmp-runtime") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.comparison import forecast
    from fairmp.reproduction import runtime as experiment

    graphs, absent = _graphs(data_dir, data or (["embedded:1000"] if quick else None))
    _check_some(graphs, absent)
    cells = experiment.grid(list(graphs), quick=quick)
    _say_length(forecast.seconds(cells, graphs), "one training at a time")
    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(len(cells), "cells") as advance:
            records = experiment.run(
                cells,
                graphs.__getitem__,
                staging / "records.jsonl",
                device=device,
                on_record=lambda record: advance(record["name"]),
            )
        tables = experiment.write(records, staging, command=_again())
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
        return
    _print_tables(tables, folder)


@app.command("statistics")
def statistics(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The embedded network and the smaller files.")
    ] = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Count each data set's nodes, edges and homophily, beside what the paper printed."""
    folder = outputs.free_name("fairmp-statistics") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.datasets.by_name import present
    from fairmp.reproduction import data_table

    names, absent = present(data or (data_table.QUICK if quick else None), data_dir)
    print("This takes a minute at most.", file=sys.stderr)
    found: dict[str, Statistics] = {}
    with bar(len(names), "data sets") as advance:
        for name in names:
            try:
                found[name] = data_table.measure(name, data_dir)
            except InputError as error:
                absent[name] = " ".join(str(error).split())
            advance(name)
    _check_some(found, absent)
    with outputs.results(folder, overwrite=overwrite) as staging:
        table = data_table.write(found, absent, staging, command=_again())
    if as_json:
        typer.echo(json.dumps({key: row.as_dict() for key, row in found.items()}))
        return
    _print_tables([table], folder)


@app.command("topology")
def topology(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: _Quick = False,
    data: _Data = None,
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of samples and layouts.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Draw who is tied to whom in each data set, and which ties cross between groups."""
    folder = outputs.free_name("fairmp-topology") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.reproduction import pictures

    graphs, absent = _graphs(data_dir, data or (["embedded:1000"] if quick else None))
    _check_some(graphs, absent)
    _say_length(15.0 * len(graphs), "on one core")
    with (
        outputs.results(folder, overwrite=overwrite) as staging,
        bar(len(graphs), "pictures") as advance,
    ):
        paths = pictures.write(
            graphs, absent, staging, command=_again(), seed=seed, progress=advance
        )
    names = [str(folder / path.name) for path in paths]
    typer.echo(json.dumps(names) if as_json else f"Open {folder / 'report.html'}.")


def _grid_of(
    name: str,
    experiment: Any,
    out: Path | None,
    quick: bool,
    data: list[str] | None,
    data_dir: Path | None,
    splits: int | None,
    workers: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Run an experiment that is a grid; like ``fairmp compare`` it goes on where it was."""
    folder = out or Path(f"fairmp-{name}")

    from fairmp.cli import compare as command
    from fairmp.comparison import compare, forecast
    from fairmp.datasets.by_name import from_files

    command.check_place(folder)
    graphs, absent = _graphs(data_dir, data or (["embedded:2000"] if quick else None))
    _check_some(graphs, absent)
    cells = experiment.grid(list(graphs), quick=quick, splits=splits)
    wanted = {cell.key for cell in cells}
    done = {record["key"] for record in compare.read(folder / command.RECORDS)}
    if done - wanted:
        raise InputError(
            "--out",
            f"{folder} has records of another run",
            "give another folder, or the options they were made with",
        )
    if not quick and wanted - done and device == "cpu":
        left = [cell for cell in cells if cell.key not in done]
        count = workers or command.default_workers()
        _say_length(forecast.seconds(left, graphs, workers=count), f"in {count} processes")
    elif quick:
        print("This takes under two minutes on two cores.", file=sys.stderr)
    load = partial(from_files, data_dir=data_dir)
    records = command.run_with_progress(cells, load, folder, workers=workers, device=device)
    found = experiment.write(records, folder, command=_again())
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        command.show(found, folder)


def _graphs(
    data_dir: Path | None, names: list[str] | None = None
) -> tuple[dict[str, Data], dict[str, str]]:
    """The graphs whose files are there, and why the others are left out."""
    from fairmp.datasets.by_name import available

    return available(names, data_dir)


def _check_some(graphs: object, absent: dict[str, str]) -> None:
    _name_absent(absent)
    if not graphs:
        raise InputError(
            "--data",
            "no data set's files are there",
            "name their folder with --data-dir or FAIRMP_DATA, or use --data embedded",
        )


def _name_absent(absent: dict[str, str]) -> None:
    for name, why in absent.items():
        print(f"Left out, {name}: {why}.", file=sys.stderr)


def _say_length(seconds: float, how: str) -> None:
    from fairmp.cli.compare import length

    print(f"This takes about {length(seconds)}, {how}.", file=sys.stderr, flush=True)


def _print_tables(tables: list[Table], folder: Path) -> None:
    from rich.console import Console

    from fairmp.report.formats import rich_table

    console = Console(highlight=False)
    for table in tables:
        console.print(rich_table(table))
    console.print(f"Open {folder / 'report.html'}.")


def _again() -> str:
    return " ".join(["fairmp", *sys.argv[1:]])
