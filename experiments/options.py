"""Options that several experiments share, and how their results are written and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

from torch_geometric.data import Data

from experiments.grids import Grid
from experiments.paper import Claims
from experiments.provenance import stamp
from fairmp import outputs
from fairmp.cli import compare as compare_command
from fairmp.cli import options, output
from fairmp.cli.options import option
from fairmp.cli.output import say
from fairmp.comparison import Record, compare
from fairmp.comparison.page import write_page
from fairmp.comparison.summary import Comparison
from fairmp.datasets.by_name import canonical, from_files
from fairmp.datasets.raw import find
from fairmp.datasets.sources import SOURCES
from fairmp.display import bar
from fairmp.errors import InputError
from fairmp.report import Section
from fairmp.report.formats import Table

QUICK = "A small run with the same structure, in two minutes."
Quick = Annotated[bool, option(QUICK, ..., "--quick")]
SPLITS = "Number of splits; by default the experiment's."
Splits = Annotated[int | None, option(SPLITS, ..., min=1)]
Device = Annotated[str, option("cpu or cuda.", ...)]
RESUMED = "Folder for the results; one with records is continued."
T = TypeVar("T")
PAIR = 2  # columns that belong together: the paper's figure and ours


@dataclass(frozen=True)
class DataSets(Generic[T]):
    """The data sets whose files were found, and why the others are left out."""

    graphs: dict[str, T]
    absent: dict[str, str]


def load_available(
    names: Sequence[str] | None, data_dir: Path | None, load: Callable[[str, Path | None], T]
) -> DataSets[T]:
    """Call a function for each data set, of all by default, whose files are found."""
    titles = {source.key: source.title for source in SOURCES}
    without_files = {s.key for s in SOURCES if not all(file.path for file in find(s, data_dir))}
    data_sets: DataSets[T] = DataSets({}, {})
    wanted = [canonical(name) for name in (titles if names is None else names)]
    with bar(len(wanted), "data sets") as advance:
        for name in wanted:
            key = name.partition("+")[0]
            advance(name)
            if key in without_files:
                data_sets.absent[titles[key]] = "its files were not found"
                continue
            try:
                data_sets.graphs[name] = load(name, data_dir)
            except InputError as error:
                data_sets.absent[name] = str(error)
    return data_sets


@dataclass(frozen=True)
class Scope:
    """On what an experiment is run."""

    quick: Quick = False
    data: options.DataNames = None
    data_dir: options.DataDir = None

    def load(self, quick: Sequence[str], usual: Sequence[str] | None = None) -> DataSets[Data]:
        """Load the graphs whose files are found; by default ``usual``, or every data set."""
        return self.load_with(from_files, quick, usual)

    def load_with(
        self,
        load: Callable[[str, Path | None], T],
        quick: Sequence[str],
        usual: Sequence[str] | None = None,
    ) -> DataSets[T]:
        """Call a function for each data set whose files are found."""
        names = self.data or (quick if self.quick else usual)
        data_sets = load_available(names, self.data_dir, load)
        for name, reason in data_sets.absent.items():
            say(f"Left out, {name}: {reason}.")
        if not data_sets.graphs:
            hint = "name their folder with --data-dir or FAIRMP_DATA, or use --data embedded"
            raise InputError("--data", "no data set's files were found", hint)
        return data_sets


@dataclass(frozen=True)
class GridOptions:
    """How the runs of a grid are trained; like ``fairmp compare`` it can be continued."""

    out: Annotated[Path | None, option(RESUMED, ...)] = None
    splits: Splits = None
    workers: options.Workers = None
    device: Device = "cpu"
    as_json: options.AsJson = False


class Writer(Protocol):
    """Writes the tables, figures and page of an experiment next to its records."""

    def __call__(self, records: Sequence[Record], folder: Path, *, command: str) -> Comparison:
        """Return the summary of the records."""
        ...


def run_grid(
    name: str,
    grid: Grid,
    write: Writer,
    scope: Scope,
    training: GridOptions,
    *,
    quick: str = "embedded:2000",
    usual: Sequence[str] | None = None,
) -> None:
    """Train the runs of a grid that have no record yet; write and show tables and figures."""
    folder = training.out or Path(f"fairmp-{name}")
    outputs.hold(folder, overwrite=True)
    compare.check_folder(folder)
    graphs = scope.load([quick], usual).graphs
    specs = grid(list(graphs), quick=scope.quick, splits=training.splits)
    keys = {record["key"] for record in compare.read(folder / compare.RECORDS)}
    if keys - {spec.key for spec in specs}:
        hint = "give another folder, or the options they were made with"
        raise InputError("--out", f"{folder} has records of another run", hint)
    records = compare_command.run_with_progress(
        specs,
        partial(from_files, data_dir=scope.data_dir),
        folder,
        workers=training.workers,
        device=training.device,
        retry=False,
        stamp=stamp("comparison"),
    )
    comparison = write(records, folder, command=rerun_command())
    compare_command.show(
        replace(comparison, further_tables=()),
        folder,
        as_json=training.as_json,
        below=[line for table in comparison.further_tables for line in on_terminal(table, PAIR)],
    )


@dataclass(frozen=True)
class Page:
    """Content of an experiment's page."""

    title: str
    summary: str
    parts: Sequence[Section | Table]

    def write(self, folder: Path, absent: Mapping[str, str] | None = None) -> list[Table]:
        """Write page and tables; return the tables."""
        tables = write_page(
            folder, self.title, self.summary, self.parts, command=rerun_command(), absent=absent
        )
        return list(tables)


def show(
    results: options.Results, record: object, folder: Path, tables: Sequence[Table], *notes: str
) -> None:
    """Print a record as JSON, or notes, tables and where the page is."""
    lines = [line for table in tables for line in on_terminal(table)]
    output.report(results.as_json, record, *notes, *lines, output.open_page(folder))


def on_terminal(table: Table, columns: int | None = None) -> list[Any]:
    """What is printed of a table: claims as sentences, others so many columns at a time."""
    if isinstance(table, Claims):
        return [table.title, *map(str, table.claims)]
    if columns is None:
        return output.tables([table])
    return output.tables(compare_command.narrow(table, columns))


def rerun_command() -> str:
    """Return the command that was typed, quoted for a shell."""
    return output.rerun_command("python", "-m", "experiments")
