"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmp.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

_OWN = "Your own tables"

Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; by default a new one named after the command."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of the same name in --out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of the initialisation and of the first split.")
]
Splits = Annotated[int, typer.Option(min=1, help="Splits each method is trained on.")]

DataName = Annotated[
    str,
    typer.Option(
        "--data",
        help="A data set ('fairmp data list' names them), the 'embedded' network, or "
        "'embedded:3000' for 3,000 nodes of it.",
    ),
]
DataDir = Annotated[
    Path | None,
    # Not typer's envvar: FAIRMP_DATA is searched beside the cache, this folder alone.
    typer.Option(
        help="Folder with the data sets' raw files; by default $FAIRMP_DATA, then the cache."
    ),
]
Nodes = Annotated[
    Path | None,
    typer.Option(help="Node table: CSV, TSV (gzipped or not) or Parquet.", rich_help_panel=_OWN),
]
Edges = Annotated[
    Path | None, typer.Option(help="Edge table: two columns of node ids.", rich_help_panel=_OWN)
]
Id = Annotated[
    str | None, typer.Option("--id", help="Column with the node ids.", rich_help_panel=_OWN)
]
Label = Annotated[
    str | None, typer.Option(help="Column to predict; empty where unknown.", rich_help_panel=_OWN)
]
Sensitive = Annotated[
    list[str] | None,
    typer.Option(help="Sensitive column; give several to cross them.", rich_help_panel=_OWN),
]
SensitiveBins = Annotated[
    str | None,
    typer.Option(
        help="Cut a numeric sensitive column: a number of bins, or edges like '30,60'.",
        rich_help_panel=_OWN,
    ),
]
Drop = Annotated[list[str] | None, typer.Option(help="Column to leave out.", rich_help_panel=_OWN)]


def load_data(
    name: str,
    data_dir: Path | None,
    nodes: Path | None,
    edges: Path | None,
    id: str | None,
    label: str | None,
    sensitive: list[str] | None,
    sensitive_bins: str | None,
    drop: list[str] | None,
) -> Data:
    """Load what the options name: tables, a data set, or the embedded network."""
    if nodes is None and edges is None:
        given = {"--id": id, "--label": label, "--sensitive": sensitive}
        given |= {"--sensitive-bins": sensitive_bins, "--drop": drop}
        stray = [option for option, value in given.items() if value]
        if stray:
            raise InputError(stray[0], "goes with --nodes and --edges", "give both tables")
        from fairmp.datasets.by_name import EMBEDDED, canonical, from_files

        if not canonical(name).startswith(EMBEDDED):
            must_be_folder(data_dir)
        return from_files(name, data_dir)
    if name.lower() != "embedded":
        raise InputError(
            "--data", f"{name!r} goes without --nodes and --edges", "give one or the other"
        )
    missing = {
        "--nodes": nodes,
        "--edges": edges,
        "--label": label,
        "--sensitive": sensitive,
    }
    for option, value in missing.items():
        if not value:
            raise InputError(
                option, "missing", "your own tables need --nodes, --edges, --label and --sensitive"
            )
    from fairmp.datasets import from_tables

    assert nodes is not None
    assert edges is not None
    assert label is not None
    assert sensitive is not None
    try:
        return from_tables(
            nodes,
            edges,
            id=id,
            label=label,
            sensitive=sensitive if len(sensitive) > 1 else sensitive[0],
            sensitive_bins=_bins(sensitive_bins),
            drop=tuple(drop or ()),
        )
    except InputError as error:
        raise InputError.parse(_as_typed(str(error), id)) from None


def check_groups(graph: Data, split_seeds: Iterable[int]) -> None:
    """Refuse a table's group that some part of a split has no node of: no gap is closed there."""
    encoding = getattr(graph, "encoding", None)
    if encoding is None:
        return
    from fairmp.datasets.edges import counted
    from fairmp.datasets.splits import split

    known = graph.sens[(graph.sens >= 0) & (graph.y >= 0)]
    for seed in split_seeds:
        for part, mask in zip(
            ("training", "validation", "test"), split(graph, seed=seed), strict=True
        ):
            present = set(graph.sens[mask].tolist())
            absent = [k for k in range(len(graph.group_names)) if k not in present]
            if not absent:
                continue
            columns = " × ".join(repr(column.column) for column in encoding.sensitive)
            count = counted(int((known == absent[0]).sum()), "node")
            raise InputError(
                "--sensitive",
                f"group {graph.group_names[absent[0]]!r} of {columns} has {count} with a known "
                f"label and none among the {part} nodes of split {seed}, where its gap can not "
                "be closed",
                "merge it with another group in the table, or empty its cells (unknown)",
            )


def must_be_folder(data_dir: Path | None) -> None:
    """Raise if the folder with the raw files is not there."""
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise InputError(
            "--data-dir", f"{data_dir} is no folder", "name the one with the raw files"
        )


def _as_typed(message: str, id: str | None) -> str:
    """Say of options what the library says of arguments, and add what a user can do here."""
    argument, _, rest = message.partition(": ")
    if argument in ("nodes", "edges", "id", "label", "sensitive", "sensitive_bins", "drop"):
        message = f"--{argument.replace('_', '-')}: {rest}"
    message = message.replace(
        "with sensitive_bins, as in sensitive_bins=3 or sensitive_bins=[25, 40]",
        "with --sensitive-bins, as in --sensitive-bins 3 or --sensitive-bins 25,40",
    ).replace("name it, as in {'age': [25, 40]}", "give one such column")
    one_column = "has no column" in rest and ", " not in rest.rpartition("; there are ")[2]
    if one_column or "the table has one column" in rest:
        message += "; is it separated by commas, semicolons, tabs, '|' or spaces?"
    if id is None and "joins two ids" in rest:
        message += "; --id names the column with the ids, row numbers are taken without it"
    return message


def _bins(text: str | None) -> int | list[float] | None:
    if text is None:
        return None
    try:
        if "," not in text:
            return int(text)
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "--sensitive-bins", f"{text!r} is neither a number of bins nor edges such as '30,60'"
        ) from None
