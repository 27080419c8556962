"""What a search may try: the settings, their domains, and the classifier they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from fairmp.errors import InputError
from fairmp.nn.fmp import FMP, PPR, SOLVERS
from fairmp.nn.models import BACKBONES as TRANSFORMS
from fairmp.nn.models import GAT_HEADS
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Regulariser, Strategy

if TYPE_CHECKING:
    from optuna.trial import Trial

Value: TypeAlias = str | int | float
Settings: TypeAlias = dict[str, Value]
Criterion = Literal["dp", "eo"]

BACKBONES = ("fmp", "ppr", *TRANSFORMS)
STRATEGIES = ("vanilla", "regulariser", "adversary")
SYMBOLS: dict[str, str] = {"dp": "ΔDP", "eo": "ΔEO"}

_WHOLE = ("K", "hidden")
_WORDS: dict[str, tuple[str, ...]] = {"solver": SOLVERS, "predict_temperature": ("decisions",)}
_ORDER = (
    *("solver", "target", "lambda_f", "predict_temperature", "lambda_s", "K", "h"),
    *("hidden", "lr", "dropout", "weight_decay"),
)
# The least and the largest value there is, and whether each of the two is one itself.
_LIMITS: dict[str, tuple[float, float, bool, bool]] = {
    "target": (0, 1, True, True),
    "lambda_f": (0, math.inf, True, False),
    "predict_temperature": (0, math.inf, False, False),
    "lambda_s": (0, math.inf, True, False),
    "K": (1, math.inf, True, False),
    "h": (0, math.inf, True, False),
    "hidden": (1, math.inf, True, False),
    "lr": (0, math.inf, False, False),
    "dropout": (0, 1, True, False),
    "weight_decay": (0, math.inf, True, False),
}
_NEEDS = {
    "target": ("projection",),
    "predict_temperature": ("projection",),
    "lambda_f": ("papc", "paper"),
}
_USUAL: Settings = {
    "solver": "projection",
    "target": 0.0,
    "lambda_f": 10.0,
    "predict_temperature": "decisions",
    "lambda_s": 3.0,
    "K": 5,
    "h": 5.0,
    "hidden": 64,
    "lr": 0.01,
    "dropout": 0.0,
    "weight_decay": 1e-5,
}


@dataclass(frozen=True)
class Choices:
    """A setting that takes one of a few values, or always the same one."""

    values: tuple[Value, ...]

    def suggest(self, trial: Trial, name: str) -> Value:
        """Let a trial choose."""
        if len(self.values) == 1:
            return self.values[0]
        return cast(Value, trial.suggest_categorical(name, list(self.values)))

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ",".join(map(shown, self.values))


@dataclass(frozen=True)
class Range:
    """A setting that takes any value from ``low`` to ``high``, evenly or on a log scale."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def suggest(self, trial: Trial, name: str) -> Value:
        """Let a trial choose; four digits are as many as anyone types."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high))
        return float(f"{trial.suggest_float(name, self.low, self.high, log=self.log):.4g}")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{shown(self.low)}..{shown(self.high)}"


Space: TypeAlias = dict[str, Choices | Range]


@dataclass(frozen=True)
class Method:
    """What all trials of a search share.

    Attributes:
        backbone: ``"fmp"`` (an MLP and fair propagation), ``"ppr"`` (an MLP and plain propagation),
            or a transform alone: ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"``, ``"appnp"``.
        strategy: ``"vanilla"``, ``"regulariser"`` or ``"adversary"``.
        epochs: most epochs to train.
        num_layers: layers of the transform.
        patience: stop when that many epochs brought nothing better.
        eval_every: look at the validation nodes every so many epochs.
        pretrain: epochs of the classifier before an adversary joins.
    """

    backbone: str = "fmp"
    strategy: str = "vanilla"
    epochs: int = 300
    num_layers: int = 2
    patience: int | None = None
    eval_every: int = 1
    pretrain: int = 70

    def __post_init__(self) -> None:
        for name, value, known in (
            ("backbone", self.backbone, BACKBONES),
            ("strategy", self.strategy, STRATEGIES),
        ):
            if value not in known:
                raise InputError(name, f"{value!r} is unknown", f"choose one of {', '.join(known)}")
        for name in ("epochs", "num_layers", "eval_every"):
            if getattr(self, name) < 1:
                raise InputError(
                    name, f"{getattr(self, name)} is too few", "give a whole number, 1 or more"
                )
        if self.patience is not None and self.patience < 1:
            raise InputError("patience", f"{self.patience} epochs is too few", "give 1 or more")
        if self.strategy == "adversary" and not 0 <= self.pretrain < self.epochs:
            raise InputError(
                "epochs",
                f"{self.epochs} end before the adversary joins, after {self.pretrain}",
                "give more epochs, or a smaller pretrain",
            )

    @property
    def select(self) -> Literal["accuracy", "last"]:
        """Which epoch is kept: choosing by accuracy would keep those in which an adversary loses.

        Example:
            >>> Method().select, Method(strategy="adversary").select
            ('accuracy', 'last')
        """
        return "last" if self.strategy == "adversary" else "accuracy"


def default_space(method: Method, limit: float | None, criterion: str = "dp") -> Space:
    """Say what is searched for a method unless the user says otherwise.

    Args:
        method: what all trials share.
        limit: the largest gap accepted, ``None`` for the whole front. A target of FMP far above it
            would be a waste of trials.
        criterion: the gap meant.

    Example:
        >>> list(default_space(Method("gcn", "regulariser"), 0.02))
        ['h', 'hidden', 'lr', 'dropout', 'weight_decay']
        >>> str(default_space(Method(), 0.02)["target"])
        '0..0.04'
    """
    space: Space = {}
    if method.backbone == "fmp":
        widest = 0.3 if limit is None or criterion != "dp" else min(1.0, max(2 * limit, 0.02))
        space["solver"] = Choices(("projection", "papc"))
        space["target"] = Range(0.0, widest)
        space["lambda_f"] = Range(0.1, 100.0, log=True)
        space["predict_temperature"] = Choices(("decisions", 0.02, 0.1, 0.5))
    if method.backbone in ("fmp", "ppr"):
        space["lambda_s"] = Range(0.3, 30.0, log=True)
        space["K"] = Range(1, 10, whole=True)
    if method.strategy != "vanilla":
        space["h"] = Range(0.1, 100.0 if method.strategy == "regulariser" else 30.0, log=True)
    if method.backbone != "sgc":  # linear: it has no hidden layer
        space["hidden"] = Choices((16, 32, 64, 128))
    space["lr"] = Range(1e-3, 0.1, log=True)
    if method.backbone != "sgc":
        space["dropout"] = Range(0.0, 0.7)
    space["weight_decay"] = Range(1e-6, 1e-2, log=True)
    return space


def narrowed(space: Space, changes: Sequence[str]) -> Space:
    """Replace domains by what was typed: a value, values with commas between, or ``low..high``.

    Example:
        >>> space = default_space(Method("mlp"), None)
        >>> {k: str(v) for k, v in narrowed(space, ["lr=0.01", "hidden=8,16"]).items()}
        {'hidden': '8,16', 'lr': '0.01', 'dropout': '0..0.7', 'weight_decay': '1e-06..0.01'}
    """
    result = dict(space)
    for change in changes:
        name, given, text = (part.strip() for part in change.partition("="))
        if not given or not text:
            raise InputError(
                "space",
                f"{change!r} names no setting and its values",
                "give such as lr=0.01, hidden=16,64 or lambda_s=1..10",
            )
        if name not in space:
            raise InputError(
                "space", f"{name!r} is not searched here", f"choose of {', '.join(space)}"
            )
        result[name] = _domain(name, text, space[name])
    return result


def check(space: Space, method: Method) -> None:
    """Raise if a space has a value that is none of its setting's, before anything is trained."""
    for name, domain in space.items():
        for value in (domain.low, domain.high) if isinstance(domain, Range) else domain.values:
            _check_value(name, value)
        if name == "hidden" and method.backbone == "gat" and not _divide(domain):
            raise InputError(
                "space",
                f"hidden={domain} does not divide among the {GAT_HEADS} heads of 'gat'",
                f"give multiples of {GAT_HEADS} with commas between",
            )


