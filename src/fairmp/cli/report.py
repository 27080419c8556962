"""``fairmp report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fairmp import outputs
from fairmp.errors import InputError


def command(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that train, audit, debias, tune, compare or demo wrote results to."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; by default report.html, in the folder if there is one."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the page if it is there.")
    ] = False,
) -> None:
    """Make a report from results that were written earlier, one page for all of them.

    The page holds all it shows, asks no network for anything, and prints well.
    """
    inside = len(results) == 1 and results[0].is_dir()
    goal = out or (results[0] / "report.html" if inside else Path("report.html"))
    if goal.suffix.lower() not in (".html", ".htm"):
        raise InputError("--out", f"{goal} does not end in .html", "give the name of a page")
    if goal.is_dir():
        raise InputError("--out", f"{goal} is a folder", "give the name of a page")
    if goal.exists() and not overwrite:
        raise InputError("--out", f"{goal} exists", "give another name, or add --overwrite")
    folder = goal.absolute().parent
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is no folder that can be written to", "give another")
    outputs.check_writable(folder)

    from fairmp.report.from_results import together

    text = together(results)
    staging = folder / f".{goal.name}-{os.getpid()}"
    try:
        staging.write_text(text, encoding="utf-8")
        os.replace(staging, goal)
    finally:
        staging.unlink(missing_ok=True)
    typer.echo(f"{len(text.encode()) / 1e6:.1f} MB. Open {goal}.")
