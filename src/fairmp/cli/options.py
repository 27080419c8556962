"""Options and messages that several commands share."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from itertools import product
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from fairmp import outputs
from fairmp.datasets.databases import without_password
from fairmp.errors import InputError, check_choice, check_number
from fairmp.outputs import check_writable, free_name, hold
from fairmp.training import defaults as usual

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.analysis.audits import Audit
    from fairmp.nn.fmp import Smoothing
    from fairmp.report.formats import Table


def option(help: str, default: Any = None, *names: str, **more: Any) -> Any:
    """Make an option: the default of a parameter, or with ``...`` part of its annotation."""
    return typer.Option(default, *names, help=help, **more)


def argument(help: str, default: Any = ..., **more: Any) -> Any:
    """Make a positional argument."""
    return typer.Argument(default, help=help, **more)


def panel(title: str) -> Callable[..., Any]:
    """Make options that are listed under a title."""
    return partial(option, rich_help_panel=title)


def _known_tracker(name: str | None) -> str | None:
    if name is not None:
        from fairmp.comparison import tracking

        tracking.check_tracker(name)
    return name


_BEGAN = time.perf_counter()
CRITERIA = ("demographic-parity", "equal-opportunity", "equalized-odds")
GATE_STATUS, GATE_ROUNDING = 3, 1e-9
# Options of debias and train that a point chosen on their page takes the place of.
CHOSEN_ON_PAGE = (
    *("--criterion", "--target", "--matrix", "--temperature", "--solver", "--lambda-f"),
    *("--out", "--save"),
)
_gate = panel("A gate for releases")
own, network = panel("Your own tables"), panel("Network and training")

DATA_HELP = (
    "A data set ('fairmp data list' names them), the 'embedded' network, or 'embedded:3000' for "
    "3,000 nodes of it."
)
Overwrite = Annotated[bool, option("Replace results of the same name.", ..., "--overwrite")]
SAFE_CSV = "Put ' before text that a spreadsheet would run as a formula (=, +, -, @), or not."
SafeCSV = Annotated[bool, option(SAFE_CSV, ..., "--safe-csv/--raw-csv")]
AsJson = Annotated[bool, option("Print JSON instead of a table.", ..., "--json")]
Seed = Annotated[int, option("Seed of initialisation and of the first split.", ..., min=0)]
Splits = Annotated[int, option("Number of splits.", ..., min=1)]
# Not typer's envvar: FAIRMP_DATA is searched in addition to the cache, this folder alone.
DATA_DIR = "Folder with the data sets' files; by default $FAIRMP_DATA, then the cache."
DataDir = Annotated[Path | None, option(DATA_DIR, ...)]
Names = list[str] | None
DataNames = Annotated[Names, option(f"{DATA_HELP} May be repeated.", ...)]
NODES = "Node table: separated text, JSON Lines, Parquet, Arrow; or sqlite:///people.db."
WORKERS = "Processes; by default one per core, at most 8."
Workers = Annotated[int | None, option(WORKERS, ..., min=1)]
Device = Annotated[str, network("cpu or cuda.", ...)]
Epochs = Annotated[int, network("Maximum number of epochs.", ...)]
Layers = Annotated[int, network("Number of layers.", ...)]
EvalEvery = Annotated[int, network("Epochs between two validations.", ...)]
PATIENCE = "Epochs without improvement; 0 for no stopping."
Patience = Annotated[int, network(PATIENCE, ..., min=0, metavar="<int>")]
Pretrain = Annotated[int, network("Epochs before the adversary is active.", ...)]
OUT = "Folder for the results; by default a new one named after the command."
TRACK = "Log the records to 'mlflow', where MLFLOW_TRACKING_URI says."
Track = Annotated[str | None, option(TRACK, ..., callback=_known_tracker)]
PROTOCOL = "Split of the literature instead of our own, over initialisations: 'nifty' or 'fairgnn'."
Protocol = Annotated[str | None, option(PROTOCOL, ...)]


def with_protocol(names: list[str] | None, protocol: str | None) -> list[str]:
    """Return names of data sets with the protocol they are used under."""
    return [f"{name}+{protocol}" if protocol else name for name in names or ["embedded"]]


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of options by an option per field."""
    hints = get_type_hints(command, include_extras=True)
    shared: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    types: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in shared:
            types |= get_type_hints(shared[name], include_extras=True)
            defaults |= {own.name: own.default for own in fields(shared[name])}
        else:
            types[name], defaults[name] = hints[name], parameter.default

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in shared.items():
            given[name] = group(**{own.name: given.pop(own.name) for own in fields(group)})
        command(**given)

    only = inspect.Parameter.KEYWORD_ONLY
    run.__annotations__ = types
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, only, default=d, annotation=types[n]) for n, d in defaults.items()]
    )
    return run


