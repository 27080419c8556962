"""``fairmp data``: list, download, verify and describe the benchmark graphs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp.cli import options, output
from fairmp.cli.options import argument, option
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.datasets.raw import FoundFile
    from fairmp.datasets.sources import Source

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


@app.command("list")
def list_(data_dir: options.DataDir = None, as_json: options.AsJson = False) -> None:
    """List the data sets and where their raw files are."""
    rows: list[dict[str, Any]] = []
    for source, raw_files in _raw_files(None, data_dir):
        files = [
            {
                "role": raw.role,
                "name": raw.file.name,
                "path": raw.path and str(raw.path),
                "sha256": raw.file.checksum,
                "url": raw.file.url or None,
            }
            for raw in raw_files
        ]
        names = {"key": source.key, "title": source.title, "class": source.class_name}
        rows.append({**names, "found": all(file["path"] for file in files), "files": files})
    if as_json:
        return output.print_json(rows)
    for row in rows:
        typer.echo(f"{row['key']:17} {row['title']} ({'found' if row['found'] else 'missing'})")
        for file in row["files"]:
            home = "can be downloaded" if file["url"] else "no public home is known"
            place = file["path"] or f"{file['name']}: missing, {home}"
            typer.echo(f"    {place}; {_CHECKSUMS[file['sha256']]}")
    typer.echo("Use one with 'fairmp audit --data NAME'; 'fairmp data fetch NAME' downloads it.")


@app.command()
def fetch(
    names: list[str] | None = argument("Data sets, such as 'nba'.", None, metavar="NAME..."),
    everything: bool = option("Download all data sets with a public home.", False, "--all"),
    data_dir: options.DataDir = None,
    mirror: str | None = option("Address of a copy of the files; by default $FAIRMP_MIRROR."),
    as_json: options.AsJson = False,
) -> None:
    """Download the raw files that are missing, and verify them."""
    if bool(names) == everything:
        raise InputError("NAME", "not given, or given with --all", "name data sets, or --all")
    from fairmp.datasets.raw import fetch as get

    entries = []
    for source in _sources(names):
        public = all(any(file.url for file in files) for files in source.files.values())
        if everything and not (mirror or public):
            continue
        try:
            paths = {file.role: str(file.path) for file in get(source, data_dir, mirror=mirror)}
        except KeyboardInterrupt:
            typer.echo("fairmp: stopped; complete files are kept", err=True)
            raise typer.Exit(130) from None
        entries.append({"key": source.key, "files": paths})
        if not as_json:
            typer.echo(f"{source.key}: {', '.join(paths.values())}")
    if as_json:
        output.print_json(entries)


@app.command()
def verify(
    names: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False
) -> None:
    """Verify the SHA-256 of the raw files.

    The exit status is 1 if a file differs, or if a file of a data set you named is missing.
    """
    checked: dict[str, list[dict[str, Any]]] = {
        source.key: [
            {"name": raw.file.name, "path": raw.path and str(raw.path), "state": raw.check()}
            for raw in raw_files
        ]
        for source, raw_files in _raw_files(names, data_dir)
    }
    files = [(key, file) for key, group in checked.items() for file in group]
    if as_json:
        output.print_json(checked)
    else:
        for key, file in files:
            typer.echo(f"{key:17} {file['path'] or file['name']}: {_STATES[file['state']]}")
    states = {file["state"] for _, file in files}
    if "differs" in states or (names and "missing" in states):
        raise typer.Exit(1)


@app.command()
def stats(
    names: Names = None, data_dir: options.DataDir = None, as_json: options.AsJson = False
) -> None:
    """Compare size and homophily of the data sets with the figures printed in the paper."""
    present: list[Source] = []
    missing: list[Source] = []
    for source, raw_files in _raw_files(names, data_dir):
        absent = [raw.file.name for raw in raw_files if not raw.path]
        if names and absent:
            hint = f"run 'fairmp data fetch {source.key}', or name its folder with {{data_dir}}"
            raise InputError(source.key, f"{absent[0]} is missing", hint)
        (missing if absent else present).append(source)

    from fairmp.datasets.statistics import CAPTION, COLUMNS, PAPER, agreement, of_dataset, rows
    from fairmp.display import bar
    from fairmp.report.formats import Table, rich_table

    ours = {}
    with bar(len(present), "reading") as advance:
        for source in present:
            ours[source.key] = of_dataset(source.key, data_dir)
            advance(source.title)
    if as_json:
        records = [
            {
                "ours": asdict(figures),
                "paper": (paper := PAPER.get(key)) and asdict(paper),
                "agrees": agreement(figures, paper) if paper else {},
            }
            for key, figures in ours.items()
        ]
        keys = [source.key for source in missing]
        return output.print_json({"statistics": records, "missing": keys})
    if ours:
        table = rich_table(Table("", ["data set", *COLUMNS.values()], rows(ours)))
        table.padding = (0, 1, 0, 0)  # to fit 80 columns
        output.show(table, CAPTION.replace(". ", ".\n", 1))
    else:
        output.show("No data set has all its files; see 'fairmp data list'.")
    if missing:
        titles = ", ".join(source.title for source in missing)
        output.show(f"Left out, their files are missing: {titles}.")


def _sources(names: list[str] | None) -> list[Source]:
    from fairmp.datasets.sources import SOURCES, source_named

    return [source_named(name, argument="names") for name in names] if names else list(SOURCES)


def _raw_files(
    names: list[str] | None, data_dir: Path | None
) -> list[tuple[Source, list[FoundFile]]]:
    """Data sets, all by default, and where their files are."""
    from fairmp.datasets.by_name import check_data_dir
    from fairmp.datasets.raw import find

    check_data_dir(data_dir)
    return [(source, list(find(source, data_dir))) for source in _sources(names)]
