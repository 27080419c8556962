"""``fairmp report``."""

from __future__ import annotations

from pathlib import Path

import typer

from fairmp import outputs
from fairmp.cli.options import argument, option
from fairmp.errors import InputError


def command(
    results: list[Path] = argument("Result directories of other commands."),
    out: Path | None = option("Page to write; by default report.html."),
    card: bool = option("Write a model card, as .md and .html, instead.", False, "--card"),
    use: str = option("Intended use of the model, for its card: who decides what.", ""),
    overwrite: bool = option("Replace an existing page.", False, "--overwrite"),
) -> None:
    """Make one report page from the results of earlier commands.

    The page is self-contained, works offline, and can be printed.
    """
    if card and len(results) > 1:
        raise InputError("RESULTS", f"{len(results)} directories", "a card describes one model")
    if use and not card:
        raise InputError("--use", "is for a model card", "add --card")
    inside = len(results) == 1 and results[0].is_dir()
    name = "model-card.html" if card else "report.html"
    goal = out or (results[0] / name if inside else Path(name))
    folder = goal.absolute().parent
    if goal.suffix.lower() not in (".html", ".htm"):
        raise InputError("--out", f"{goal} does not end in .html", "give the name of a page")
    for path in (goal, *[goal.with_suffix(".md")] * card):
        if path.exists() and not (overwrite and path.is_file()):
            raise InputError("--out", f"{path} exists", "give another name, or add --overwrite")
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is not a directory", "give another name")

    from fairmp.report.card import write
    from fairmp.report.from_results import document_of, together

    with outputs.results(folder, overwrite=True, in_place=True) as staging:
        if card:
            write(document_of(results[0]), staging / goal.name, use)
            typer.echo(f"Open {goal}, or read {goal.with_suffix('.md')}.")
            return
        text = together(results)
        (staging / goal.name).write_text(text, encoding="utf-8")
    typer.echo(f"{len(text.encode()) / 1e6:.1f} MB. Open {goal}.")
