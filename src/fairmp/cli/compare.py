"""``fairmp compare``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import network, option, panel, smoothing
from fairmp.cli.output import rerun_command, say, typed_here
from fairmp.cli.train import check_used
from fairmp.display import bar
from fairmp.errors import InputError, plural
from fairmp.training import defaults

if TYPE_CHECKING:
    from fairmp.comparison import Record
    from fairmp.comparison.compare import Load
    from fairmp.comparison.grid import RunSpec
    from fairmp.comparison.summary import Comparison
    from fairmp.report.formats import Table

_grid = panel("Grid")
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
    methods: str = _grid("all, or mlp, gcn, gat, sgc, appnp, ppr (plain), fmp, auto.", "all"),
    method: list[str] = _grid(
        "A class of yours, package.module:Name, with fit(data) and predict_proba(data); repeat for "
        "several. --methods adds ours.",
        [],
    ),
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
    k: int = network("Propagation steps of ppr and fmp.", defaults.K),
    lambda_s: str | None = network("Smoothing: a number, or 'learned' (the default)."),
    lambda_f: float = network("Fairness strength of papc, paper and released.", defaults.LAMBDA_F),
    solver: str = network("Solver of fmp: projection, papc, paper or released.", "projection"),
    target: float = network("Largest gap of fmp with a strategy.", 0.0),
    pretrain: options.Pretrain = defaults.PRETRAIN,
    workers: options.Workers = None,
    retry: bool = option("Train failed runs again.", False, "--retry"),
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare every method on every data set (by default 'embedded') over several splits.

    Settings default to those of 'fairmp train'. The method 'auto' is the model that 'fairmp train'
    builds.

    Each finished run is appended to records.jsonl in --out. If the command is stopped or killed,
    run it again to continue; more data sets, methods or splits add their runs. Different shared
    settings need a different folder. Tables and figures show the runs of the given options. With
    --nodes and --edges the methods are compared on your own tables.
    """
    check_used(context, solver)
    settings = training.settle(context) | {"K": k}
    settings["lambda_s"] = smoothing(settings["lambda_s"])
    from fairmp.comparison import compare, grid, page

    names, load = _data(tables, data, data_dir, protocol)
    chosen = list(method)
    if not method or typed_here(context, "methods"):
        chosen += grid.parse_names("methods", methods, grid.METHODS)
    if training.paper and "auto" in chosen and methods == "all":  # its network is not chosen
        chosen.remove("auto")
    shared = {field.name for field in fields(grid.Setting)} & settings.keys()
    specs = grid.run_specs(
        names,
        chosen,
        grid.parse_names("strategies", strategies, grid.STRATEGIES),
        splits=splits,
        seeds=seeds,
        strengths=grid.parse_strengths("strengths", strengths),
        targets=None if targets is None else grid.parse_strengths("targets", targets),
        setting=grid.Setting(**{name: settings[name] for name in shared}),
    )
    outputs.hold(out, overwrite=True)
    compare.check_folder(out, specs[0].setting)
    if compare.missing(specs, compare.read(out / compare.RECORDS), retry=retry):
        # Wrong input is reported before anything is trained.
        ours = [spec for spec in specs if spec.method in grid.METHODS]
        for spec in ours[:1]:
            grid.classifier(spec, training.device)
        for name in names:
            load(name)
    records = run_with_progress(
        specs, load, out, workers=workers, device=training.device, retry=retry
    )
    count = plural(len({spec.name for spec in specs}), "method")
    with outputs.results(out, overwrite=True, in_place=True) as staging:
        comparison = page.write(
            records,
            staging,
            title="Comparison of methods",
            summary=f"{count} on {plural(len(names), 'data set')}, {plural(splits, 'split')}.",
            command=rerun_command(),
        )
    show(comparison, out, as_json=as_json)
    output.track(track, comparison.records, out)
    if not comparison.records:
        failed = comparison.failed
        raise InputError(f"all {len(failed)} runs failed", f"{failed[0]['failed']}")


