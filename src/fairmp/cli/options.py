"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

TABLES = ("nodes", "edges", "id", "label", "sensitive", "sensitive_bins", "drop")


def panel(title: str) -> Callable[..., Any]:
    """Return a function that makes an option, listed under a title, from its help and name."""
    return lambda help, *names, **more: typer.Option(
        *names, help=help, rich_help_panel=title, **more
    )


own = panel("Your own tables")

DATA_HELP = (
    "A data set ('fairmp data list' names them), the 'embedded' network, or 'embedded:3000' for "
    "3,000 nodes of it."
)
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results; by default a new one named after the command."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of the same name in --out.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of initialisation and of the first split.")]
Splits = Annotated[int, typer.Option(min=1, help="Number of splits.")]
DataName = Annotated[str, typer.Option("--data", help=DATA_HELP)]
DataDir = Annotated[
    Path | None,
    # Not typer's envvar: FAIRMP_DATA is searched in addition to the cache, this folder alone.
    typer.Option(help="Folder with the data sets' files; by default $FAIRMP_DATA, then the cache."),
]
Nodes = Annotated[Path | None, own("Node table: CSV, TSV (gzipped or not) or Parquet.")]
Edges = Annotated[Path | None, own("Edge table: two columns of node ids.")]
Id = Annotated[str | None, own("Column with the node ids.", "--id")]
Label = Annotated[str | None, own("Column to predict; empty if unknown.")]
Sensitive = Annotated[list[str] | None, own("Sensitive column; give several to combine them.")]
SensitiveBins = Annotated[
    str | None, own("Bin a numeric sensitive column: a number of bins, or edges like '30,60'.")
]
Drop = Annotated[list[str] | None, own("Column to leave out.")]


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
    """Load the tables, the data set or the embedded network that the options name."""
    if nodes is None and edges is None:
        given = zip(TABLES[2:], (id, label, sensitive, sensitive_bins, drop), strict=True)
        for option, value in given:
            if value:
                raise InputError(_option(option), "goes with --nodes and --edges", "give both")
        from fairmp.datasets.by_name import EMBEDDED, canonical, from_files

        if not canonical(name).startswith(EMBEDDED):
            must_be_folder(data_dir)
        return from_files(name, data_dir)
    if name.lower() != "embedded":
        value = f"{name!r} goes without --nodes and --edges"
        raise InputError("--data", value, "give one or the other")
    if not (nodes and edges and label and sensitive):
        needed = {"--nodes": nodes, "--edges": edges, "--label": label, "--sensitive": sensitive}
        missing = next(option for option, value in needed.items() if not value)
        raise InputError(missing, "missing", f"your own tables need {', '.join(needed)}")
    from fairmp.datasets.tables import from_tables

    with typed(id=id):
        return from_tables(
            nodes,
            edges,
            id=id,
            label=label,
            sensitive=sensitive if len(sensitive) > 1 else sensitive[0],
            sensitive_bins=_bins(sensitive_bins),
            drop=tuple(drop or ()),
        )


def check_groups(graph: Data, split_seeds: Iterable[int]) -> None:
    """Raise if a part of some split has no node of a group, before anything is trained."""
    encoding = getattr(graph, "encoding", None)
    if encoding is None:
        return
    from fairmp.datasets.columns import counted
    from fairmp.datasets.splits import split

    for seed in split_seeds:
        parts = zip(("training", "validation", "test"), split(graph, seed=seed), strict=True)
        for part, mask in parts:
            present = set(graph.sens[mask].tolist())
            absent = [k for k in range(len(graph.group_names)) if k not in present]
            if not absent:
                continue
            columns = " × ".join(repr(column.column) for column in encoding.sensitive)
            count = counted(int(((graph.sens == absent[0]) & (graph.y >= 0)).sum()), "node")
            raise InputError(
                "--sensitive",
                f"group {graph.group_names[absent[0]]!r} of {columns} has {count} with a known "
                f"label and none among the {part} nodes of split {seed}",
                "merge it with another group in the table, or leave its cells empty (unknown)",
            )


def must_be_folder(data_dir: Path | None) -> None:
    """Raise if the folder with the raw files does not exist."""
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise InputError("--data-dir", f"{data_dir} is no folder", "name that of the raw files")


@contextmanager
def typed(names: Mapping[str, str] | None = None, *, id: str | None = "") -> Iterator[None]:
    """Report errors about arguments as errors about options; see :func:`as_typed`."""
    try:
        yield
    except InputError as error:
        raise as_typed(error, names, id=id) from None


def as_typed(
    error: InputError, names: Mapping[str, str] | None = None, *, id: str | None = ""
) -> InputError:
    """Translate the arguments in an error to the options that were typed for them.

    ``names`` are options by argument, in addition to those of tables; ``id`` is the column given
    with --id, ``None`` if row numbers are used.
    """
    names = {**{name: _option(name) for name in TABLES}, **(names or {})}
    found = error.rename(names)
    value, hint = str(found.value), found.hint
    for name, option in names.items():
        # As in sensitive_bins=[25, 40] or mode='per-node'; alone if it is no English word.
        written = re.compile(rf"\b{name}=(\[.*?\]|'.*?'|\w+)" + rf"|\b{name}\b" * ("_" in name))

        def shell(match: re.Match[str], option: str = option) -> str:
            value = (match[1] or "").strip("[]'").replace(", ", ",")
            return option if value in option else f"{option} {value}"

        value, hint = written.sub(shell, value), written.sub(shell, hint)
    one_column = "has no column" in value and ", " not in hint
    if one_column or "the table has one column" in value:
        hint += "; is it separated by commas, semicolons, tabs, '|' or spaces?"
    if id is None and "joins two ids" in value:
        hint += "; --id names the column with the ids, without it they are row numbers"
    return type(error)(found.argument, value, hint.removeprefix("; "))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _bins(text: str | None) -> int | list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError:
        value = f"{text!r} is neither a number of bins nor edges such as '30,60'"
        raise InputError("--sensitive-bins", value) from None
