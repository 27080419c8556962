"""Search space of a method: the distribution of each setting, and the classifier they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from fairmp.errors import InputError, check_choice, check_integer
from fairmp.nn.fmp import SOLVERS
from fairmp.nn.models import BACKBONES as TRANSFORMS
from fairmp.nn.models import GAT_HEADS
from fairmp.training.classifier import FairClassifier, build_classifier

Value: TypeAlias = str | int | float
Settings: TypeAlias = dict[str, Value]
Space: TypeAlias = dict[str, BaseDistribution]
Criterion = Literal["dp", "eo"]

BACKBONES = ("fmp", "ppr", *TRANSFORMS)
STRATEGIES = ("vanilla", "regulariser", "adversary")
SYMBOLS: dict[str, str] = {"dp": "ΔDP", "eo": "ΔEO"}


@dataclass(frozen=True)
class Hyperparameter:
    """What a setting may be: numbers of an interval, words, and the solvers that use it."""

    default: Value
    interval: str = "[0, inf)"
    words: tuple[str, ...] = ()
    solvers: tuple[str, ...] = SOLVERS


HYPERPARAMETERS = {
    "solver": Hyperparameter("projection", words=SOLVERS),
    "target": Hyperparameter(0.0, "[0, 1]", solvers=("projection",)),
    "lambda_f": Hyperparameter(10.0, solvers=("papc", "paper")),
    "predict_temperature": Hyperparameter(
        "decisions", "(0, inf)", ("decisions",), solvers=("projection",)
    ),
    "lambda_s": Hyperparameter(3.0),
    "K": Hyperparameter(5, "[1, inf)"),
    "h": Hyperparameter(5.0),
    "hidden": Hyperparameter(64, "[1, inf)"),
    "lr": Hyperparameter(0.01, "(0, inf)"),
    "dropout": Hyperparameter(0.0, "[0, 1)"),
    "weight_decay": Hyperparameter(1e-5),
}
"""Settings in the order in which a trial samples them; the first trial takes the defaults."""


@dataclass(frozen=True)
class Method:
    """What all trials of a search share.

    Attributes:
        backbone: ``"fmp"`` (an MLP and fair propagation), ``"ppr"`` (an MLP and plain propagation),
            or a transform alone: ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"``, ``"appnp"``.
        strategy: ``"vanilla"``, ``"regulariser"`` or ``"adversary"``.
        epochs: maximum number of epochs.
        num_layers: layers of the transform.
        patience: stop after this many epochs without an improvement.
        eval_every: epochs between two evaluations on the validation nodes.
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
        check_choice("backbone", self.backbone, BACKBONES)
        check_choice("strategy", self.strategy, STRATEGIES)
        for name in ("epochs", "num_layers", "patience", "eval_every"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), "give a whole number, 1 or more")
        if self.strategy == "adversary" and not 0 <= self.pretrain < self.epochs:
            raise InputError(
                "epochs",
                f"{self.epochs} end before the adversary joins, after {self.pretrain}",
                "give more epochs, or a smaller pretrain",
            )

    @property
    def select(self) -> Literal["accuracy", "last"]:
        """Which epoch is kept; an adversary's most accurate epochs are those in which it loses."""
        return "last" if self.strategy == "adversary" else "accuracy"