@dataclass(frozen=True)
class Results:
    """Where results go, and how they are printed."""

    out: Annotated[Path | None, option(OUT, ...)] = None
    overwrite: Overwrite = False
    as_json: AsJson = False

    def folder(self, name: str) -> Path:
        """Return the folder, checked and locked before any work is done for it."""
        folder = free_name(f"fairmp-{name}") if self.out is None else self.out
        hold(folder, overwrite=self.overwrite)
        return folder

    def staging(self, folder: Path) -> AbstractContextManager[Path]:
        """Give a directory to write to, which becomes the folder on success."""
        return outputs.results(folder, overwrite=self.overwrite)


@dataclass(frozen=True)
class Training:
    """Settings of training, with the same defaults in every command."""

    hidden: int = network("Hidden width.", usual.HIDDEN)
    layers: Layers = usual.NUM_LAYERS
    dropout: float = network("Dropout.", usual.DROPOUT)
    epochs: Epochs = usual.EPOCHS
    lr: float = network("Learning rate.", usual.LR)
    weight_decay: float = network("Weight decay.", usual.WEIGHT_DECAY)
    patience: Patience = usual.PATIENCE
    eval_every: EvalEvery = usual.EVAL_EVERY
    calibrate: bool = network("Fit temperature and bias to the validation labels.", True)
    paper: bool = network("The paper's settings, except for given options.", False, "--paper")
    device: Device = "cpu"

    def settle(self, context: typer.Context) -> dict[str, Any]:
        """Return all options, the paper's where none was typed; no patience is all epochs."""
        given = context.params
        for name, value in usual.PAPER.items() if self.paper else ():
            if not typed_here(context, "layers" if name == "num_layers" else name):
                given[name] = value
        given["patience"] = given["patience"] or None
        return given | {"num_layers": self.layers}


def typed_here(context: typer.Context, name: str) -> bool:
    """Whether an option was given, instead of its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def smoothing(text: str | float | None) -> Smoothing:
    """Parse the strength of the smoothing."""
    if text in (None, usual.LAMBDA_S):
        return usual.LAMBDA_S
    try:
        return float(text)
    except ValueError:
        raise InputError("--lambda-s", f"{text!r} is neither a number nor 'learned'") from None


@dataclass(frozen=True)
class Places:
    """Where a node and an edge table are."""

    nodes: Annotated[str | None, own(NODES, ...)] = None
    edges: Annotated[str | None, own("Edge table: two columns of node ids.", ...)] = None
    nodes_query: Annotated[str | None, own("Query of the node table, of a database.", ...)] = None
    edges_query: Annotated[str | None, own("Query of the edge table, of a database.", ...)] = None
    id: Annotated[str | None, own("Column with the node ids.", ..., "--id")] = None

    @contextmanager
    def paths(self) -> Iterator[tuple[Path | None, Path | None]]:
        """Give the files of both tables, each of which may be a query."""
        if not (self.nodes_query or self.edges_query or "://" in f"{self.nodes} {self.edges}"):
            yield Path(self.nodes) if self.nodes else None, Path(self.edges) if self.edges else None
            return
        from fairmp.datasets.databases import as_file

        with (
            as_file(self.nodes, self.nodes_query, "nodes") as nodes,
            as_file(self.edges, self.edges_query, "edges") as edges,
        ):
            yield nodes, edges


@dataclass(frozen=True)
class Tables(Places):
    """Your own tables."""

    label: Annotated[str | None, own("Column to predict; empty if unknown.", ...)] = None
    sensitive: Annotated[Names, own("Sensitive column; several are combined.", ...)] = None
    sensitive_bins: Annotated[
        str | None, own("Bin numeric groups: a number, or edges like '30,60'.", ...)
    ] = None
    drop: Annotated[Names, own("Column to leave out.", ...)] = None
    unknown: Annotated[Names, own("Value of labels and groups that means 'not known'.", ...)] = None
    categorical: Annotated[Names, own("Column of numbers that are categories.", ...)] = None
    weight: Annotated[str | None, own("Column of sample weights.", ...)] = None

    def given(self) -> bool:
        """Whether tables are named; raise if that is done in part."""
        if self.nodes is None and self.edges is None:
            for own in fields(Tables):
                if getattr(self, own.name):
                    value = "goes with --nodes and --edges"
                    raise InputError(_option(own.name), value, "give both")
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
        if self.weight is None:
            del found["weight"]
        with self.paths() as (nodes, edges), typed(id=self.id):
            yield found | {"nodes": nodes, "edges": edges}

    def without_weights(self) -> None:
        """Refuse sample weights, for commands that have no use for them."""
        if self.weight is not None:
            value = f"{self.weight!r}, but all nodes weigh the same here"
            raise InputError("--weight", value, f"leave it out; --drop {self.weight} drops it")

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


TABLES = [own.name for own in fields(Tables) if not own.name.endswith("_query")]


@dataclass(frozen=True)
class Graph(Tables):
    """A data set, or your own tables."""

    data: Annotated[str, option(DATA_HELP, ...)] = "embedded"
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


class Gap(NamedTuple):
    """A gap of decisions and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None


