"""``fairmp compare``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.train import check_used
from fairmp.errors import InputError
from fairmp.progress import bar

if TYPE_CHECKING:
    from fairmp.comparison.grid import RunSpec, Setting
    from fairmp.comparison.page import Comparison
    from fairmp.report.formats import Table

_GRID, _NET = "The grid", "What all cells share"
RECORDS = "records.jsonl"
_FEW = 5


def command(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder for the results; one with records is continued.")
    ] = Path("fairmp-compare"),
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data set ('fairmp data list' names them), 'embedded', or 'embedded:3000' for "
            "3,000 nodes; give several. By default 'embedded'.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    backbones: Annotated[
        str,
        typer.Option(
            help="all, or of mlp,gcn,gat,sgc,appnp,ppr,fmp; ppr is fmp without its correction.",
            rich_help_panel=_GRID,
        ),
    ] = "all",
    strategies: Annotated[
        str,
        typer.Option(
            help="all, or of vanilla,regulariser,adversary,thresholds-val,thresholds-batch.",
            rich_help_panel=_GRID,
        ),
    ] = "all",
    strengths: Annotated[
        str,
        typer.Option(
            help="h of regulariser and adversary: default (5), all, or 1,2,5.",
            rich_help_panel=_GRID,
        ),
    ] = "default",
    targets: Annotated[
        str | None,
        typer.Option(
            help="Gap accepted by fmp and thresholds: default (0), all, or 0,0.02; λ_f of fmp "
            "with papc or paper. By default as --strengths, if that is a word.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Splits.", rich_help_panel=_GRID)] = 10,
    seeds: Annotated[
        int, typer.Option(min=1, help="Initialisations a split.", rich_help_panel=_GRID)
    ] = 1,
    epochs: Annotated[int, typer.Option(help="Epochs.", rich_help_panel=_NET)] = 200,
    lr: Annotated[float, typer.Option(help="Learning rate.", rich_help_panel=_NET)] = 1e-2,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.", rich_help_panel=_NET)] = 1e-5,
    hidden: Annotated[int, typer.Option(help="Hidden width.", rich_help_panel=_NET)] = 64,
    layers: Annotated[int, typer.Option(help="Layers.", rich_help_panel=_NET)] = 2,
    dropout: Annotated[float, typer.Option(help="Dropout.", rich_help_panel=_NET)] = 0.0,
    eval_every: Annotated[
        int, typer.Option(help="Look at validation every so many epochs.", rich_help_panel=_NET)
    ] = 5,
    k: Annotated[int, typer.Option("--k", help="Steps of ppr and fmp.", rich_help_panel=_NET)] = 5,
    lambda_s: Annotated[
        float, typer.Option(help="Smoothing of ppr and fmp.", rich_help_panel=_NET)
    ] = 3.0,
    lambda_f: Annotated[
        float, typer.Option(help="Pull of fmp with papc or paper.", rich_help_panel=_NET)
    ] = 1.0,
    solver: Annotated[
        str, typer.Option(help="Of fmp: projection, papc, paper.", rich_help_panel=_NET)
    ] = "projection",
    target: Annotated[
        float,
        typer.Option(
            help="Gap fmp accepts beside a strategy; with more than two groups, that of each from "
            "the whole.",
            rich_help_panel=_NET,
        ),
    ] = 0.0,
    pretrain: Annotated[
        int, typer.Option(help="Epochs before an adversary joins.", rich_help_panel=_NET)
    ] = 70,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core, 8 at most.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    retry: Annotated[bool, typer.Option("--retry", help="Train failed cells again.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Train every method on every data set over many splits, and compare them.

    Unlike other commands' results, --out is written to as cells are done: records.jsonl gets a
    line a cell. Killed or stopped, the same command goes on where it was; with more data sets,
    methods or splits it adds theirs. Another shared setting needs another folder. Tables and
    figures show the cells that are asked for.
    """
    check_used(context, solver)
    from functools import partial

    from fairmp.comparison import grid
    from fairmp.comparison import page as compare_page
    from fairmp.datasets.by_name import canonical, from_files
    from fairmp.datasets.edges import counted

    setting = grid.Setting(
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        hidden=hidden,
        num_layers=layers,
        dropout=dropout,
        eval_every=eval_every,
        K=k,
        lambda_s=lambda_s,
        lambda_f=lambda_f,
        solver=solver,
        target=target,
        pretrain=pretrain,
    )
    names = data or ["embedded"]
    cells = grid.cells(
        [canonical(name) for name in names],
        grid.listed(backbones, "--backbones", grid.BACKBONES),
        grid.listed(strategies, "--strategies", grid.STRATEGIES),
        splits=splits,
        seeds=seeds,
        strengths=grid.numbers(strengths, "--strengths"),
        targets=None if targets is None else grid.numbers(targets, "--targets"),
        setting=setting,
    )
    check_folder(out, setting)
    records = run_with_progress(
        cells,
        partial(from_files, data_dir=data_dir),
        out,
        workers=workers,
        device=device,
        retry=retry,
        check=True,
    )
    again = "fairmp " + " ".join(sys.argv[1:]) if len(sys.argv) > 1 else "fairmp compare"
    methods = len({cell.name for cell in cells})
    found = compare_page.write(
        records,
        out,
        title="Methods compared",
        summary=f"{counted(methods, 'method')} on {counted(len(set(names)), 'data set')}, "
        f"{counted(splits, 'split')}.",
        command=again,
    )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        show(found, out)
    if not found.records:
        raise InputError(f"all {len(found.failed)} cells failed", f"{found.failed[0]['failed']}")