def suggest(trial: Trial, space: Space) -> Settings:
    """Let a trial choose every setting that applies: a target is the projection's alone."""
    found: Settings = {}
    for name in sorted(space, key=_ORDER.index):
        if name not in _NEEDS or found["solver"] in _NEEDS[name]:
            found[name] = space[name].suggest(trial, name)
    return found


def guesses(space: Space, limit: float | None) -> list[Settings]:
    """Settings to try first, as far as a space has a choice.

    The usual ones: with no gap, and with all of the gap that is accepted.

    Example:
        >>> guesses({"lr": Range(1e-3, 0.1, log=True), "hidden": Choices((8, 16))}, 0.02)
        [{'lr': 0.01}]
    """
    first: Settings = {}
    for name in sorted(space, key=_ORDER.index):
        domain, value = space[name], _USUAL[name]
        solver = first.get("solver", _only(space.get("solver")))
        fits = name not in _NEEDS or solver in _NEEDS[name]
        if fits and value in domain and _only(domain) is None:
            first[name] = value
    if limit and "target" in first and limit in space["target"]:
        return [first, first | {"target": limit}]
    return [first]


def classifier(method: Method, settings: Mapping[str, Any], device: str = "cpu") -> FairClassifier:
    """Make the classifier that a trial's settings describe.

    Example:
        >>> classifier(Method("ppr"), {"K": 3, "lambda_s": 1.0, "hidden": 16, "lr": 0.01})
        FairClassifier(PPR(K=3, lambda_s=1.0), backbone='mlp')
    """
    given = dict(settings)
    propagation: PPR | None = None
    if method.backbone in ("fmp", "ppr"):
        layer = FMP if method.backbone == "fmp" else PPR
        names = ("K", "lambda_s", "lambda_f", "solver", "target")
        propagation = layer(**{name: given.pop(name) for name in names if name in given})
    strategy: Strategy | None = None
    if "h" in given:
        h = given.pop("h")
        strategy = (
            Regulariser(h)
            if method.strategy == "regulariser"
            else Adversary(h, pretrain_classifier=method.pretrain)
        )
    return FairClassifier(
        propagation,
        backbone=cast(Any, "mlp" if propagation is not None else method.backbone),
        num_layers=method.num_layers,
        epochs=method.epochs,
        patience=method.patience,
        eval_every=method.eval_every,
        select=method.select,
        strategy=strategy,
        device=device,
        **given,
    )


