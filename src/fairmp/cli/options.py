"""Options that several commands share, and the gate for releases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fairmp import outputs
from fairmp.cli.output import option_name, typed_here
from fairmp.errors import InputError, check_choice, check_number
from fairmp.training import defaults

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.nn.fmp import Smoothing


def option(help: str, default: Any = None, *names: str, **settings: Any) -> Any:
    """Make an option: the default of a parameter, or with ``...`` part of its annotation."""
    return typer.Option(default, *names, help=help, **settings)


def argument(help: str, default: Any = ..., **settings: Any) -> Any:
    """Make a positional argument."""
    return typer.Argument(default, help=help, **settings)


def panel(title: str) -> Callable[..., Any]:
    """Make options that are listed under a title."""
    return partial(option, rich_help_panel=title)


def _check_tracker(name: str | None) -> str | None:
    if name is not None:
        from fairmp.comparison import tracking

        tracking.check_tracker(name)
    return name


table, network = panel("Your own tables"), panel("Network and training")

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
EvalEvery = Annotated[int, network("Validate every so many epochs.", ...)]
PATIENCE = "Stop after so many epochs without improvement; 0 trains all epochs."
Patience = Annotated[int, network(PATIENCE, ..., min=0, metavar="<int>")]
Pretrain = Annotated[int, network("Epochs before the adversary is active.", ...)]
OUT = "Folder for the results; by default a new one named after the command."
TRACK = "Log to MLflow ($MLFLOW_TRACKING_URI): 'mlflow'."
Track = Annotated[str | None, option(TRACK, ..., callback=_check_tracker)]
PROTOCOL = "Use a published split ('nifty', 'fairgnn') and vary the initialisation."
Protocol = Annotated[str | None, option(PROTOCOL, ...)]
SENSITIVE_BINS = "Bin numeric groups: a number, or edges like '30,60'."


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of options by an option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    types: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            types |= get_type_hints(groups[name], include_extras=True)
            values |= {field.name: field.default for field in fields(groups[name])}
        else:
            types[name], values[name] = hints[name], parameter.default

    @wraps(command)
    def run(**parsed: Any) -> None:
        for name, group in groups.items():
            parsed[name] = group(**{field.name: parsed.pop(field.name) for field in fields(group)})
        command(**parsed)

    only = inspect.Parameter.KEYWORD_ONLY
    run.__annotations__ = types
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, only, default=d, annotation=types[n]) for n, d in values.items()]
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
        folder = outputs.free_name(f"fairmp-{name}") if self.out is None else self.out
        outputs.hold(folder, overwrite=self.overwrite)
        return folder

    def staging(self, folder: Path) -> AbstractContextManager[Path]:
        """Yield the staging directory, which becomes the folder on success."""
        return outputs.results(folder, overwrite=self.overwrite)


@dataclass(frozen=True)
class Training:
    """Settings of training, with the same defaults in every command."""

    hidden: int = network("Hidden width.", defaults.HIDDEN)
    layers: Layers = defaults.NUM_LAYERS
    dropout: float = network("Dropout.", defaults.DROPOUT)
    epochs: Epochs = defaults.EPOCHS
    lr: float = network("Learning rate.", defaults.LR)
    weight_decay: float = network("Weight decay.", defaults.WEIGHT_DECAY)
    patience: Patience = defaults.PATIENCE
    eval_every: EvalEvery = defaults.EVAL_EVERY
    calibrate: bool = network("Fit temperature and bias to the validation labels.", True)
    paper: bool = network("Use the paper's settings where no option is given.", False, "--paper")
    device: Device = "cpu"

    def settle(self, context: typer.Context) -> dict[str, Any]:
        """Return all options, the paper's where none was typed; no patience is all epochs."""
        settings = {**context.params, "num_layers": self.layers}
        for name, value in defaults.PAPER.items() if self.paper else ():
            if not typed_here(context, "layers" if name == "num_layers" else name):
                settings[name] = value
        settings["patience"] = settings["patience"] or None
        return settings


def smoothing(text: str | float | None) -> Smoothing:
    """Parse the strength of the smoothing."""
    if text is None or text == defaults.LAMBDA_S:
        return defaults.LAMBDA_S
    try:
        return float(text)
    except ValueError:
        raise InputError("--lambda-s", f"{text!r} is neither a number nor 'learned'") from None


