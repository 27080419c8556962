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
        typer.Argument(help="Result directories of train, audit, debias, tune, compare or demo."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Page to write; by default report.html, in the directory if it is one."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing page.")
    ] = False,
) -> None:
    """Make one report page from the results of earlier commands.

    The page is self-contained, works offline, and can be printed.
    """
    inside = len(results) == 1 and results[0].is_dir()
    goal = out or (results[0] / "report.html" if inside else Path("report.html"))
    folder = goal.absolute().parent
    if goal.suffix.lower() not in (".html", ".htm"):
        raise InputError("--out", f"{goal} does not end in .html", "give the name of a page")
    if goal.is_dir():
        raise InputError("--out", f"{goal} is a directory", "give the name of a page")
    if goal.exists() and not overwrite:
        raise InputError("--out", f"{goal} exists", "give another name, or add --overwrite")
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is not a directory", "give another name")
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
