"""``fairmp report``."""

from __future__ import annotations

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
    if goal.exists() and not (overwrite and goal.is_file()):
        raise InputError("--out", f"{goal} exists", "give another name, or add --overwrite")
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is not a directory", "give another name")

    from fairmp.report.from_results import together

    text = together(results)
    with outputs.results(folder, overwrite=True) as staging:
        (staging / goal.name).write_text(text, encoding="utf-8")
    typer.echo(f"{len(text.encode()) / 1e6:.1f} MB. Open {goal}.")
