"""Options that several commands share, and the gate for releases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

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
Seed = Annotated[int, option("Seed for the initialisation and the first split.", ..., min=0)]
Splits = Annotated[int, option("Number of splits.", ..., min=1)]
# Not typer's envvar: FAIRMP_DATA is searched in addition to the cache, this folder alone.
DATA_DIR = "Folder with the data sets' files; by default $FAIRMP_DATA, then the cache."
DataDir = Annotated[Path | None, option(DATA_DIR, ...)]
Names = list[str] | None
DataNames = Annotated[Names, option(f"{DATA_HELP} May be repeated.", ...)]
EDGES = "Edge table: two columns of node ids; without one, nothing is propagated."
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
EDGE_SOURCE = "Source column of the edges; by default source, src, from, or the first."
EDGE_TARGET = "Target column of the edges; by default target, dst, to, or the second."
SENSITIVE_BINS = "Cut numbers into groups: how many, or cut points like '30,60'."


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
    edges: Annotated[
        str | None,
        table("Edge table: two columns of node ids. Without it nothing is propagated.", ...),
    ] = None
    nodes_query: Annotated[str | None, table("SQL query that returns the node table.", ...)] = None
    edges_query: Annotated[str | None, table("SQL query that returns the edge table.", ...)] = None
    id: Annotated[str | None, table("Column with the node ids.", ..., "--id")] = None
    edge_source: Annotated[str | None, table(EDGE_SOURCE, ...)] = None
    edge_target: Annotated[str | None, table(EDGE_TARGET, ...)] = None

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

    label: Annotated[str | None, table("Column to predict; empty cells are unknown.", ...)] = None
    positive: Annotated[
        str | None, table("Value of --label that is the good decision (class 1).", ...)
    ] = None
    sensitive: Annotated[Names, table("Sensitive column; repeat to cross several.", ...)] = None
    sensitive_bins: Annotated[str | None, table(SENSITIVE_BINS, ...)] = None
    drop: Annotated[Names, table("Column to leave out; repeatable.", ...)] = None
    unknown: Annotated[Names, table("Value of labels and groups that means 'not known'.", ...)] = (
        None
    )
    categorical: Annotated[Names, table("Column of numbers that are categories.", ...)] = None
    min_group: Annotated[
        int, table("Merge groups with fewer labelled nodes into one, 'other'.", ..., min=0)
    ] = 0
    weight: Annotated[str | None, table("Column of sample weights.", ...)] = None
    edge_weight: Annotated[str | None, table("Edge column with weights.", ...)] = None

    def has_tables(self) -> bool:
        """Whether tables are named; raise if that is done in part."""
        if self.nodes is None and self.edges is None:
            for field in fields(Tables):
                if getattr(self, field.name):
                    raise InputError(option_name(field.name), "needs --nodes", "give a table")
            return False
        needed = ("nodes", "label", "sensitive")
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
            "min_group": self.min_group,
        }
        for name in ("weight", "positive", "edge_source", "edge_target", "edge_weight"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
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


GATE_CRITERIA = (
    "demographic-parity",
    "equal-opportunity",
    "false-positive-rate-parity",
    "equalized-odds",
    "predictive-parity",
    "accuracy-parity",
    "calibration",
)
GATE_STATUS = 3  # of a program whose gap does not pass
GATE_ROUNDING = 1e-9
ONE_POINT = 0.01  # an excess of one node is rounding up to this
_gate = panel("A gate for releases")


@dataclass(frozen=True)
class Gap:
    """A gap or a ratio (nan if it cannot be measured) and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None
    one_node: float = 0.0  # what one node of the smallest group makes, for a gap that was closed

    @classmethod
    def of_evaluation(cls, figures: Mapping[str, Any] | None, criterion: str) -> Gap:
        """The gap of a criterion in the figures of an evaluation, if there is one."""
        from fairmp.metrics.evaluation import GAPS, canonical

        name = canonical(criterion, GAPS)
        return cls._of_figure(f"the gap of {name.replace('_', ' ')}", figures, GAPS[name])

    @classmethod
    def impact_ratio(cls, figures: Mapping[str, Any] | None) -> Gap:
        """The impact ratio in the figures of an evaluation, if there is one."""
        return cls._of_figure("the impact ratio", figures, "impact_ratio")

    @classmethod
    def _of_figure(cls, name: str, figures: Mapping[str, Any] | None, key: str) -> Gap:
        figures = figures or {}
        estimate, interval = figures.get(key), figures.get("intervals", {}).get(key)
        return cls(
            name,
            nan if estimate is None else float(estimate),
            None if interval is None or None in interval else interval,
        )


