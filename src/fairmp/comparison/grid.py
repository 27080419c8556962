"""The runs of a comparison: data set × backbone × strategy × strength × split × seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast

import torch

from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.nn.fmp import On, Smoothing
from fairmp.training import defaults
from fairmp.training.classifier import FairClassifier, build_classifier

BACKBONES = {name: name.upper() for name in ("mlp", "gcn", "gat", "sgc", "appnp", "ppr", "fmp")}
BACKBONES["auto"] = "FMP (auto)"
"""Titles by name; ``ppr`` is ``fmp`` without its correction: an MLP and plain propagation;
``auto`` is ``fmp`` on the model that validation nodes choose."""
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
DEFAULT_H = 5.0

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
    K: int = 5  # of ppr and fmp, like lambda_s
    lambda_s: Smoothing = defaults.LAMBDA_S
    lambda_f: float = 1.0  # of fmp, like the three that follow
    solver: str = "projection"
    target: float = 0.0
    on: On = "decisions"
    pretrain: int = 70  # epochs before an adversary joins
    patience: int | None = defaults.PATIENCE
    calibrate: bool = True


ADDED: dict[str, Any] = {"patience": None, "calibrate": True}
"""Fields of :class:`Setting` that older records lack, with the values they were made with."""


@dataclass(frozen=True)
class RunSpec:
    """One training on one split, and the post-processing of its predictions."""

    data: str
    backbone: str
    strategy: str = "vanilla"
    # h of regulariser and adversary, the target of thresholds and fmp, λ_f of papc and paper.
    strength: float | None = None
    split: int = 0
    seed: int = 0
    setting: Setting = Setting()

    @property
    def key(self) -> str:
        """Hash that identifies this run, the same on every machine and for older records."""
        spec = asdict(self)
        for name, value in ADDED.items():
            if spec["setting"][name] == value:
                del spec["setting"][name]
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def family(self) -> str:
        """Name of the method without its strength."""
        title = BACKBONES[self.backbone]
        if self.backbone == "fmp" and self.setting.solver != "projection":
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
        target = self.strategy in THRESHOLDS or self.setting.solver == "projection"
        symbol = "h" if self.strategy in PENALTIES else "target" if target else "λ_f"
        return f"{self.family} {symbol}={self.strength:g}"

    def training(self) -> RunSpec:
        """Return the run whose network this one's predictions come from."""
        if self.strategy == PER_NODE:
            return replace(self, strategy="vanilla")
        if self.strategy not in THRESHOLDS:
            return self
        return replace(self, strategy="vanilla", strength=_own(self.backbone, self.setting))