@dataclass(frozen=True)
class Gate:
    """The largest gap that passes."""

    fail_over: float | None = _gate(
        "Exit with status 3 if the gap of decisions exceeds this, 0.02 for two points."
    )
    fail_on: str = _gate(
        "What must not exceed it: the estimate, or the upper-bound of its interval.", "estimate"
    )

    def __post_init__(self) -> None:
        check_choice("--fail-on", self.fail_on, ("estimate", "upper-bound"))
        if self.fail_over is not None:
            hint = "give the largest gap that passes, 0.02 for two points"
            check_number("--fail-over", self.fail_over, hint, low=0, high=1)

    def check(self, *gaps: Gap) -> None:
        """Print one line and exit with status 3 if some gap exceeds the limit or is unknown."""
        if self.fail_over is None:
            return
        for name, estimate, interval in gaps:
            low, high = interval or (nan, nan)
            value = high if self.fail_on == "upper-bound" else estimate
            if value <= self.fail_over + GATE_ROUNDING:
                continue
            limit = f"--fail-over {self.fail_over:g} ({100 * self.fail_over:g} points)"
            measured = f"is {100 * estimate:.1f} points"
            if isnan(estimate):
                measured = f"cannot be measured here, as {limit} needs"
            elif isnan(value):
                measured += f" and has no upper bound, as {limit} needs"
            else:
                ends = "" if isnan(high) else f", 95 % interval {100 * low:.1f} to {100 * high:.1f}"
                measured += f"{ends}: over {limit}"
            typer.echo(f"fairmp: the gap of {name} {measured}", err=True)
            raise typer.Exit(GATE_STATUS)


@dataclass(frozen=True)
class CriterionGate(Gate):
    """The same with a criterion, for commands that have no such option of their own."""

    criterion: str = _gate(f"Its criterion: {', '.join(CRITERIA)}.", CRITERIA[0])

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("--criterion", self.criterion, CRITERIA)


def gap_of_evaluation(figures: Mapping[str, Any] | None, criterion: str) -> Gap:
    """The gap of a criterion in the figures of an evaluation."""
    from fairmp.metrics.evaluation import CRITERIA as KEYS
    from fairmp.metrics.evaluation import canonical

    name = canonical(criterion)
    key, found = KEYS[name], figures or {}
    estimate, interval = found.get(key), found.get("intervals", {}).get(key)
    ends = None if interval is None or None in interval else interval
    return Gap(name.replace("_", " "), nan if estimate is None else float(estimate), ends)


def gap_of_labels(audit: Audit) -> Gap:
    """The gap of the labels themselves, which a perfect classifier would have."""
    import numpy as np

    from fairmp.metrics.counts import gap_interval, rate_range

    known = [g for g in audit.groups if g.share is not None and g.base_rates is not None]
    if len(known) < 2:
        return Gap("the labels", nan, None)
    used = slice(1, 2) if len(audit.classes) == 2 else slice(None)
    rates = np.array([g.base_rates for g in known])[:, used]
    sizes = np.broadcast_to(np.array([[g.labelled] for g in known], dtype=float), rates.shape)
    return Gap("the labels", float(rate_range(rates).max()), gap_interval(rates, sizes))