@dataclass(frozen=True)
class Gate:
    """A gate for releases: the exit status tells whether a gap is small enough."""

    fail_above: float | None = _gate(
        "Exit with status 3 if the gap of decisions exceeds this, 0.02 for two points."
    )
    fail_on: str = _gate(
        "What must be within the limit: 'estimate', or 'upper-bound' of its interval.",
        "estimate",
    )
    fail_below: Annotated[
        float | None,
        _gate("Exit with status 3 if the impact ratio is below this, 0.8 for four fifths.", ...),
    ] = None

    def __post_init__(self) -> None:
        check_choice("--fail-on", self.fail_on, ("estimate", "upper-bound"))
        if self.fail_above is not None:
            hint = "give the largest gap that passes, 0.02 for two points"
            check_number("--fail-above", self.fail_above, hint, low=0, high=1)
        if self.fail_below is not None:
            hint = "give the smallest impact ratio that passes, 0.8 for four fifths"
            check_number("--fail-below", self.fail_below, hint, low=0, high=1)

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.fail_above is not None or self.fail_below is not None

    def check(self, *gaps: Gap, impact_ratio: Gap | None = None) -> None:
        """Print one line and exit with status 3 if a figure is beyond its limit or unknown."""
        for gap in gaps if self.fail_above is not None else ():
            self._check_gap(gap, self.fail_above or 0.0)
        if self.fail_below is not None:
            ratio = impact_ratio or Gap("the impact ratio", nan, None)
            self._check_ratio(ratio, self.fail_below)

    def _check_gap(self, gap: Gap, limit: float) -> None:
        """A gap that was closed may exceed the limit by one node, if that is at most a point."""
        low, high = gap.interval or (nan, nan)
        value = high if self.fail_on == "upper-bound" else gap.estimate
        is_rounding = self.fail_on == "estimate" and gap.one_node <= ONE_POINT
        if value <= limit + GATE_ROUNDING:
            return
        if is_rounding and value <= limit + gap.one_node + GATE_ROUNDING:
            text = f"{gap.name}, {100 * gap.estimate:.2f} points, is within {100 * limit:g} up to"
            typer.echo(f"{text[0].upper()}{text[1:]} one node of the smallest group.", err=True)
            return
        option = f"--fail-above {limit:g} ({100 * limit:g} points)"
        measured = f"is {100 * gap.estimate:.1f} points"
        if not isnan(high):
            measured += f", 95 % interval {100 * low:.1f} to {100 * high:.1f}"
        if gap.one_node > ONE_POINT:
            measured += f" (one node of the smallest group is {100 * gap.one_node:.1f})"
        _fail(gap, value, measured, "over", option)

    def _check_ratio(self, ratio: Gap, limit: float) -> None:
        low, high = ratio.interval or (nan, nan)
        value = low if self.fail_on == "upper-bound" else ratio.estimate
        if value >= limit - GATE_ROUNDING:
            return
        measured = f"is {ratio.estimate:.2f}"
        if not isnan(low):
            measured += f", 95 % interval {low:.2f} to {high:.2f}"
        _fail(ratio, value, measured, "below", f"--fail-below {limit:g}")


def _fail(gap: Gap, value: float, measured: str, side: str, option: str) -> NoReturn:
    """Say why a figure does not pass, and exit."""
    if isnan(gap.estimate):
        reason = f"cannot be measured here, as {option} needs"
    elif isnan(value):
        reason = f"{measured} and has no bound, as {option} needs"
    else:
        reason = f"{measured}: {side} the limit of {option}"
    typer.echo(f"fairmp: {gap.name} {reason}", err=True)
    raise typer.Exit(GATE_STATUS)


def criterion_name(name: str) -> str:
    """The library's name of a criterion; errors list them as they are typed."""
    from fairmp.metrics.evaluation import CRITERIA, canonical

    try:
        return canonical(name)
    except InputError:
        names = ", ".join(criterion.replace("_", "-") for criterion in CRITERIA)
        raise InputError("--criterion", f"{name!r} is unknown", f"choose one of {names}") from None


@dataclass(frozen=True)
class CriterionGate(Gate):
    """The same with a criterion, for commands that have no such option of their own."""

    criterion: str = _gate(f"Criterion of the gate: {', '.join(GATE_CRITERIA)}.", GATE_CRITERIA[0])

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("--criterion", self.criterion, GATE_CRITERIA)
