"""Search space of a method: the distribution of each setting, and the classifier they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.distributions import CategoricalDistribution as Choice
from optuna.trial import Trial

from fairmp.errors import InputError, check_choice, check_integer
from fairmp.metrics.evaluation import TITLES
from fairmp.nn.decisions import ON
from fairmp.nn.fmp import SOLVERS
from fairmp.nn.models import BACKBONES, GAT_HEADS
from fairmp.training import defaults
from fairmp.training.classifier import FairClassifier, build_classifier

Value: TypeAlias = str | int | float
Settings: TypeAlias = dict[str, Value]
Space: TypeAlias = dict[str, BaseDistribution]
Criterion = Literal["dp", "eo"]

METHODS = ("fmp", "ppr", *BACKBONES)
STRATEGIES = ("vanilla", "regulariser", "adversary")
SYMBOLS = {key: TITLES[key] for key in ("dp", "eo")}
PROPAGATING = {"fmp": "projection", "ppr": "plain"}
"""Default solvers of the methods that propagate the output of an MLP."""

NONNEGATIVE, POSITIVE = (pd.Interval(0, math.inf, closed) for closed in ("left", "neither"))
COUNT = pd.Interval(1, math.inf, "left")
SHARE, FRACTION = (pd.Interval(0, 1, closed) for closed in ("both", "left"))


@dataclass(frozen=True)
class Hyperparameter:
    """A setting: default, domain searched, values allowed, and the methods that use it."""

    default: Value
    domain: BaseDistribution
    allowed: pd.Interval = NONNEGATIVE
    words: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS
    solvers: tuple[str, ...] = SOLVERS


_log = partial(FloatDistribution, log=True)
_fmp = partial(Hyperparameter, methods=("fmp",))
_propagating = partial(Hyperparameter, methods=tuple(PROPAGATING))
# A linear network has no hidden layer.
_layered = partial(Hyperparameter, methods=tuple(name for name in METHODS if name != "sgc"))
HYPERPARAMETERS: dict[str, Hyperparameter] = {
    "solver": _fmp("projection", Choice(("projection", "papc")), words=SOLVERS),
    "target": _fmp(0.0, FloatDistribution(0.0, 0.3), SHARE, solvers=("projection",)),
    "lambda_f": _fmp(defaults.LAMBDA_F, _log(0.1, 100.0), solvers=("papc", "paper", "released")),
    "on": _fmp("decisions", Choice(ON), words=ON, solvers=("projection",)),
    "lambda_s": _propagating(
        defaults.LAMBDA_S, Choice((defaults.LAMBDA_S, 0.3, 1.0, 3.0, 10.0)), words=("learned",)
    ),
    "K": _propagating(defaults.K, IntDistribution(1, 10), COUNT),
    "h": Hyperparameter(defaults.H, _log(0.1, 100.0)),
    "hidden": _layered(defaults.HIDDEN, Choice((16, 32, 64, 128)), COUNT),
    "lr": Hyperparameter(defaults.LR, _log(1e-3, 0.1), POSITIVE),
    "dropout": _layered(defaults.DROPOUT, FloatDistribution(0.0, 0.7), FRACTION),
    "weight_decay": Hyperparameter(defaults.WEIGHT_DECAY, _log(1e-6, 1e-2)),
}  # fmt: skip
"""Settings in the order in which a trial samples them; the first trial takes the defaults."""


@dataclass(frozen=True)
class Method:
    """What all trials of a search share."""

    name: str = "fmp"  # an MLP and fair propagation; "ppr": and plain; or a network alone
    strategy: str = "vanilla"  # or "regulariser" or "adversary"
    epochs: int = defaults.EPOCHS  # at most
    num_layers: int = defaults.NUM_LAYERS  # of the network
    patience: int | None = defaults.PATIENCE  # epochs without an improvement; None: all epochs
    eval_every: int = defaults.EVAL_EVERY  # epochs between two evaluations on validation nodes
    pretrain: int = defaults.PRETRAIN  # epochs of the classifier before an adversary is active

    def __post_init__(self) -> None:
        check_choice("method", self.name, METHODS)
        check_choice("strategy", self.strategy, STRATEGIES)
        check_integer("num_layers", self.num_layers, "give a whole number, 1 or more")
        classifier(self, {})  # which checks the other arguments

    @property
    def backbone(self) -> str:
        """The network: an MLP, if a propagation follows."""
        return "mlp" if self.name in PROPAGATING else self.name

    @property
    def select(self) -> Literal["accuracy", "last"]:
        """Which epoch is kept; an adversary's most accurate epochs are those in which it loses."""
        return "last" if self.strategy == "adversary" else "accuracy"


def default_space(method: Method, limit: float | None, criterion: str = "dp") -> Space:
    """Return the default search space of a method, with FMP's targets not far above a limit."""
    space = {
        name: hyperparameter.domain
        for name, hyperparameter in HYPERPARAMETERS.items()
        if method.name in hyperparameter.methods and (name != "h" or method.strategy != "vanilla")
    }
    if "target" in space and limit is not None and criterion == "dp":
        space["target"] = FloatDistribution(0.0, min(1.0, max(2 * limit, 0.02)))
    if method.strategy == "adversary":
        space["h"] = _log(0.1, 30.0)
    return space


