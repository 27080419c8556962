"""The runs of a comparison: data set × method × strategy × strength × split × seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import torch

from fairmp.comparison.external import is_external, load_method
from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.nn.decisions import On
from fairmp.nn.fmp import Smoothing
from fairmp.training import defaults
from fairmp.training.classifier import FairClassifier, build_classifier

METHODS = {
    **{name: name.upper() for name in ("mlp", "gcn", "gat", "sgc", "appnp", "ppr", "fmp")},
    "auto": "FMP (auto)",
}
"""Titles by name: networks; ``ppr``, an MLP and plain propagation; ``fmp``, an MLP and FMP;
``auto``, FMP on the model that validation nodes choose."""
FAIR = ("fmp", "auto")

PER_NODE = "per-node"  # prediction of fmp with the correction found on validation nodes
STRATEGIES = (
    *("vanilla", "regulariser", "adversary", "thresholds-val", "thresholds-batch"),
    PER_NODE,
)
THRESHOLDS = {"thresholds-val": "thresholds (validation)", "thresholds-batch": "thresholds (batch)"}

PENALTIES: dict[str, tuple[float, ...]] = {
    "regulariser": (0, 1, 2, 5, 8, 10, 20, 50, 80, 100),
    "adversary": (0, 1, 2, 5, 8, 10, 20, 30),
}
TARGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
LAMBDAS_F = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 100.0, 1000.0)

Strengths = Literal["default", "all"] | Sequence[float]


@dataclass(frozen=True)
class Setting:
    """Hyperparameters that all runs of a comparison share; by default those of ``fairmp train``."""

    epochs: int = defaults.EPOCHS
    lr: float = defaults.LR
    weight_decay: float = defaults.WEIGHT_DECAY
    hidden: int = defaults.HIDDEN
    num_layers: int = defaults.NUM_LAYERS
    dropout: float = defaults.DROPOUT
    select: str = "accuracy"
    select_adversary: str = "last"  # its most accurate epochs are those in which it loses
    eval_every: int = defaults.EVAL_EVERY
    K: int = defaults.K  # of ppr and fmp, like lambda_s
    lambda_s: Smoothing = defaults.LAMBDA_S
    lambda_f: float = defaults.LAMBDA_F  # of fmp, like the three that follow
    solver: str = "projection"
    target: float = 0.0
    on: On = "decisions"
    pretrain: int = defaults.PRETRAIN  # epochs before an adversary is active
    patience: int | None = defaults.PATIENCE
    calibrate: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the setting as records store it."""
        return {_STORED.get(name, name): value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Setting:
        """Read a setting from a record, which may be older than some fields."""
        names = {stored_name: name for name, stored_name in _STORED.items()}
        values = {**_ADDED, **stored}
        return cls(**{names.get(name, name): value for name, value in values.items()})


# Names that fields of settings and specs have in records.
_STORED = {"on": "predict_temperature", "method": "backbone"}
# Fields of settings that older records lack, with the values they were made with.
_ADDED: dict[str, Any] = {"patience": None, "calibrate": True}


@dataclass(frozen=True)
class RunSpec:
    """One training on one split, and the post-processing of its predictions."""

    data: str
    method: str
    strategy: str = "vanilla"
    # h of regulariser and adversary, the target of thresholds and fmp, λ_f of other solvers.
    strength: float | None = None
    split: int = 0
    seed: int = 0
    setting: Setting = Setting()

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as records store it."""
        stored = {_STORED.get(name, name): value for name, value in vars(self).items()}
        return stored | {"setting": self.setting.to_dict()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunSpec:
        """Read a spec from a record."""
        spec = dict(stored)
        method, setting = spec.pop("backbone"), Setting.from_dict(spec.pop("setting"))
        return cls(method=method, setting=setting, **spec)

    @property
    def key(self) -> str:
        """Hash that identifies this run, the same on every machine and for older records."""
        spec = self.to_dict()
        for name, value in _ADDED.items():
            if spec["setting"][name] == value:
                del spec["setting"][name]
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def family(self) -> str:
        """Name of the method without its strength."""
        title = METHODS.get(self.method) or self.method.partition(":")[2]
        if self.method == "fmp" and self.setting.solver != "projection":
            title += f" ({self.setting.solver})"
        if self.strategy == PER_NODE:
            return f"{title}, per node"
        strategy = THRESHOLDS.get(self.strategy, self.strategy)
        return title if strategy == "vanilla" else f"{title} + {strategy}"

    @property
    def name(self) -> str:
        """Name of the method with its strength."""
        if self.strength is None:
            return self.family
        has_target = self.strategy in THRESHOLDS or self.setting.solver == "projection"
        symbol = "h" if self.strategy in PENALTIES else "target" if has_target else "λ_f"
        return f"{self.family} {symbol}={self.strength:g}"

    def training(self) -> RunSpec:
        """Return the run whose network this one's predictions come from."""
        if self.strategy == PER_NODE:
            return replace(self, strategy="vanilla")
        if self.strategy not in THRESHOLDS:
            return self
        return replace(self, strategy="vanilla", strength=_fmp_strength(self.method, self.setting))


def run_specs(
    data: Sequence[str],
    methods: Sequence[str] = tuple(METHODS),
    strategies: Sequence[str] = STRATEGIES,
    *,
    splits: int = 10,
    seeds: int = 1,
    strengths: Strengths = "default",
    targets: Strengths | None = None,
    setting: Setting | None = None,
) -> list[RunSpec]:
    """List the runs of a grid; targets follow the strengths where those are a word."""
    setting = setting or Setting()
    _check_names("data", data, data)
    _check_names("methods", methods, [*METHODS, *filter(is_external, methods)])
    _check_names("strategies", strategies, STRATEGIES)
    check_integer("splits", splits, "give a number of splits, 1 or more")
    check_integer("seeds", seeds, "give a number of initialisations, 1 or more")
    if targets is None:
        targets = strengths if isinstance(strengths, str) else "default"
    specs = [
        RunSpec(name, method, strategy, strength, split, seed, setting)
        for name in dict.fromkeys(data)
        for method in dict.fromkeys(methods)
        for strategy in dict.fromkeys(strategies)
        for strength in _strengths(method, strategy, strengths, targets, setting)
        for split in range(splits)
        for seed in range(seeds)
    ]
    if not specs:
        value = f"{', '.join(strategies)} with {', '.join(methods)} has no runs"
        raise InputError("strategies", value, "per-node needs fmp with the projection")
    for spec in {replace(spec, split=0, seed=0): spec for spec in specs}.values():
        _check_settings(spec)
    return specs


def _check_names(argument: str, names: Sequence[str], choices: Iterable[str]) -> None:
    if not names:
        raise InputError(argument, "none given", "name at least one")
    for name in names:
        check_choice(argument, name, list(choices))


def _check_settings(spec: RunSpec) -> None:
    """Report a wrong setting before anything is trained."""
    if is_external(spec.method):
        load_method(spec.method)
        return
    classifier(spec)
    if spec.strategy in THRESHOLDS:
        hint = "give the largest gap you accept in [0, 1], 0.02 for two points"
        check_number("targets", spec.strength, hint, low=0, high=1)


def classifier(spec: RunSpec, device: str | torch.device = "cpu") -> FairClassifier:
    """Build the classifier that a run trains."""
    spec = spec.training()
    setting: dict[str, Any] = {**asdict(spec.setting), "adversary_lr": spec.setting.lr}
    select_adversary = setting.pop("select_adversary")
    if spec.strategy == "adversary":
        setting["select"] = select_adversary
    if spec.strategy != "vanilla":
        setting["h"] = defaults.H if spec.strength is None else spec.strength
    elif spec.strength is not None:
        setting["target" if spec.setting.solver == "projection" else "lambda_f"] = spec.strength
    if spec.method not in FAIR:
        setting["solver"] = "plain" if spec.method == "ppr" else "none"
    backbone = "mlp" if spec.method in ("fmp", "ppr") else spec.method
    return build_classifier(backbone=backbone, strategy=spec.strategy, device=device, **setting)


def trainings(specs: Iterable[RunSpec]) -> list[list[RunSpec]]:
    """Group the runs that share one trained network."""
    jobs: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        jobs.setdefault(spec.training(), []).append(spec)
    # One split after the other, methods mixed: a table of fewer splits if it is stopped early.
    order = sorted(jobs, key=lambda spec: (spec.seed, spec.split, spec.key))
    return [jobs[spec] for spec in order]


def parse_names(argument: str, text: str, choices: Iterable[str]) -> list[str]:
    """Parse ``all``, or names separated by commas."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        check_choice(argument, name, [*choices, "all"])
    return list(choices) if names == ["all"] else names


def parse_strengths(argument: str, text: str) -> Strengths:
    """Parse ``default``, ``all``, or numbers separated by commas."""
    if text in ("default", "all"):
        return cast(Strengths, text)
    hint = "give default, all, or 1,2,5"
    try:
        return [check_number(argument, float(part), hint, low=0) for part in text.split(",")]
    except ValueError:
        raise InputError(argument, f"{text!r} is not a list of strengths", hint) from None


def _fmp_strength(method: str, setting: Setting) -> float | None:
    """Target or λ_f of a method without any strategy; None if it does not correct predictions."""
    if method not in FAIR:
        return None
    return setting.target if setting.solver == "projection" else setting.lambda_f


def _strengths(
    method: str, strategy: str, strengths: Strengths, targets: Strengths, setting: Setting
) -> list[float | None]:
    """The strengths a method is run with; none if the strategy does not suit it."""
    if is_external(method):
        return [None] if strategy == "vanilla" else []
    projects = method in FAIR and setting.solver == "projection"
    if strategy == PER_NODE and not projects:
        return []
    if method == "auto" and not (projects and strategy in ("vanilla", PER_NODE)):
        return []
    if strategy in PENALTIES:
        return _expand(strengths, PENALTIES[strategy], defaults.H)
    if strategy in THRESHOLDS:
        return _expand(targets, TARGETS, setting.target)
    strength = _fmp_strength(method, setting)
    if strength is None:
        return [None]
    return _expand(targets, TARGETS if projects else LAMBDAS_F, strength)


def _expand(wanted: Strengths, every: Sequence[float], default: float) -> list[float | None]:
    if isinstance(wanted, str):
        wanted = every if wanted == "all" else [default]
    return [float(value) for value in dict.fromkeys(wanted)]
