"""``fairmp compare``."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.options import network, say
from fairmp.cli.train import check_used
from fairmp.errors import InputError
from fairmp.progress import bar

if TYPE_CHECKING:
    from fairmp.comparison.grid import RunSpec, Setting
    from fairmp.comparison.page import Comparison
    from fairmp.report.formats import Table

_grid = partial(typer.Option, rich_help_panel="Grid")
RECORDS = "records.jsonl"
FORECAST_RUNS = 5
MAX_COLUMNS = 3


def command(
    context: typer.Context,
    tables: options.Tables,
    out: Annotated[
        Path, typer.Option(help="Folder for the results; one with records is continued.")
    ] = Path("fairmp-compare"),
    data: options.DataNames = None,
    data_dir: options.DataDir = None,
    protocol: options.Protocol = None,
    backbones: Annotated[
        str,
        _grid(
            help="all, or some of mlp, gcn, gat, sgc, appnp, ppr (plain), fmp, auto; with commas."
        ),
    ] = "all",
    strategies: Annotated[
        str,
        _grid(
            help="all, or some of vanilla, regulariser, adversary, thresholds-val, "
            "thresholds-batch, per-node; commas between."
        ),
    ] = "all",
    strengths: Annotated[
        str, _grid(help="h of regulariser and adversary: default (5), all, or 1,2,5.")
    ] = "default",
    targets: Annotated[
        str | None,
        _grid(
            help="Target gap (λ_f of papc and paper) of fmp and thresholds: default (0), all, or "
            "0,0.02; as --strengths, if that is a word."
        ),
    ] = None,
    splits: Annotated[int, _grid(min=1, help="Number of splits.")] = 10,
    seeds: Annotated[int, _grid(min=1, help="Initialisations per split.")] = 1,
    epochs: options.Epochs = 200,
    lr: Annotated[float, network("Learning rate.")] = 1e-2,
    weight_decay: Annotated[float, network("Weight decay.")] = 1e-5,
    hidden: Annotated[int, network("Hidden width.")] = 64,
    layers: options.Layers = 2,
    dropout: Annotated[float, network("Dropout.")] = 0.0,
    eval_every: options.EvalEvery = 5,
    k: Annotated[int, network("Propagation steps of ppr and fmp.", "--k")] = 5,
    lambda_s: Annotated[float, network("Smoothing of ppr and fmp.")] = 3.0,
    lambda_f: Annotated[float, network("Fairness strength of papc and paper.")] = 1.0,
    solver: Annotated[str, network("Of fmp: projection, papc or paper.")] = "projection",
    target: Annotated[float, network("Largest gap of fmp with a strategy.")] = 0.0,
    pretrain: options.Pretrain = 70,
    workers: options.Workers = None,
    device: options.Device = "cpu",
    retry: Annotated[bool, typer.Option("--retry", help="Train failed runs again.")] = False,
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare every method on every data set (by default 'embedded') over several splits.

    Each finished run is appended to records.jsonl in --out. If it is stopped or killed, the same
    command continues; with more data sets, methods or splits it adds theirs. Other shared settings
    need another folder. Tables and figures show the runs of the given options. With --nodes and
    --edges the methods are compared on your own tables.
    """
    check_used(context, solver)
    options.check_tracker(track)
    from fairmp.comparison import grid, page
    from fairmp.datasets.by_name import canonical, from_files
    from fairmp.datasets.columns import counted

    names = list(dict.fromkeys(map(canonical, options.with_protocol(data, protocol))))
    load: Any = partial(from_files, data_dir=data_dir)
    if tables.given():
        if data or protocol:
            raise InputError("--data", "goes without --nodes and --edges", "give one or the other")
        names, load = [tables.fingerprint()], tables.load_tables
    specs = grid.specs_of_options(names, context.params | {"num_layers": layers, "K": k})
    _check_setting(out, specs[0].setting)
    how = {"workers": workers, "device": device, "retry": retry}
    records = run_with_progress(specs, load, out, check_data=True, **how)
    methods = counted(len({spec.name for spec in specs}), "method")
    with outputs.results(out, overwrite=True, in_place=True) as staging:
        found = page.write(
            records,
            staging,
            title="Comparison of methods",
            summary=f"{methods} on {counted(len(names), 'data set')}, {counted(splits, 'split')}.",
            command=options.rerun_command(),
        )
    show(found, out, as_json=as_json)
    options.track(track, found.records, out)
    if not found.records:
        raise InputError(f"all {len(found.failed)} runs failed", f"{found.failed[0]['failed']}")