def check_place(out: Path) -> None:
    """Refuse a place that can not be a folder of records."""
    outputs.check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not (out / RECORDS).is_file():
        raise InputError("--out", f"{out} is not empty and has no {RECORDS}", "give another folder")


def check_folder(out: Path, setting: Setting) -> None:
    """Refuse a folder whose records are not of the same setting, before anything is trained."""
    from dataclasses import asdict

    from fairmp.comparison import compare

    check_place(out)
    for record in compare.read(out / RECORDS):
        was = record.get("spec", {}).get("setting", {})
        for name, value in asdict(setting).items():
            if was.get(name) != value:
                raise InputError(
                    "--out",
                    f"{out} has records with {name}={was.get(name)}, this run has {name}={value}",
                    "give another folder, or the same setting",
                )


def run_with_progress(
    cells: list[RunSpec],
    load: Any,
    out: Path,
    *,
    workers: int | None,
    device: str,
    retry: bool = False,
    check: bool = False,
) -> list[dict[str, Any]]:
    """Run cells into a folder's records; say how many there are, and how long it may take."""
    from fairmp.comparison import compare
    from fairmp.comparison.grid import classifier

    path = out / RECORDS
    known = {record["key"]: record for record in compare.read(path)}
    left = sum(cell.key not in known or (retry and "failed" in known[cell.key]) for cell in cells)
    if left:
        classifier(cells[0], device)
        if check:
            for name in dict.fromkeys(cell.data for cell in cells):
                load(name)
    workers = workers or default_workers()
    _say(f"{len(cells)} cells, {len(cells) - left} done already, {left} to go in {out}.")
    first, done = 0.0, 0
    try:
        with bar(left, "cells") as advance:

            def tell(record: dict[str, Any]) -> None:
                nonlocal done, first
                done += 1
                if done == 1:  # what came before is starting processes and reading files
                    first = time.perf_counter()
                if done > 1 and done == min(max(_FEW, 2 * workers), left - 1):
                    rest = (time.perf_counter() - first) / (done - 1) * (left - done)
                    _say(f"About {length(rest)} to go, by the first {done} cells.")
                advance(f"{record['data']}, {record['name']}")

            records = compare.run(
                cells, load, path, workers=workers, device=device, retry=retry, on_record=tell
            )
    except KeyboardInterrupt:
        _say(f"fairmp: stopped; {done} cells of this run are in {path}, the same command goes on")
        sys.exit(130)
    return records


def default_workers() -> int:
    """One process a core, 8 at most."""
    return max(1, min(os.cpu_count() or 1, 8))


def show(found: Comparison, out: Path) -> None:
    """Print the tables."""
    from rich.console import Console

    from fairmp.report.formats import rich_table

    console = Console(highlight=False)
    for table in found.tables():
        for part in _narrow(table) if "splits" not in table.header else [table]:
            console.print(rich_table(part, leave_out=("AUC", "splits")))
    reasons = dict.fromkeys(record["failed"] for record in found.failed)
    for reason in reasons:
        count = sum(record["failed"] == reason for record in found.failed)
        console.print(f"{count} cell{'s' * (count != 1)} failed: {reason}", soft_wrap=True)
    console.print(f"Open {out / 'report.html'}.")


def _narrow(table: Table, columns: int = 3) -> list[Table]:
    """A wide table as several, so that no column is cut on a terminal."""
    from fairmp.report.formats import Table

    parts = []
    for first in range(1, len(table.header), columns):
        kept = [0, *range(first, min(first + columns, len(table.header)))]
        bold = {(row, kept.index(column)) for row, column in table.bold if column in kept}
        rows = [[row[column] for column in kept] for row in table.rows]
        header = [table.header[column] for column in kept]
        parts.append(Table(table.title, header, rows, frozenset(bold)))
    return parts


def length(seconds: float) -> str:
    """Say a time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
