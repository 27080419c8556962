"""``fairmp compare``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import network, option, panel, smoothing
from fairmp.cli.output import say
from fairmp.cli.spelling import rerun_command
from fairmp.cli.train import check_used
from fairmp.errors import InputError, plural
from fairmp.progress import bar

if TYPE_CHECKING:
    from fairmp.comparison.grid import RunSpec, Setting
    from fairmp.comparison.page import Comparison
    from fairmp.report.formats import Table

_grid = panel("Grid")
RECORDS = "records.jsonl"
FORECAST_RUNS = 5
MAX_COLUMNS = 3


def command(
    context: typer.Context,
    tables: options.Tables,
    training: options.Training,
    out: Path = option("Folder; one with records is continued.", Path("fairmp-compare")),
    data: options.DataNames = None,
    data_dir: options.DataDir = None,
    protocol: options.Protocol = None,
    backbones: str = _grid("all, or mlp, gcn, gat, sgc, appnp, ppr (plain), fmp, auto.", "all"),
    strategies: str = _grid(
        "all, or vanilla, regulariser, adversary, thresholds-val, thresholds-batch, per-node.",
        "all",
    ),
    strengths: str = _grid("h of regulariser, adversary: default (5), all, or 1,2,5.", "default"),
    targets: str | None = _grid(
        "Targets (λ_f) of fmp and thresholds: default (0), all, 0,0.02; or as --strengths."
    ),
    splits: int = _grid("Number of splits.", 10, min=1),
    seeds: int = _grid("Initialisations per split.", 1, min=1),
    k: int = network("Propagation steps of ppr and fmp.", 5),
    lambda_s: str | None = network("Smoothing: a number, or 'learned' (the default)."),
    lambda_f: float = network("Fairness strength of papc and paper.", 1.0),
    solver: str = network("Of fmp: projection, papc or paper.", "projection"),
    target: float = network("Largest gap of fmp with a strategy.", 0.0),
    pretrain: options.Pretrain = 70,
    workers: options.Workers = None,
    retry: bool = option("Train failed runs again.", False, "--retry"),
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare every method on every data set (by default 'embedded') over several splits.

    The settings are those of 'fairmp train' unless others are given, and what it makes by default
    is the method 'auto'.

    Each finished run is appended to records.jsonl in --out. If it is stopped or killed, the same
    command continues; with more data sets, methods or splits it adds theirs. Other shared settings
    need another folder. Tables and figures show the runs of the given options. With --nodes and
    --edges the methods are compared on your own tables.
    """
    check_used(context, solver)
    given = training.settle(context) | {"K": k}
    given["lambda_s"] = smoothing(given["lambda_s"])
    from fairmp.comparison import grid, page
    from fairmp.datasets.by_name import canonical, from_files

    names = list(dict.fromkeys(map(canonical, options.with_protocol(data, protocol))))
    load: Any = partial(from_files, data_dir=data_dir)
    if tables.has_tables():
        if data or protocol:
            raise InputError("--data", "goes without --nodes and --edges", "give one or the other")
        names, load = [tables.fingerprint()], tables.load_tables
    if training.paper and backbones == "all":  # its network is not chosen
        given["backbones"] = ",".join(name for name in grid.BACKBONES if name != "auto")
    specs = grid.specs_of_options(names, given)
    _check_setting(out, specs[0].setting)
    how = {"workers": workers, "device": training.device, "retry": retry}
    records = run_with_progress(specs, load, out, check_data=True, **how)
    methods = plural(len({spec.name for spec in specs}), "method")
    with outputs.results(out, overwrite=True, in_place=True) as staging:
        found = page.write(
            records,
            staging,
            title="Comparison of methods",
            summary=f"{methods} on {plural(len(names), 'data set')}, {plural(splits, 'split')}.",
            command=rerun_command(),
        )
    show(found, out, as_json=as_json)
    output.track(track, found.records, out)
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
    from fairmp.comparison.grid import ADDED

    check_folder(out)
    for record in compare.read(out / RECORDS):
        before = ADDED | record.get("spec", {}).get("setting", {})
        for name, value in vars(setting).items():
            if before.get(name) != value:
                given = f"{name}={before.get(name)}, this run has {name}={value}"
                hint = "give another folder, or the same setting"
                raise InputError("--out", f"{out} has records with {given}", hint)


def run_with_progress(
    specs: list[RunSpec], load: Any, out: Path, *, check_data: bool = False, **how: Any
) -> list[dict[str, Any]]:
    """Train runs as ``compare.run`` does, with a progress bar and an estimate of the time."""
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
    times: list[float] = []
    try:
        with bar(left, "runs") as advance:

            def report(record: dict[str, Any]) -> None:
                times.append(time.perf_counter())
                done = len(times)
                if done == forecast > 1:  # before the first, processes start and files are read
                    rest = (times[-1] - times[0]) / (done - 1) * (left - done)
                    left_s = timedelta(seconds=round(rest))
                    say(f"About {left_s} to go (h:mm:ss), estimated from the first {done} runs.")
                advance(f"{record['data']}, {record['name']}")

            return compare.run(specs, load, path, **how, on_record=report)
    except KeyboardInterrupt:
        say(f"fairmp: stopped; {len(times)} new runs are in {path}, the same command continues")
        sys.exit(130)


def show(found: Comparison, out: Path, *, as_json: bool, below: Sequence[Any] = ()) -> None:
    """Print the tables and the reasons of failures, or all of it as JSON.

    ``below`` is printed after the tables.
    """
    from fairmp.report import over

    failed = Counter(record["failed"] for record in found.failed).items()
    notes = [f"{plural(count, 'run')} failed: {reason}" for reason, count in failed]
    splits = max((line.splits for lines in found.lines.values() for line in lines), default=1)
    notes.append(f"Test nodes, {over(splits)}.")
    tables = found.tables()
    methods, hypervolumes = tables[: len(found.lines)], tables[len(found.lines) :]
    shown = [*methods, *(part for table in hypervolumes for part in narrow(table))]
    parts = output.tables(shown, leave_out=("AUC", "splits"))
    output.report(as_json, found.to_dict(), *notes, *parts, *below, output.open_page(out))


def narrow(table: Table, columns: int = MAX_COLUMNS) -> list[Table]:
    """Split a table by columns, so that none is cut on a terminal; each part has the first."""
    titles = table.header[1:]
    parts = [titles[first : first + columns] for first in range(0, len(titles), columns)]
    return [table.without([title for title in titles if title not in part]) for part in parts]