def check_folder(out: Path) -> None:
    """Refuse a folder that does not hold records of a comparison."""
    outputs.hold(out, overwrite=True)
    if out.is_dir() and any(out.iterdir()) and not (out / RECORDS).is_file():
        raise InputError("--out", f"{out} is not empty and has no {RECORDS}", "give another folder")


def _check_setting(out: Path, setting: Setting) -> None:
    """Refuse a folder with records of another setting, before anything is trained."""
    from fairmp.comparison import compare

    check_folder(out)
    for record in compare.read(out / RECORDS):
        before = record.get("spec", {}).get("setting", {})
        for name, value in vars(setting).items():
            if before.get(name) != value:
                given = f"{name}={before.get(name)}, this run has {name}={value}"
                hint = "give another folder, or the same setting"
                raise InputError("--out", f"{out} has records with {given}", hint)


def run_with_progress(
    specs: list[RunSpec], load: Any, out: Path, *, check_data: bool = False, **how: Any
) -> list[dict[str, Any]]:
    """Train runs into the records of a folder, with a progress bar and an estimate of the time.

    ``how`` are the ``workers``, the ``device`` and ``retry`` of :func:`fairmp.comparison.compare`.
    """
    from fairmp.comparison import compare
    from fairmp.comparison.grid import classifier
    from fairmp.parallel import default_workers

    path = out / RECORDS
    left = len(compare.missing(specs, compare.read(path), retry=how["retry"]))
    if left:
        classifier(specs[0], how["device"])
        for name in dict.fromkeys(spec.data for spec in specs) if check_data else ():
            load(name)
    how["workers"] = how["workers"] or default_workers()
    forecast = min(max(FORECAST_RUNS, 2 * how["workers"]), left - 1)
    say(f"{len(specs)} runs, {len(specs) - left} done already, {left} to go in {out}.")
    first, done = 0.0, 0
    try:
        with bar(left, "runs") as advance:

            def report(record: dict[str, Any]) -> None:
                nonlocal done, first
                done += 1
                if done == 1:  # before it, processes start and files are read
                    first = time.perf_counter()
                elif done == forecast:
                    rest = (time.perf_counter() - first) / (done - 1) * (left - done)
                    time_left = options.duration(rest)
                    say(f"About {time_left} to go, estimated from the first {done} runs.")
                advance(f"{record['data']}, {record['name']}")

            return compare.run(specs, load, path, **how, on_record=report)
    except KeyboardInterrupt:
        say(f"fairmp: stopped; {done} new runs are in {path}, the same command continues")
        sys.exit(130)


def show(found: Comparison, out: Path, *, as_json: bool) -> None:
    """Print the tables and the reasons of failures, or all of it as JSON."""
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    for reason, count in Counter(record["failed"] for record in found.failed).items():
        typer.echo(f"{count} run{'s' * (count != 1)} failed: {reason}")
    tables = [part for table in found.tables() for part in _narrow(table)]
    options.print_tables(tables, out, leave_out=("AUC", "splits"))


def _narrow(table: Table) -> list[Table]:
    """Split a table with one column per data set, so that no column is cut on a terminal."""
    from fairmp.report.formats import Table

    if "splits" in table.header or table.header[-1] == "verdict":
        return [table]
    parts, step = [], 2 if table.header[-1].endswith("ours") else MAX_COLUMNS
    for first in range(1, len(table.header), step):
        kept = [0, *range(first, min(first + step, len(table.header)))]
        bold = frozenset((row, kept.index(column)) for row, column in table.bold if column in kept)
        header, *rows = ([row[column] for column in kept] for row in (table.header, *table.rows))
        parts.append(Table(table.title, header, rows, bold))
    return parts
