"""Options and messages that several commands share."""

from __future__ import annotations

import hashlib
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fairmp.errors import InputError
from fairmp.outputs import free_name, hold, without_password

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.report.formats import Table

TABLES = (
    *("nodes", "edges", "id", "label", "sensitive", "sensitive_bins", "drop", "unknown"),
    "categorical",
)


def panel(title: str) -> Callable[..., Any]:
    """Return a function that makes an option, listed under a title, from its help and name."""
    return lambda help, *names, **more: typer.Option(
        *names, help=help, rich_help_panel=title, **more
    )


own = panel("Your own tables")

network = panel("Network and training")

DATA_HELP = (
    "A data set ('fairmp data list' names them), the 'embedded' network, or 'embedded:3000' for "
    "3,000 nodes of it."
)
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of the same name in --out.")
]
SafeCSV = Annotated[
    bool,
    typer.Option(
        "--safe-csv/--raw-csv",
        help="Put ' before text that a spreadsheet would run as a formula (=, +, -, @), or not.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of initialisation and of the first split.")]
Splits = Annotated[int, typer.Option(min=1, help="Number of splits.")]
DataDir = Annotated[
    Path | None,
    # Not typer's envvar: FAIRMP_DATA is searched in addition to the cache, this folder alone.
    typer.Option(help="Folder with the data sets' files; by default $FAIRMP_DATA, then the cache."),
]
DataNames = Annotated[list[str] | None, typer.Option(help=f"{DATA_HELP} May be repeated.")]
Nodes = Annotated[
    str | None,
    own("Node table: separated text, JSON Lines, Parquet, Arrow; or sqlite:///people.db."),
]
NodesQuery = Annotated[str | None, own("SQL query of the node table, if --nodes is a database.")]
EdgesQuery = Annotated[str | None, own("SQL query of the edge table, if --edges is a database.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes; by default one per core, at most 8.")
]
Device = Annotated[str, network("cpu or cuda.")]
Epochs = Annotated[int, network("Maximum number of epochs.")]
Layers = Annotated[int, network("Number of layers.")]
Patience = Annotated[int | None, network("Epochs without improvement before stopping.")]
EvalEvery = Annotated[int, network("Epochs between two validations.")]
Pretrain = Annotated[int, network("Epochs before the adversary is active.")]


Track = Annotated[
    str | None, typer.Option(help="Log the records to 'mlflow', where MLFLOW_TRACKING_URI says.")
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="Split of the literature instead of our own, over initialisations: 'nifty' or "
        "'fairgnn'."
    ),
]