def default_space(method: Method, limit: float | None, criterion: str = "dp") -> Space:
    """Return the default search space of a method.

    Args:
        method: what all trials share.
        limit: largest gap accepted, ``None`` for the whole front. Targets of FMP far above it
            would waste trials.
        criterion: the gap that is limited.

    Example:
        >>> list(default_space(Method("gcn", "regulariser"), 0.02))
        ['h', 'hidden', 'lr', 'dropout', 'weight_decay']
        >>> format_domain(default_space(Method(), 0.02)["target"])
        '0..0.04'
    """
    space: Space = {}
    if method.backbone == "fmp":
        widest = 0.3 if limit is None or criterion != "dp" else min(1.0, max(2 * limit, 0.02))
        space["solver"] = CategoricalDistribution(("projection", "papc"))
        space["target"] = FloatDistribution(0.0, widest)
        space["lambda_f"] = FloatDistribution(0.1, 100.0, log=True)
        space["predict_temperature"] = CategoricalDistribution(("decisions", 0.02, 0.1, 0.5))
    if method.backbone in ("fmp", "ppr"):
        space["lambda_s"] = FloatDistribution(0.3, 30.0, log=True)
        space["K"] = IntDistribution(1, 10)
    if method.strategy != "vanilla":
        largest = 100.0 if method.strategy == "regulariser" else 30.0
        space["h"] = FloatDistribution(0.1, largest, log=True)
    linear = method.backbone == "sgc"  # it has no hidden layer
    if not linear:
        space["hidden"] = CategoricalDistribution((16, 32, 64, 128))
    space["lr"] = FloatDistribution(1e-3, 0.1, log=True)
    if not linear:
        space["dropout"] = FloatDistribution(0.0, 0.7)
    space["weight_decay"] = FloatDistribution(1e-6, 1e-2, log=True)
    return space


def narrowed(space: Space, changes: Sequence[str], method: Method) -> Space:
    """Replace distributions by typed ones: a value, several with commas, or ``low..high``.

    Example:
        >>> space = default_space(Method("mlp"), None)
        >>> changed = narrowed(space, ["lr=0.01", "hidden=8,16"], Method("mlp"))
        >>> format_domain(changed["lr"]), format_domain(changed["hidden"])
        ('0.01', '8,16')
    """
    result = dict(space)
    for change in changes:
        name, given, text = (part.strip() for part in change.partition("="))
        if not given or not text:
            raise InputError(
                "space",
                f"{change!r} does not name a setting and its values",
                "write lr=0.01, hidden=16,64 or lambda_s=1..10",
            )
        if name not in space:
            raise InputError(
                "space", f"{name!r} is not searched", f"choose one of {', '.join(space)}"
            )
        result[name] = _parse(name, text, space[name])
    hidden = result.get("hidden")
    if method.backbone == "gat" and not (
        isinstance(hidden, CategoricalDistribution)
        and all(width % GAT_HEADS == 0 for width in hidden.choices)
    ):
        raise InputError(
            "space",
            f"hidden={'' if hidden is None else format_domain(hidden)} does not divide among the "
            f"{GAT_HEADS} heads of 'gat'",
            f"give multiples of {GAT_HEADS} with commas between",
        )
    return result


def suggest(trial: Trial, space: Space) -> Settings:
    """Sample every setting that applies: only the projection has a target, for example."""
    found: Settings = {}
    for name in _ordered(space):
        domain = space[name]
        if found.get("solver", SOLVERS[0]) not in HYPERPARAMETERS[name].solvers:
            continue
        if isinstance(domain, CategoricalDistribution):
            found[name] = trial.suggest_categorical(name, domain.choices)
        elif isinstance(domain, IntDistribution):
            found[name] = trial.suggest_int(name, domain.low, domain.high)
        else:
            assert isinstance(domain, FloatDistribution)
            value = trial.suggest_float(name, domain.low, domain.high, log=domain.log)
            found[name] = float(f"{value:.4g}")  # as many digits as anyone types
    return found


def first_settings(space: Space, limit: float | None) -> list[Settings]:
    """Settings to try first: the defaults, and the same with the largest target accepted.

    Example:
        >>> first_settings({"lr": FloatDistribution(1e-3, 0.1), "K": IntDistribution(6, 9)}, 0.02)
        [{'lr': 0.01}]
    """
    first: Settings = {}
    solver: Value = HYPERPARAMETERS["solver"].default
    for name in _ordered(space):
        domain, known = space[name], HYPERPARAMETERS[name]
        if isinstance(domain, CategoricalDistribution) and name == "solver" and domain.single():
            solver = str(domain.choices[0])
        if solver in known.solvers and not domain.single() and _contains(domain, known.default):
            first[name] = known.default
    if limit and "target" in first and _contains(space["target"], limit):
        return [first, first | {"target": limit}]
    return [first]