def run_specs(
    data: Sequence[str],
    backbones: Sequence[str] = tuple(BACKBONES),
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
    axes = {"data": (data, data), "strategies": (strategies, STRATEGIES)}
    for argument, (names, known) in (axes | {"backbones": (backbones, BACKBONES)}).items():
        if not names:
            raise InputError(argument, "none given", "name at least one")
        for name in names:
            check_choice(argument, name, known)
    check_integer("splits", splits, "give a number of splits, 1 or more")
    check_integer("seeds", seeds, "give a number of initialisations, 1 or more")
    if targets is None:
        targets = strengths if isinstance(strengths, str) else "default"
    specs = [
        RunSpec(name, backbone, strategy, strength, split, seed, setting)
        for name in dict.fromkeys(data)
        for backbone in dict.fromkeys(backbones)
        for strategy in dict.fromkeys(strategies)
        for strength in _strengths(backbone, strategy, strengths, targets, setting)
        for split in range(splits)
        for seed in range(seeds)
    ]
    if not specs:
        value = f"{', '.join(strategies)} with {', '.join(backbones)} has no runs"
        raise InputError("strategies", value, "per-node is of fmp with the projection")
    # A wrong setting is reported before anything is trained.
    for spec in {replace(spec, split=0, seed=0): spec for spec in specs}.values():
        penalty = classifier(spec).strategy
        if penalty is not None and penalty.warmup >= setting.epochs:
            late = f"{setting.epochs} end before the adversary joins, after {penalty.warmup}"
            raise InputError("epochs", late, "give more epochs, or a smaller pretrain")
        if spec.strategy in THRESHOLDS:
            hint = "give the largest gap you accept in [0, 1], 0.02 for two points"
            check_number("targets", spec.strength, hint, low=0, high=1)
    return specs


def classifier(spec: RunSpec, device: str | torch.device = "cpu") -> FairClassifier:
    """Build the classifier that a run trains."""
    spec = spec.training()
    setting: dict[str, Any] = {**asdict(spec.setting), "adversary_lr": spec.setting.lr}
    last = setting.pop("select_adversary")
    if spec.strategy != "vanilla":
        setting["h"] = DEFAULT_H if spec.strength is None else spec.strength
    elif spec.strength is not None:
        setting["target" if spec.setting.solver == "projection" else "lambda_f"] = spec.strength
    if spec.strategy == "adversary":
        setting["select"] = last
    if spec.backbone not in FAIR:
        setting["solver"] = "plain" if spec.backbone == "ppr" else "none"
    backbone = "mlp" if spec.backbone in ("fmp", "ppr") else spec.backbone
    return build_classifier(backbone=backbone, strategy=spec.strategy, device=device, **setting)


def trainings(specs: Iterable[RunSpec]) -> list[list[RunSpec]]:
    """Group the runs that share one trained network."""
    jobs: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        jobs.setdefault(spec.training(), []).append(spec)
    # One split after the other, methods mixed: a table of fewer splits if it is stopped early.
    order = sorted(jobs, key=lambda spec: (spec.seed, spec.split, spec.key))
    return [jobs[spec] for spec in order]


def specs_of_options(data: Sequence[str], given: Mapping[str, Any]) -> list[RunSpec]:
    """List the runs that the options of a command describe, given by name as they were typed."""
    backbones = _parse_names("--backbones", given["backbones"], list(BACKBONES))
    strategies = _parse_names("--strategies", given["strategies"], list(STRATEGIES))
    axes = {name: given[name] for name in ("splits", "seeds")}
    for name in ("strengths", "targets"):
        if given[name] is not None:
            axes[name] = parse_strengths(given[name], f"--{name}")
    setting = {own.name: given[own.name] for own in fields(Setting) if own.name in given}
    return run_specs(data, backbones, strategies, **axes, setting=Setting(**setting))


def _parse_names(option: str, text: str, known: list[str]) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        check_choice(option, name, [*known, "all"])
    return known if names == ["all"] else names


def parse_strengths(text: str, option: str) -> Strengths:
    """Parse ``default``, ``all``, or numbers separated by commas."""
    if text in ("default", "all"):
        return cast(Strengths, text)
    hint = "give default, all, or 1,2,5"
    try:
        return [check_number("", float(part), hint, low=0) for part in text.split(",")]
    except ValueError:
        raise InputError(option, f"{text!r} is not a list of strengths", hint) from None


def _own(backbone: str, setting: Setting) -> float | None:
    """Strength of a backbone without any strategy."""
    if backbone not in FAIR:
        return None
    return setting.target if setting.solver == "projection" else setting.lambda_f


def _strengths(
    backbone: str, strategy: str, strengths: Strengths, targets: Strengths, setting: Setting
) -> list[float | None]:
    projects = backbone in FAIR and setting.solver == "projection"
    if (strategy == PER_NODE or backbone == "auto") and not projects:
        return []
    if backbone == "auto" and strategy not in ("vanilla", PER_NODE):
        return []
    given, default = targets, _own(backbone, setting)
    every: Sequence[float] = TARGETS if setting.solver == "projection" else LAMBDAS_F
    if strategy in PENALTIES:
        given, every, default = strengths, PENALTIES[strategy], DEFAULT_H
    elif strategy in THRESHOLDS:
        every, default = TARGETS, setting.target
    if default is None:
        return [None]
    if isinstance(given, str):
        return [float(value) for value in (every if given == "all" else (default,))]
    return [float(value) for value in dict.fromkeys(given)]
