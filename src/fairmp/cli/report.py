"""``fairmp report``."""

from __future__ import annotations

from pathlib import Path

import typer

from fairmp import outputs
from fairmp.cli.options import argument, option
from fairmp.errors import InputError

NO_USE = "Not stated. Add it with --use when the card is made."


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
    page = _page(results, out, card=card)
    files = [page, page.with_suffix(".md")] if card else [page]
    for path in files:
        outputs.check_file("out", path, overwrite=overwrite)

    from fairmp.report.from_results import card_texts, together

    texts = card_texts(results[0], use or NO_USE) if card else [together(results)]
    with outputs.text_files(dict(zip(files, texts, strict=True)), new=not overwrite):
        pass
    markdown = f", or read {files[1]}" if card else ""
    typer.echo(f"{len(texts[0].encode()) / 1e3:,.0f} kB. Open {page}{markdown}.")


def _page(results: list[Path], out: Path | None, *, card: bool) -> Path:
    """Path of the page, by default in the result directory if there is one."""
    name = "model-card.html" if card else "report.html"
    is_folder = len(results) == 1 and results[0].is_dir()
    page = out or (results[0] / name if is_folder else Path(name))
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError("--out", f"{page} does not end in .html", "give the name of a page")
    folder = page.absolute().parent
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is not a directory", "give another name")
    return page