def classifier(method: Method, settings: Mapping[str, Any], device: str = "cpu") -> FairClassifier:
    """Build the classifier that a trial's settings describe.

    Example:
        >>> classifier(Method("ppr"), {"K": 3, "lambda_s": 1.0, "hidden": 16, "lr": 0.01})
        FairClassifier(PPR(K=3, lambda_s=1.0), backbone='mlp')
    """
    propagates = method.backbone in ("fmp", "ppr")
    solver = {"fmp": "projection", "ppr": "plain"}.get(method.backbone, "none")
    return build_classifier(
        **{"solver": solver, **settings},
        backbone="mlp" if propagates else method.backbone,
        strategy=method.strategy,
        pretrain=method.pretrain,
        num_layers=method.num_layers,
        epochs=method.epochs,
        patience=method.patience,
        eval_every=method.eval_every,
        select=method.select,
        device=device,
    )


def train_options(method: Method, settings: Mapping[str, Value], seed: int) -> dict[str, str]:
    """Options of ``fairmp train`` that train a trial's classifier on the first split.

    Example:
        >>> options = train_options(Method("gcn", "regulariser"), {"h": 2.0, "lr": 0.01}, seed=0)
        >>> options["solver"], options["backbone"], options["regulariser"]
        ('none', 'gcn', '2')
    """
    given = {name: format_value(value) for name, value in settings.items()}
    if given.get("predict_temperature") == "decisions":  # the default
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
    if isinstance(domain, CategoricalDistribution):
        return ",".join(format_value(value) for value in domain.choices)
    assert isinstance(domain, (IntDistribution, FloatDistribution))
    return f"{format_value(domain.low)}..{format_value(domain.high)}"


def format_value(value: Value) -> str:
    """Return a value as it is typed.

    Example:
        >>> format_value(5.0), format_value(1e-5), format_value("papc")
        ('5', '1e-05', 'papc')
    """
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if isinstance(value, float) and float(short) != value else short


def _ordered(space: Space) -> list[str]:
    return [name for name in HYPERPARAMETERS if name in space]


def _contains(domain: BaseDistribution, value: Value) -> bool:
    if isinstance(domain, CategoricalDistribution):
        return value in domain.choices
    assert isinstance(domain, (IntDistribution, FloatDistribution))
    return not isinstance(value, str) and domain.low <= value <= domain.high


def _parse(name: str, text: str, before: BaseDistribution) -> BaseDistribution:
    low, dots, high = text.partition("..")
    if not dots:
        parts = [_value(name, part.strip()) for part in text.split(",")]
        return CategoricalDistribution(tuple(dict.fromkeys(parts)))
    ends = _value(name, low.strip()), _value(name, high.strip())
    if isinstance(ends[0], str) or isinstance(ends[1], str):
        known = ", ".join(HYPERPARAMETERS[name].words)
        raise InputError(
            "space", f"{name}={text} is not a range", f"give words with commas ({known})"
        )
    if not ends[0] < ends[1]:
        raise InputError("space", f"{name}={text} is empty", "give the smaller number first")
    if isinstance(ends[0], int) and isinstance(ends[1], int):
        return IntDistribution(*ends)
    log = isinstance(before, FloatDistribution) and before.log and ends[0] > 0
    return FloatDistribution(*ends, log=log)


def _value(name: str, text: str) -> Value:
    """Parse one value of a setting, and check that it is one."""
    known = HYPERPARAMETERS[name]
    if text in known.words:
        return text
    if name == "solver":
        raise InputError(
            "space", f"solver={text!r} is unknown", f"choose one of {', '.join(SOLVERS)}"
        )
    integer = isinstance(known.default, int)
    try:
        value = int(text) if integer else float(text)
    except ValueError:
        kind = "a whole number" if integer else "a number"
        raise InputError("space", f"{name}={text!r} is not {kind}") from None
    low, high = (float(end) for end in known.interval[1:-1].split(","))
    above = value >= low if known.interval[0] == "[" else value > low
    below = value <= high if known.interval[-1] == "]" else value < high
    if not (above and below):
        outside = f"{name}={format_value(value)} is outside {known.interval}"
        raise InputError("space", outside, "give values inside")
    return value