def check_groups(graph: Data, split_seeds: Iterable[int]) -> None:
    """Raise if a part of some split has no node of a group, before anything is trained."""
    encoding = getattr(graph, "encoding", None)
    if encoding is None:
        return
    from fairmp.datasets.splits import split
    from fairmp.errors import plural

    for seed in split_seeds:
        parts = zip(("training", "validation", "test"), split(graph, seed=seed), strict=True)
        for (part, mask), (k, name) in product(parts, enumerate(graph.group_names)):
            if (graph.sens[mask] == k).any():
                continue
            columns = " × ".join(repr(column.column) for column in encoding.sensitive)
            count = plural(int(((graph.sens == k) & (graph.y >= 0)).sum()), "node")
            value = f"group {name!r} of {columns} has {count} with a known label and none among "
            hint = "merge it with another group in the table, or leave its cells empty (unknown)"
            raise InputError("--sensitive", f"{value}the {part} nodes of split {seed}", hint)


def must_be_folder(data_dir: Path | None) -> None:
    """Raise if the folder with the raw files does not exist."""
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise InputError("--data-dir", f"{data_dir} is no folder", "name that of the raw files")


@contextmanager
def typed(names: Mapping[str, str] | None = None, *, id: str | None = "") -> Iterator[None]:
    """Translate arguments in errors to options: those of tables, and ``names`` by argument."""
    names = {**{name: _option(name) for name in TABLES}, **(names or {})}
    try:
        yield
        return
    except InputError as error:
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
    raise type(found)(found.argument, value, hint.removeprefix("; "))


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


def rerun_command(*program: str) -> str:
    """Return the command that was typed, quoted for a shell, without passwords."""
    return shlex.join([*(program or ["fairmp"]), *map(without_password, sys.argv[1:])])


def adjustable_command(command: str, *, temperature: bool = False) -> str:
    """A command with placeholders for the criterion and target that readers of its page choose."""
    words: list[str] = []
    replaced = False  # whether the word is the value of an option that goes
    for word in shlex.split(command):
        option = word.partition("=")[0]
        if not replaced and option not in (*CHOSEN_ON_PAGE, "--overwrite"):
            words.append(word)
        replaced = word in CHOSEN_ON_PAGE
    chosen = " --criterion {criterion} --target {target}"
    return shlex.join(words) + chosen + (" --temperature {temperature}" if temperature else "")


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def track(tracker: str | None, records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Log records to a tracker, if one was named."""
    if tracker is not None:
        from fairmp.comparison import tracking

        count = tracking.log(records, folder, command=rerun_command())
        say(f"{count} run{'s' * (count != 1)} logged to {tracker}.")


def elapsed() -> float:
    """Seconds since the program began."""
    return time.perf_counter() - _BEGAN


def print_json(content: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(content, ensure_ascii=False))


def report(as_json: bool, record: Any, *parts: Any) -> None:
    """Print a record for programs, or parts for people."""
    print_json(record) if as_json else show(*parts)


def show(*parts: Any) -> None:
    """Print lines as they are, and text and tables of rich as wide as the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))


def check_file(option: str, path: Path, inputs: Iterable[Any] = (), *, overwrite: bool) -> None:
    """Refuse the name of a file that cannot be written, that exists, or that is an input."""
    if path.is_dir():
        raise InputError(option, f"{path} is a folder", "give the name of a file")
    if path.exists() and not overwrite:
        raise InputError(option, f"{path} exists", "give another name, or add --overwrite")
    with typed({"out": option}):
        check_writable(path.absolute().parent, beside=False)
    for table in inputs:
        if table and path.exists() and Path(table).exists() and path.samefile(table):
            raise InputError(option, f"{path} is an input table", "give another name")


def tables(found: Sequence[Table], *, leave_out: Sequence[str] = ()) -> list[Any]:
    """Tables for the terminal."""
    from fairmp.report.formats import rich_table

    return [rich_table(table.without(leave_out)) for table in found]


def open_page(folder: Path) -> str:
    """Say where the page is."""
    return f"Open {folder / 'report.html'}."