def train_options(method: Method, settings: Mapping[str, Value], seed: int) -> dict[str, str]:
    """The options of ``fairmp train`` that train a trial's classifier on the first split.

    Example:
        >>> options = train_options(Method("gcn", "regulariser"), {"h": 2.0, "lr": 0.01}, seed=0)
        >>> options["solver"], options["backbone"], options["regulariser"]
        ('none', 'gcn', '2')
    """
    given = {name: shown(value) for name, value in settings.items()}
    if given.get("predict_temperature") == "decisions":  # as it is without the option
        del given["predict_temperature"]
    options = {"solver": given.pop("solver", "plain" if method.backbone == "ppr" else "none")}
    if "h" in given:
        options[method.strategy] = given.pop("h")
    if method.backbone not in ("fmp", "ppr"):
        options["backbone"] = method.backbone
    options |= {name.lower(): value for name, value in given.items()}
    options |= {"layers": str(method.num_layers), "epochs": str(method.epochs)}
    if method.patience is not None:
        options["patience"] = str(method.patience)
    if method.eval_every != 1:
        options["eval_every"] = str(method.eval_every)
    if method.strategy == "adversary":
        options |= {"pretrain": str(method.pretrain), "select": method.select}
    return options | {"splits": "1", "seed": str(seed)}


def python_code(model: FairClassifier) -> str:
    """Write the Python expression that makes an equal classifier, not yet fitted."""
    config = model.config() | {"strategy": model.strategy}
    del config["propagation"]
    arguments = ", ".join(f"{name}={value!r}" for name, value in config.items())
    return f"FairClassifier({model.propagation!r}, {arguments})"


def told(settings: Mapping[str, Value]) -> str:
    """Settings on one line.

    Example:
        >>> told({"solver": "papc", "lr": 0.01, "K": 3})
        'solver=papc lr=0.01 K=3'
    """
    return " ".join(f"{name}={shown(value)}" for name, value in settings.items())


def _domain(name: str, text: str, before: Choices | Range) -> Choices | Range:
    low, dots, high = text.partition("..")
    if not dots:
        parts = [part.strip() for part in text.split(",")]
        return Choices(tuple(dict.fromkeys(_value(name, part) for part in parts)))
    ends = (_value(name, low.strip()), _value(name, high.strip()))
    if isinstance(ends[0], str) or isinstance(ends[1], str):
        known = ", ".join(_WORDS[name])
        raise InputError("space", f"{name}={text} is no range", f"give words with commas ({known})")
    if not ends[0] < ends[1]:
        raise InputError("space", f"{name}={text} has no values", "give the smaller number first")
    log = isinstance(before, Range) and before.log and ends[0] > 0
    return Range(ends[0], ends[1], log=log, whole=name in _WHOLE)


def _value(name: str, text: str) -> Value:
    if name == "solver" or text in _WORDS.get(name, ()):
        return text
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise InputError("space", f"{name}={text!r} is not {kind}") from None


def _check_value(name: str, value: Value) -> None:
    if isinstance(value, str):
        if value not in _WORDS.get(name, ()):
            known = ", ".join(_WORDS.get(name, ()))
            raise InputError("space", f"{name}={value!r} is unknown", f"choose of {known}")
        return
    least, largest, has_least, has_largest = _LIMITS[name]
    above = value >= least if has_least else value > least
    below = value <= largest if has_largest else value < largest
    if not (above and below):
        ends = ("[" if has_least else "(") + f"{least:g}, {largest:g}" + "])"[not has_largest]
        raise InputError("space", f"{name}={shown(value)} is outside {ends}", "give values inside")


def _divide(domain: Choices | Range) -> bool:
    return isinstance(domain, Choices) and not any(int(v) % GAT_HEADS for v in domain.values)


def _only(domain: Choices | Range | None) -> Value | None:
    return domain.values[0] if isinstance(domain, Choices) and len(domain.values) == 1 else None


def shown(value: Value) -> str:
    """A value as people type it.

    Example:
        >>> shown(5.0), shown(1e-5), shown("papc")
        ('5', '1e-05', 'papc')
    """
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short