def with_protocol(names: list[str] | None, protocol: str | None) -> list[str]:
    """Return names of data sets with the protocol they are used under."""
    return [f"{name}+{protocol}" if protocol else name for name in names or ["embedded"]]


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of options by an option per field."""
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters, only = [], inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(command).parameters.values():
        group = shared.get(parameter.name)
        if group is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=only))
            continue
        types = get_type_hints(group, include_extras=True)
        for own in fields(group):
            kept = parameter.replace(name=own.name, default=own.default, kind=only)
            parameters.append(kept.replace(annotation=types[own.name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in shared.items():
            given[name] = group(**{own.name: given.pop(own.name) for own in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclass(frozen=True)
class Results:
    """Where results go."""

    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; by default a new one named after the command."),
    ] = None
    overwrite: Overwrite = False

    def folder(self, name: str) -> Path:
        """Return the folder, checked and locked before any work is done for it."""
        folder = free_name(f"fairmp-{name}") if self.out is None else self.out
        hold(folder, overwrite=self.overwrite)
        return folder


@dataclass(frozen=True)
class Tables:
    """Your own tables."""

    nodes: Nodes = None
    edges: Annotated[str | None, own("Edge table: two columns of node ids.")] = None
    nodes_query: NodesQuery = None
    edges_query: EdgesQuery = None
    id: Annotated[str | None, own("Column with the node ids.", "--id")] = None
    label: Annotated[str | None, own("Column to predict; empty if unknown.")] = None
    sensitive: Annotated[
        list[str] | None, own("Sensitive column; give several to combine them.")
    ] = None
    sensitive_bins: Annotated[
        str | None, own("Bin a numeric sensitive column: a number of bins, or edges like '30,60'.")
    ] = None
    drop: Annotated[list[str] | None, own("Column to leave out.")] = None
    unknown: Annotated[
        list[str] | None, own("Value of label and sensitive columns that means 'not known'.")
    ] = None
    categorical: Annotated[
        list[str] | None, own("Column of numbers that are categories, such as postcodes.")
    ] = None

    def given(self) -> bool:
        """Whether tables are named; raise if that is done in part."""
        if self.nodes is None and self.edges is None:
            for own in fields(Tables):
                if getattr(self, own.name):
                    option = _option(own.name)
                    raise InputError(option, "goes with --nodes and --edges", "give both")
            return False
        needed = ("nodes", "edges", "label", "sensitive")
        for name in needed:
            if not getattr(self, name):
                hint = f"your own tables need {', '.join(map(_option, needed))}"
                raise InputError(_option(name), "missing", hint)
        return True

    @contextmanager
    def files(self) -> Iterator[dict[str, Any]]:
        """Give the arguments of ``from_tables``; queries are run first."""
        found = {name: getattr(self, name) for name in TABLES}
        if self.sensitive is not None and len(self.sensitive) == 1:
            found["sensitive"] = self.sensitive[0]
        found |= {"drop": tuple(self.drop or ()), "sensitive_bins": _bins(self.sensitive_bins)}
        found["categorical"] = tuple(self.categorical or ())
        places = self.nodes, self.nodes_query, self.edges, self.edges_query
        with table_files(*places) as (nodes, edges), typed(id=self.id):
            yield found | {"nodes": nodes, "edges": edges}

    def fingerprint(self) -> str:
        """Name of the tables, different for other contents or columns."""
        with self.files() as given:
            paths = [given.pop(name) for name in ("nodes", "edges")]
            digest = hashlib.sha256(repr(sorted(given.items())).encode())
            for path in paths:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"{paths[0].stem}-{digest.hexdigest()[:8]}"

    def load_tables(self, name: str = "") -> Data:
        """Load the tables; ``name`` is not used."""
        from fairmp.datasets.tables import from_tables

        with self.files() as arguments:
            return from_tables(**arguments)


@dataclass(frozen=True)
class Graph(Tables):
    """A data set, or your own tables."""

    data: Annotated[str, typer.Option(help=DATA_HELP)] = "embedded"
    data_dir: DataDir = None

    def given(self) -> bool:
        """Whether tables are named; raise if a data set is named too."""
        if (self.nodes or self.edges) and self.data.lower() != "embedded":
            value = f"{self.data!r} goes without --nodes and --edges"
            raise InputError("--data", value, "give one or the other")
        return super().given()

    def load(self) -> Data:
        """Load the tables, the data set or the embedded network that the options name."""
        if self.given():
            return self.load_tables()
        from fairmp.datasets.by_name import EMBEDDED, canonical, from_files

        if not canonical(self.data).startswith(EMBEDDED):
            must_be_folder(self.data_dir)
        return from_files(self.data, self.data_dir)


@contextmanager
def table_files(
    nodes: str | None, nodes_query: str | None, edges: str | None, edges_query: str | None
) -> Iterator[tuple[Path | None, Path | None]]:
    """Give the files of a node and an edge table, each of which may be a query."""
    if not (nodes_query or edges_query or "://" in f"{nodes} {edges}"):
        yield (nodes and Path(nodes)) or None, (edges and Path(edges)) or None
        return
    from fairmp.datasets.databases import as_file

    with (
        as_file(nodes, nodes_query, "--nodes") as one,
        as_file(edges, edges_query, "--edges") as other,
    ):
        yield one, other


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


def rerun_command() -> str:
    """Return the command that was typed, quoted for a shell, without passwords."""
    return shlex.join(["fairmp", *map(without_password, sys.argv[1:])])


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def track(tracker: str | None, records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Log records to a tracker, if one was named."""
    if tracker is not None:
        from fairmp.comparison import tracking

        count = tracking.log(records, folder, command=rerun_command())
        say(f"{count} run{'s' * (count != 1)} logged to {tracker}.")


def check_tracker(tracker: str | None) -> None:
    """Raise if a tracker cannot be used, before anything is trained."""
    if tracker is not None:
        from fairmp.comparison import tracking

        tracking.check_tracker(tracker)


def duration(seconds: float) -> str:
    """Format a length of time."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def print_tables(tables: Sequence[Table], folder: Path, *, leave_out: Sequence[str] = ()) -> None:
    """Print tables, and where the page is."""
    from rich.console import Console

    from fairmp.report.formats import rich_table

    console = Console(highlight=False)
    for table in tables:
        if table.header[-1] == "verdict":  # sentences, too long for columns
            console.print(table.title)
            for claim, data, paper, ours, verdict in table.rows:
                console.print(f"- {claim} ({data}): {verdict}. Ours: {ours}; the paper: {paper}.")
        else:
            console.print(rich_table(table, leave_out=leave_out))
    console.print(f"Open {folder / 'report.html'}.")
