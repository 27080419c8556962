"""``fairmp data``: list, download, verify and describe the benchmark graphs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp.cli import options
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.datasets.raw import FoundFile
    from fairmp.datasets.sources import Source
    from fairmp.datasets.statistics import Statistics

app = typer.Typer(
    help="List, download, verify and describe the benchmark graphs.", no_args_is_help=True
)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Data sets, such as 'nba'; all by default."),
]
_CHECKSUMS = {
    "known": "SHA-256 known",
    "partial": "first digits of the SHA-256 known",
    "unknown": "SHA-256 unknown",
}
_STATES = {
    "ok": "ok, the published file",
    "first digits ok": "ok as far as known, the first digits of the SHA-256 agree",
    "sum unknown": "not checked, the SHA-256 is unknown",
    "differs": "DIFFERS from the published file",
    "missing": "missing",
}
_COLUMNS = {
    "nodes": "nodes",
    "features": "features",
    "edges": "directed edges",
    "label_homophily": "label homophily %",
    "label_homophily_labelled": "among labelled %",
    "sens_homophily": "sensitive homophily %",
}


@app.command("list")
def list_(data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """List the data sets and where their raw files are."""
    from fairmp.datasets.raw import listing

    options.must_be_folder(data_dir)
    entries = listing(data_dir)
    if as_json:
        _echo(
            [
                {
                    "key": entry.source.key,
                    "title": entry.source.title,
                    "class": entry.source.class_name,
                    "found": entry.found,
                    "files": [_as_dict(found) for found in entry.files],
                }
                for entry in entries
            ]
        )
        return
    for entry in entries:
        state = "found" if entry.found else "missing"
        typer.echo(f"{entry.source.key:15} {entry.source.title} ({state})")
        for found in entry.files:
            home = "can be downloaded" if found.file.url else "no public home is known"
            place = found.path or f"{found.file.name}: missing, {home}"
            typer.echo(f"    {place}; {_CHECKSUMS[found.file.checksum]}")
    typer.echo("Use one with 'fairmp audit --data NAME'; 'fairmp data fetch NAME' downloads it.")


@app.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Data sets, such as 'nba'.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Download all data sets with a public home.")
    ] = False,
    data_dir: options.DataDir = None,
    mirror: Annotated[
        str | None,
        typer.Option(help="Address of a copy of a data folder; by default $FAIRMP_MIRROR."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Download the raw files that are missing, and verify them."""
    if bool(names) == everything:
        raise InputError(
            "NAME",
            "not given, or given with --all",
            "name data sets ('fairmp data list'), or --all",
        )
    from fairmp.datasets.raw import fetch as get

    entries = []
    for source in _sources(names):
        public = all(any(file.url for file in files) for files in source.files.values())
        if everything and not (mirror or public):
            continue
        try:
            files = get(source, data_dir, mirror=mirror)
        except KeyboardInterrupt:
            print("fairmp: stopped; complete files are kept", file=sys.stderr)
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
    """Verify the SHA-256 of the raw files.

    The exit status is 1 if a file differs, or if a file of a data set you named is missing.
    """
    from fairmp.datasets.raw import find

    options.must_be_folder(data_dir)
    checked = {
        source.key: [(found, found.check()) for found in find(source, data_dir)]
        for source in _sources(names)
    }
    if as_json:
        _echo(
            {
                key: [
                    {"name": f.file.name, "path": f.path and str(f.path), "state": state}
                    for f, state in files
                ]
                for key, files in checked.items()
            }
        )
    else:
        for key, files in checked.items():
            for found, state in files:
                typer.echo(f"{key:15} {found.path or found.file.name}: {_STATES[state]}")
    states = {state for files in checked.values() for _, state in files}
    if "differs" in states or (names and "missing" in states):
        raise typer.Exit(1)


@app.command()
def stats(
    names: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False
) -> None:
    """Compare size and homophily of the data sets with the figures printed in the paper."""
    from fairmp.datasets.raw import Availability, find

    options.must_be_folder(data_dir)
    entries = [Availability(source, find(source, data_dir)) for source in _sources(names)]
    missing = [entry for entry in entries if not entry.found]
    if names and missing:
        key = missing[0].source.key
        file = next(found.file.name for found in missing[0].files if not found.path)
        raise InputError(
            key,
            f"{file} is missing",
            f"run 'fairmp data fetch {key}', or name its folder with --data-dir",
        )

    from fairmp.datasets.statistics import PAPER, agreement, of_dataset
    from fairmp.progress import bar

    rows = []
    with bar(len(entries) - len(missing), "reading") as advance:
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
                "missing": [entry.source.key for entry in missing],
            }
        )
        return
    _print_table(rows)
    if missing:
        titles = ", ".join(entry.source.title for entry in missing)
        typer.echo(f"Left out, their files are missing: {titles}.")


def _print_table(rows: list[tuple[Statistics, Statistics | None, dict[str, bool]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("No data set has all its files; see 'fairmp data list'.")
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
        # A title may wrap on a narrow terminal, a number may not.
        width = max(len(line[column]) for line in lines)
        table.add_column(title, justify="right", min_width=width)
    for line in lines:
        table.add_row(*line)
    Console(highlight=False).print(table)
    typer.echo(
        "✓ equals the paper's figure to the printed digit, ✗ does not; no mark: not in the paper.\n"
        "Classes are those of the files. Label homophily counts unlabelled nodes as a class."
    )


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.2f}"


def _sources(names: list[str] | None) -> list[Source]:
    from fairmp.datasets.sources import SOURCES, source_named

    return [source_named(name) for name in names] if names else list(SOURCES)


def _as_dict(found: FoundFile) -> dict[str, Any]:
    return {
        "role": found.role,
        "name": found.file.name,
        "path": found.path and str(found.path),
        "sha256": found.file.checksum,
        "url": found.file.url or None,
    }


def _echo(content: Any) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, allow_nan=False))
