"""``fairmp report``."""

from __future__ import annotations

from pathlib import Path

import typer

from fairmp import outputs
from fairmp.cli.options import argument, check_file, option
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
        if not folder.is_dir():
            raise InputError("--out", f"{folder} is not a directory", "give another name")
        check_file("--out", path, overwrite=overwrite)

    from fairmp.report.from_results import card_texts, document_of, together

    content = card_texts(document_of(results[0]), use) if card else (together(results),)
    paths = (goal, goal.with_suffix(".md"))[: len(content)]
    with outputs.text_files(dict(zip(paths, content, strict=True)), new=not overwrite):
        pass
    more = f", or read {paths[1]}" if card else ""
    typer.echo(f"{len(content[0].encode()) / 1e3:,.0f} kB. Open {goal}{more}.")