def parse_bins(text: str | None) -> int | list[float] | None:
    """Parse the number of bins of a sensitive column, or their edges."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")] if "," in text else int(text)
    except ValueError:
        value = f"{text!r} is neither a number of bins nor edges such as '30,60'"
        raise InputError("--sensitive-bins", value) from None


@dataclass(frozen=True)
class Places:
    """Where a node and an edge table are."""

    nodes: Annotated[str | None, table(NODES, ...)] = None
    edges: Annotated[str | None, table("Edge table: two columns of node ids.", ...)] = None
    nodes_query: Annotated[str | None, table("SQL query that returns the node table.", ...)] = None
    edges_query: Annotated[str | None, table("SQL query that returns the edge table.", ...)] = None
    id: Annotated[str | None, table("Column with the node ids.", ..., "--id")] = None

    @contextmanager
    def paths(self) -> Iterator[tuple[Path | None, Path | None]]:
        """Yield the files of both tables; queries are run first."""
        from fairmp.datasets.databases import as_file

        with (
            as_file(self.nodes, self.nodes_query, "nodes") as nodes,
            as_file(self.edges, self.edges_query, "edges") as edges,
        ):
            yield nodes, edges


@dataclass(frozen=True)
class Tables(Places):
    """Your own tables."""

    label: Annotated[str | None, table("Column to predict; empty if unknown.", ...)] = None
    sensitive: Annotated[Names, table("Sensitive column; several are crossed.", ...)] = None
    sensitive_bins: Annotated[str | None, table(SENSITIVE_BINS, ...)] = None
    drop: Annotated[Names, table("Column to leave out.", ...)] = None
    unknown: Annotated[Names, table("Value of labels and groups that means 'not known'.", ...)] = (
        None
    )
    categorical: Annotated[Names, table("Column of numbers that are categories.", ...)] = None
    weight: Annotated[str | None, table("Column of sample weights.", ...)] = None

    def has_tables(self) -> bool:
        """Whether tables are named; raise if that is done in part."""
        if self.nodes is None and self.edges is None:
            for field in fields(Tables):
                if getattr(self, field.name):
                    value = "needs --nodes and --edges"
                    raise InputError(option_name(field.name), value, "give both")
            return False
        needed = ("nodes", "edges", "label", "sensitive")
        for name in needed:
            if not getattr(self, name):
                hint = f"your own tables need {', '.join(map(option_name, needed))}"
                raise InputError(option_name(name), "missing", hint)
        return True

    @contextmanager
    def files(self) -> Iterator[dict[str, Any]]:
        """Yield the arguments of ``from_tables``; queries are run first."""
        sensitive = self.sensitive
        columns: dict[str, Any] = {
            "id": self.id,
            "label": self.label,
            "sensitive": sensitive[0] if sensitive and len(sensitive) == 1 else sensitive,
            "sensitive_bins": parse_bins(self.sensitive_bins),
            "drop": tuple(self.drop or ()),
            "unknown": self.unknown,
            "categorical": tuple(self.categorical or ()),
        }
        if self.weight is not None:
            columns["weight"] = self.weight
        with self.paths() as (nodes, edges):
            yield {"nodes": nodes, "edges": edges, **columns}

    def without_weights(self) -> None:
        """Refuse sample weights, for commands that have no use for them."""
        if self.weight is not None:
            value = f"{self.weight!r}, but all nodes weigh the same here"
            raise InputError("--weight", value, f"leave it out; --drop {self.weight} drops it")

    def fingerprint(self) -> str:
        """Name of the tables, different for other contents or columns."""
        from fairmp.datasets.by_name import name_of_tables

        with self.files() as arguments:
            return name_of_tables(**arguments)

    def load_tables(self, name: str = "") -> Data:
        """Load the tables; ``name`` is not used."""
        from fairmp.datasets.tables import from_tables

        with self.files() as arguments:
            return from_tables(**arguments)


@dataclass(frozen=True)
class Graph(Tables):
    """A data set, or your own tables."""

    data: Annotated[str, option(DATA_HELP, ...)] = "embedded"
    data_dir: DataDir = None

    def has_tables(self) -> bool:
        """Whether tables are named; raise if a data set is named too."""
        if (self.nodes or self.edges) and self.data.lower() != "embedded":
            value = f"{self.data!r} cannot be combined with --nodes and --edges"
            raise InputError("--data", value, "give one or the other")
        return super().has_tables()

    def load(self) -> Data:
        """Load the tables, the data set or the embedded network that the options name."""
        if self.has_tables():
            return self.load_tables()
        from fairmp.datasets.by_name import from_files

        return from_files(self.data, self.data_dir)


def with_protocol(names: list[str] | None, protocol: str | None) -> list[str]:
    """Return names of data sets with the protocol they are used under."""
    return [f"{name}+{protocol}" if protocol else name for name in names or ["embedded"]]


GATE_CRITERIA = ("demographic-parity", "equal-opportunity", "equalized-odds")
GATE_STATUS = 3  # of a program whose gap does not pass
GATE_ROUNDING = 1e-9
_gate = panel("A gate for releases")


@dataclass(frozen=True)
class Gap:
    """A gap of decisions (nan if it cannot be measured) and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None

    @classmethod
    def of_evaluation(cls, figures: Mapping[str, Any] | None, criterion: str) -> Gap:
        """The gap of a criterion in the figures of an evaluation, if there is one."""
        from fairmp.metrics.evaluation import CRITERIA, canonical

        name = canonical(criterion)
        key, figures = CRITERIA[name], figures or {}
        estimate, interval = figures.get(key), figures.get("intervals", {}).get(key)
        return cls(
            name.replace("_", " "),
            nan if estimate is None else float(estimate),
            None if interval is None or None in interval else interval,
        )


@dataclass(frozen=True)
class Gate:
    """A gate for releases: the exit status tells whether a gap is small enough."""

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
        for gap in gaps:
            problem = self._problem(gap, self.fail_over)
            if problem is not None:
                typer.echo(f"fairmp: the gap of {gap.name} {problem}", err=True)
                raise typer.Exit(GATE_STATUS)

    def _problem(self, gap: Gap, limit: float) -> str | None:
        """Why a gap does not pass, if it does not."""
        low, high = gap.interval or (nan, nan)
        value = high if self.fail_on == "upper-bound" else gap.estimate
        if value <= limit + GATE_ROUNDING:
            return None
        option = f"--fail-over {limit:g} ({100 * limit:g} points)"
        if isnan(gap.estimate):
            return f"cannot be measured here, as {option} needs"
        measured = f"is {100 * gap.estimate:.1f} points"
        if isnan(value):
            return f"{measured} and has no upper bound, as {option} needs"
        if not isnan(high):
            measured += f", 95 % interval {100 * low:.1f} to {100 * high:.1f}"
        return f"{measured}: over {option}"


@dataclass(frozen=True)
class CriterionGate(Gate):
    """The same with a criterion, for commands that have no such option of their own."""

    criterion: str = _gate(f"Its criterion: {', '.join(GATE_CRITERIA)}.", GATE_CRITERIA[0])

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("--criterion", self.criterion, GATE_CRITERIA)
