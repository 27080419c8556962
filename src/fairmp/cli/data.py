"""``fairmp data``: list, fetch, verify and describe the benchmark graphs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp.cli import options
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.datasets.raw import Availability, FoundFile
    from fairmp.datasets.sources import Source
    from fairmp.datasets.statistics import Statistics

app = typer.Typer(
    help="List, fetch, verify and describe the benchmark graphs.", no_args_is_help=True
)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Data sets, such as 'nba'; all by default."),
]
_SUMS = {
    "known": "SHA-256 known",
    "partial": "first digits of the SHA-256 known",
    "unknown": "SHA-256 not known",
}
_STATES = {
    "ok": "ok: the published file",
    "first digits ok": "ok as far as known: the first digits of the SHA-256 agree",
    "sum unknown": "not checked: the SHA-256 is not known",
    "differs": "DIFFERS from the published file",
    "missing": "not there",
}


@app.command("list")
def list_(data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """Name the data sets and their raw files, and where these are."""
    entries = _listing(data_dir)
    if as_json:
        _echo([_as_dict(entry) for entry in entries])
        return
    for entry in entries:
        state = "here" if entry.found else "not here"
        typer.echo(f"{entry.source.key:15} {entry.source.title} ({state})")
        for found in entry.files:
            typer.echo(f"    {_where(found)}; {_SUMS[found.sum_known]}")
    typer.echo("Use one with 'fairmp audit --data NAME'; 'fairmp data fetch NAME' downloads it.")


@app.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Data sets, such as 'nba'.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Fetch all data sets with a public home.")
    ] = False,
    data_dir: options.DataDir = None,
    mirror: Annotated[
        str | None,
        typer.Option(help="Address of a copy of a data folder; by default $FAIRMP_MIRROR."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Download the raw files that are not here yet, and check them."""
    if bool(names) == everything:
        raise InputError("NAME", "name one data set or more, or give --all ('fairmp data list')")
    from fairmp.datasets.raw import fetch as get

    sources = _sources(None if everything else names)
    if everything:
        sources = [source for source in sources if mirror or _public(source)]
    entries = []
    for source in sources:
        try:
            files = get(source, data_dir, mirror=mirror)
        except KeyboardInterrupt:
            print("fairmp: stopped; the files that are whole are kept", file=sys.stderr)
            sys.exit(130)
        entries.append({"key": source.key, "files": {f.role: str(f.path) for f in files}})
        if not as_json:
            typer.echo(f"{source.key}: {', '.join(str(file.path) for file in files)}")
    if as_json:
        _echo(entries)


@app.command()
def verify(
    names: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False
) -> None:
    """Check the raw files' SHA-256; status 1 where one differs, or one you named is missing."""
    from fairmp.datasets.raw import verify as check

    options.must_be_folder(data_dir)
    checked = {source.key: check(source, data_dir) for source in _sources(names)}
    if as_json:
        _echo(
            {
                key: [
                    {"name": file.found.file.name, "path": _path(file.found), "state": file.state}
                    for file in files
                ]
                for key, files in checked.items()
            }
        )
    else:
        for key, files in checked.items():
            for file in files:
                name = file.found.path or file.found.file.name
                typer.echo(f"{key:15} {name}: {_STATES[file.state]}")
    states = {file.state for files in checked.values() for file in files}
    if "differs" in states or (names and "missing" in states):
        raise typer.Exit(1)


@app.command()
def stats(
    names: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False
) -> None:
    """Print the paper's statistics beside ours, for the data sets whose files are here."""
    wanted = _sources(names)
    entries = [entry for entry in _listing(data_dir) if entry.source in wanted]
    absent = [entry.source for entry in entries if not entry.found]
    if names and absent:
        gone = next(f.file.name for e in entries if not e.found for f in e.files if not f.path)
        raise InputError(
            absent[0].key,
            f"{gone} is not here",
            f"'fairmp data fetch {absent[0].key}', or name the folder it is in with --data-dir",
        )

    from fairmp.datasets.statistics import PAPER, agreement, of_dataset
    from fairmp.progress import bar

    rows = []
    with bar(len(entries) - len(absent), "reading") as advance:
        for entry in entries:
            if entry.found:
                ours = of_dataset(entry.source.key, data_dir)
                paper = PAPER.get(entry.source.key)
                rows.append((ours, paper, agreement(ours, paper) if paper else {}))
                advance(entry.source.title)
    if as_json:
        _echo(
            {
                "statistics": [
                    {"ours": ours.as_dict(), "paper": paper and paper.as_dict(), "agrees": same}
                    for ours, paper, same in rows
                ],
                "not here": [source.key for source in absent],
            }
        )
        return
    _table(rows)
    if absent:
        typer.echo(f"Left out, their files are not here: {', '.join(s.title for s in absent)}.")


_COLUMNS = {
    "nodes": "nodes",
    "features": "features",
    "edges": "directed edges",
    "label_homophily": "label homophily %",
    "label_homophily_labelled": "over labelled pairs %",
    "sens_homophily": "sensitive homophily %",
}


def _table(rows: list[tuple[Statistics, Statistics | None, dict[str, bool]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("No data set's files are here; see 'fairmp data list'.")
        return
    lines = []
    for ours, paper, same in rows:
        marks = [{True: " ✓", False: " ✗", None: "  "}[same.get(key)] for key in _COLUMNS]
        cells = [_cell(getattr(ours, key)) for key in _COLUMNS]
        lines.append([ours.name, *(c + m for c, m in zip(cells, marks, strict=True))])
        if paper:
            printed = [_cell(getattr(paper, key)) or "–" for key in _COLUMNS]
            lines.append(["  paper", *(f"{cell}  " for cell in printed)])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("data set")
    for column, title in enumerate(_COLUMNS.values(), start=1):
        # A title may break into lines on a narrow terminal, a number may not.
        width = max(len(line[column]) for line in lines)
        table.add_column(title, justify="right", min_width=width)
    for line in lines:
        table.add_row(*line)
    Console(highlight=False).print(table)
    typer.echo(
        "✓ the paper's figure to the printed digit, ✗ not; what has no mark is not in its table.\n"
        "Labels are those of the files. Label homophily counts unlabelled as a class; over\n"
        "labelled pairs it does not, and NBA's 39.22 become 53.63."
    )


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.2f}"


def _listing(data_dir: Path | None) -> list[Availability]:
    from fairmp.datasets.raw import listing

    options.must_be_folder(data_dir)
    return listing(data_dir)


def _sources(names: list[str] | None) -> list[Source]:
    from fairmp.datasets.sources import SOURCES, source_named

    return [source_named(name) for name in names] if names else list(SOURCES)


def _public(source: Source) -> bool:
    return all(any(file.url for file in choices) for choices in source.files.values())


def _where(found: FoundFile) -> str:
    if found.path:
        return str(found.path)
    home = "can be fetched" if found.file.url else "no public home is known"
    return f"{found.file.name}: not here, {home}"


def _path(found: FoundFile) -> str | None:
    return str(found.path) if found.path else None


def _as_dict(entry: Availability) -> dict[str, Any]:
    return {
        "key": entry.source.key,
        "title": entry.source.title,
        "class": entry.source.class_name,
        "found": entry.found,
        "files": [
            {
                "role": found.role,
                "name": found.file.name,
                "path": _path(found),
                "sha256": found.sum_known,
                "url": found.file.url or None,
            }
            for found in entry.files
        ],
    }


def _echo(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, allow_nan=False))