def narrowed(space: Space, changes: Sequence[str], method: Method) -> Space:
    """Replace distributions by typed ones: a value, several with commas, or ``low..high``."""
    result = dict(space)
    for change in changes:
        name, equals, text = (part.strip() for part in change.partition("="))
        if not equals or not text:
            hint = "write lr=0.01, hidden=16,64 or lambda_s=1..10"
            raise InputError("space", f"{change!r} is not a setting and its values", hint)
        if name not in space:
            raise InputError("space", f"{name!r} is not searched", f"choose {', '.join(space)}")
        result[name] = _parse(name, text, space[name])
    hidden = result.get("hidden")
    widths = hidden.choices if isinstance(hidden, Choice) else [1]
    if method.name == "gat" and any(width % GAT_HEADS for width in widths):
        value = f"hidden={format_domain(hidden)} does not divide by the {GAT_HEADS} heads of 'gat'"
        raise InputError("space", value, f"give multiples of {GAT_HEADS} with commas between")
    return result


def suggest(trial: Trial, space: Space) -> Settings:
    """Sample every setting that applies: only the projection has a target, for example."""
    settings: Settings = {}
    for name, domain in space.items():
        if settings.get("solver", SOLVERS[0]) not in HYPERPARAMETERS[name].solvers:
            continue
        if isinstance(domain, Choice):
            settings[name] = trial.suggest_categorical(name, domain.choices)
        elif isinstance(domain, IntDistribution):
            settings[name] = trial.suggest_int(name, domain.low, domain.high)
        else:
            value = trial.suggest_float(name, domain.low, domain.high, log=domain.log)
            settings[name] = float(f"{value:.4g}")  # as many digits as anyone types
    return settings


def first_settings(space: Space, limit: float | None) -> list[Settings]:
    """Settings to try first: the defaults, and the same with the largest target accepted."""
    first: Settings = {}
    solver = HYPERPARAMETERS["solver"].default
    if "solver" in space and space["solver"].single():
        solver = space["solver"].choices[0]
    for name, domain in space.items():
        default = HYPERPARAMETERS[name].default
        applies = solver in HYPERPARAMETERS[name].solvers
        if applies and not domain.single() and _contains(domain, default):
            first[name] = default
    if limit and "target" in first and _contains(space["target"], limit):
        return [first, first | {"target": limit}]
    return [first]


def classifier(method: Method, settings: Mapping[str, Any], device: str = "cpu") -> FairClassifier:
    """Build the classifier that a trial's settings describe."""
    return build_classifier(
        **{"solver": PROPAGATING.get(method.name, "none"), **settings},
        strategy=method.strategy,
        pretrain=method.pretrain,
        backbone=method.backbone,
        num_layers=method.num_layers,
        epochs=method.epochs,
        patience=method.patience,
        eval_every=method.eval_every,
        select=method.select,
        device=device,
    )


def python_code(model: FairClassifier) -> str:
    """Return the Python expression of an equal, unfitted classifier."""
    config = model.config() | {"strategy": model.strategy}
    del config["propagation"]
    arguments = ", ".join(f"{name}={value!r}" for name, value in config.items())
    return f"FairClassifier({model.propagation!r}, {arguments})"


def format_settings(settings: Mapping[str, Value]) -> str:
    """Return settings on one line, ``solver=papc lr=0.01 K=3``."""
    return " ".join(f"{name}={format_value(value)}" for name, value in settings.items())


def format_domain(domain: BaseDistribution) -> str:
    """Return a distribution as it is typed, ``8,16`` or ``0.1..10``."""
    if isinstance(domain, Choice):
        return ",".join(format_value(value) for value in domain.choices)
    return f"{format_value(domain.low)}..{format_value(domain.high)}"


def format_value(value: Value) -> str:
    """Return a value as it is typed: ``5`` for 5.0, ``1e-05``, ``papc``."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _contains(domain: BaseDistribution, value: Value) -> bool:
    if isinstance(domain, Choice):
        return value in domain.choices
    return not isinstance(value, str) and domain.low <= value <= domain.high


def _parse(name: str, text: str, before: BaseDistribution) -> BaseDistribution:
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots:
        return Choice(tuple(dict.fromkeys(_value(name, part.strip()) for part in text.split(","))))
    ends = _value(name, low), _value(name, high)
    if isinstance(ends[0], str) or isinstance(ends[1], str):
        hint = f"give words with commas ({', '.join(HYPERPARAMETERS[name].words)})"
        raise InputError("space", f"{name}={text} is not a range", hint)
    if not ends[0] < ends[1]:
        raise InputError("space", f"{name}={text} is empty", "give the smaller number first")
    if isinstance(ends[0], int) and isinstance(ends[1], int):
        return IntDistribution(*ends)
    log = isinstance(before, FloatDistribution) and before.log and ends[0] > 0
    return FloatDistribution(*ends, log=log)


def _value(name: str, text: str) -> Value:
    """Parse one value of a setting, and check that it is one."""
    hyperparameter = HYPERPARAMETERS[name]
    words = hyperparameter.words
    if text in words:
        return text
    if name in ("solver", "on"):
        raise InputError("space", f"{name}={text!r} is unknown", f"choose {', '.join(words)}")
    integer = isinstance(hyperparameter.default, int)
    try:
        value = int(text) if integer else float(text)
    except ValueError:
        kind = "a whole number" if integer else "a number"
        raise InputError("space", f"{name}={text!r} is not {kind}") from None
    if value not in hyperparameter.allowed:
        outside = f"{name}={format_value(value)} is outside {hyperparameter.allowed}"
        raise InputError("space", outside)
    return value