def _data(
    tables: options.Tables, data: list[str] | None, data_dir: Path | None, protocol: str | None
) -> tuple[list[str], Load]:
    """The names of the graphs, and the function that loads one."""
    from fairmp.datasets.by_name import canonical, from_files

    if not tables.has_tables():
        names = map(canonical, options.with_protocol(data, protocol))
        return list(dict.fromkeys(names)), partial(from_files, data_dir=data_dir)
    if data or protocol:
        raise InputError(
            "--data", "cannot be combined with --nodes and --edges", "give one or the other"
        )
    return [tables.fingerprint()], tables.load_tables


def run_with_progress(
    specs: Sequence[RunSpec],
    load: Load,
    folder: Path,
    *,
    workers: int | None,
    device: str,
    retry: bool,
    stamp: Mapping[str, str] | None = None,
) -> list[Record]:
    """Train runs as ``compare.run`` does, with a progress bar and an estimate of the time."""
    from fairmp.comparison import compare
    from fairmp.parallel import default_workers

    path, workers = folder / compare.RECORDS, workers or default_workers()
    left = len(compare.missing(specs, compare.read(path), retry=retry, stamp=stamp))
    say(f"{len(specs)} runs, {len(specs) - left} done already, {left} to go in {folder}.")
    with bar(left, "runs") as advance:
        progress = _Progress(left, min(max(FORECAST_RUNS, 2 * workers), left - 1), advance)
        try:
            return compare.run(
                specs,
                load,
                path,
                workers=workers,
                device=device,
                retry=retry,
                stamp=stamp,
                on_record=progress.add,
            )
        except KeyboardInterrupt:
            new = len(progress.times)
            say(f"fairmp: stopped; {new} new runs are in {path}, the same command continues")
            sys.exit(130)


class _Progress:
    """Advances a bar, and says once how long the rest will take."""

    def __init__(self, total: int, forecast_at: int, advance: Callable[[str], None]) -> None:
        self.total, self.forecast_at, self.advance = total, forecast_at, advance
        self.times: list[float] = []

    def add(self, record: Record) -> None:
        self.times.append(time.perf_counter())
        done = len(self.times)
        if done == self.forecast_at > 1:  # before the first, processes start and files are read
            per_run = (self.times[-1] - self.times[0]) / (done - 1)
            remaining = timedelta(seconds=round(per_run * (self.total - done)))
            say(f"About {remaining} to go (h:mm:ss), estimated from the first {done} runs.")
        self.advance(f"{record['data']}, {record['name']}")


def show(comparison: Comparison, out: Path, *, as_json: bool, below: Sequence[Any] = ()) -> None:
    """Print the tables and the reasons of failures, or all of it as JSON.

    ``below`` is printed after the tables.
    """
    from fairmp.report import over
    from fairmp.report.formats import constant_note

    failed = Counter(record["failed"] for record in comparison.failed).items()
    notes = [f"{plural(count, 'run')} failed: {reason}" for reason, count in failed]
    notes.append(f"Test nodes, {over(comparison.num_splits)}.")
    lines = [line for lines in comparison.lines.values() for line in lines]
    notes += filter(None, [constant_note(lines)])
    others = (*comparison.hypervolume_tables(), *comparison.further_tables)
    tables = [*comparison.method_tables(), *(part for table in others for part in narrow(table))]
    parts = output.tables(tables, leave_out=("AUC", "splits"))
    output.report(as_json, comparison.to_dict(), *notes, *parts, *below, output.open_page(out))


def narrow(table: Table, columns: int = MAX_COLUMNS) -> list[Table]:
    """Split a table by columns, so that none is cut on a terminal; each part has the first."""
    titles = table.header[1:]
    parts = [titles[first : first + columns] for first in range(0, len(titles), columns)]
    return [table.without([title for title in titles if title not in part]) for part in parts]
