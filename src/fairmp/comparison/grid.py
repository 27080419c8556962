"""The comparison's cells: data set × backbone × strategy × strength × split × seed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import torch

from fairmp.comparison.runner import temperature
from fairmp.errors import InputError
from fairmp.nn.fmp import FMP, PPR, Solver
from fairmp.postprocessing.thresholds import BATCH, VALIDATION
from fairmp.training.classifier import FairClassifier
from fairmp.training.loop import Select
from fairmp.training.penalties import Adversary, Regulariser, Strategy

BACKBONES = {
    "mlp": "MLP",
    "gcn": "GCN",
    "gat": "GAT",
    "sgc": "SGC",
    "appnp": "APPNP",
    "ppr": "PPR",
    "fmp": "FMP",
}
"""Networks by name; ``ppr`` is ``fmp`` without its correction: an MLP and plain propagation."""

STRATEGIES = ("vanilla", "regulariser", "adversary", "thresholds-val", "thresholds-batch")
THRESHOLDS = {"thresholds-val": VALIDATION, "thresholds-batch": BATCH}

PENALTIES: dict[str, tuple[float, ...]] = {
    "regulariser": (0, 1, 2, 5, 8, 10, 20, 50, 80, 100),
    "adversary": (0, 1, 2, 5, 8, 10, 20, 30),
}
TARGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
PULLS = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 100.0, 1000.0)
PENALTY = 5.0

Strengths = Literal["default", "all"] | Sequence[float]


@dataclass(frozen=True)
class Setting:
    """What all cells of a comparison share.

    Attributes:
        epochs: epochs of training.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        hidden: width of the hidden layers.
        num_layers: layers of the transform.
        dropout: share of hidden units dropped in training.
        select: what the epoch kept is best at on the validation nodes.
        select_adversary: the same for an adversary, whose most accurate epochs are those in which
            it loses; so by default its last.
        eval_every: look at the validation nodes every so many epochs.
        K: propagation steps of ``ppr`` and ``fmp``.
        lambda_s: smoothing of ``ppr`` and ``fmp``.
        lambda_f: pull of ``fmp`` with ``papc`` or ``paper``.
        solver: of ``fmp``.
        target: largest gap ``fmp`` accepts.
        predict_temperature: τ of ``fmp`` at prediction, a number or ``"decisions"``.
        pretrain: epochs of the classifier before an adversary joins.
    """

    epochs: int = 200
    lr: float = 1e-2
    weight_decay: float = 1e-5
    hidden: int = 64
    num_layers: int = 2
    dropout: float = 0.0
    select: str = "accuracy"
    select_adversary: str = "last"
    eval_every: int = 5
    K: int = 5
    lambda_s: float = 3.0
    lambda_f: float = 1.0
    solver: str = "projection"
    target: float = 0.0
    predict_temperature: str = "decisions"
    pretrain: int = 70


@dataclass(frozen=True)
class RunSpec:
    """One training on one split, and what is done to its predictions.

    ``strength`` is the number its trade-off curve runs over: ``h`` of the regulariser and the
    adversary, the target of thresholds; of ``fmp`` without any of these its own target, or λ_f
    where its solver has one; else ``None``.

    Example:
        >>> cell = RunSpec("nba", "gcn", "regulariser", 5.0)
        >>> cell.name, cell.family, len(cell.key)
        ('GCN + regulariser h=5', 'GCN + regulariser', 20)
    """

    data: str
    backbone: str
    strategy: str = "vanilla"
    strength: float | None = None
    split: int = 0
    seed: int = 0
    setting: Setting = Setting()

    @property
    def key(self) -> str:
        """A name for exactly this cell, the same on every machine."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def family(self) -> str:
        """The method, whatever its strength."""
        title = BACKBONES[self.backbone]
        if self.backbone == "fmp" and self.setting.solver != "projection":
            title += f" ({self.setting.solver})"
        if self.strategy in THRESHOLDS:
            return f"{title} + {THRESHOLDS[self.strategy]}"
        return title if self.strategy == "vanilla" else f"{title} + {self.strategy}"

    @property
    def name(self) -> str:
        """The method with its strength."""
        if self.strength is None:
            return self.family
        if self.strategy in PENALTIES:
            symbol = "h"
        elif self.strategy in THRESHOLDS or self.setting.solver == "projection":
            symbol = "target"
        else:
            symbol = "λ_f"
        return f"{self.family} {symbol}={self.strength:g}"

    def training(self) -> RunSpec:
        """The cell whose network this one's predictions come from: thresholds train nothing."""
        if self.strategy not in THRESHOLDS:
            return self
        return replace(self, strategy="vanilla", strength=_own(self.backbone, self.setting))

    def to_dict(self) -> dict[str, Any]:
        """All of it as what JSON can say."""
        return asdict(self)


def cell_of(record: dict[str, Any]) -> RunSpec:
    """Make the cell a record was written for.

    Example:
        >>> cell = RunSpec("nba", "fmp", strength=0.02)
        >>> cell_of({"spec": cell.to_dict()}) == cell
        True
    """
    fields = dict(record["spec"])
    return RunSpec(**{**fields, "setting": Setting(**fields["setting"])})


def cells(
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
    """List the cells of a grid.

    Args:
        data: names of data sets, whatever the loader understands.
        backbones: of :data:`BACKBONES`.
        strategies: of :data:`STRATEGIES`.
        splits: how many splits, numbered from 0; the number is the split's seed.
        seeds: how many initialisations, numbered from 0.
        strengths: of regulariser and adversary: ``"default"`` (h = 5), ``"all"`` (each one's
            :data:`PENALTIES`), or numbers.
        targets: of ``fmp`` and thresholds: ``"default"`` (the setting's), ``"all"``
            (:data:`TARGETS`; of ``papc`` and ``paper`` :data:`PULLS`), or numbers. By default as
            ``strengths``, if that is a word.
        setting: what all cells share.

    Example:
        >>> [cell.name for cell in cells(["nba"], ["mlp", "fmp"], ["vanilla"], splits=1)]
        ['MLP', 'FMP target=0']
        >>> len(cells(["nba"], ["gcn"], ["regulariser"], splits=3, strengths="all"))
        30
    """
    setting = setting or Setting()
    _check(data, backbones, strategies, splits, seeds)
    if targets is None:
        targets = strengths if isinstance(strengths, str) else "default"
    found = [
        RunSpec(name, backbone, strategy, strength, split, seed, setting)
        for name in _once(data)
        for backbone in _once(backbones)
        for strategy in _once(strategies)
        for strength in _strengths(backbone, strategy, strengths, targets, setting)
        for split in range(splits)
        for seed in range(seeds)
    ]
    for cell in {replace(c, split=0, seed=0): c for c in found}.values():
        # A wrong setting is told before anything is trained.
        strategy = classifier(cell).strategy
        if strategy is not None and strategy.warmup >= setting.epochs:
            raise InputError(
                "epochs",
                f"{setting.epochs} end before the adversary joins, after {strategy.warmup}",
                "give more epochs, or a smaller pretrain",
            )
        if cell.strategy in THRESHOLDS:
            _check_target(cell.strength)
    return found


def classifier(cell: RunSpec, device: str | torch.device = "cpu") -> FairClassifier:
    """Make the classifier a cell trains.

    Example:
        >>> classifier(RunSpec("nba", "fmp", strength=0.02)).propagation.target
        0.02
    """
    cell = cell.training()
    setting = cell.setting
    propagation: PPR | None = None
    backbone = cell.backbone
    if cell.backbone == "ppr":
        propagation, backbone = PPR(setting.K, setting.lambda_s), "mlp"
    elif cell.backbone == "fmp":
        target, pull = setting.target, setting.lambda_f
        if cell.strategy == "vanilla" and cell.strength is not None:
            if setting.solver == "projection":
                target = cell.strength
            else:
                pull = cell.strength
        solver = cast(Solver, setting.solver)
        propagation = FMP(setting.K, setting.lambda_s, pull, solver, target)
        backbone = "mlp"
    strategy: Strategy | None = None
    if cell.strategy in PENALTIES:
        h = PENALTY if cell.strength is None else cell.strength
        strategy = (
            Regulariser(h)
            if cell.strategy == "regulariser"
            else Adversary(h, pretrain_classifier=setting.pretrain, lr=setting.lr)
        )
    adversarial = cell.strategy == "adversary"
    return FairClassifier(
        propagation,
        backbone=cast(Any, backbone),
        hidden=setting.hidden,
        num_layers=setting.num_layers,
        dropout=setting.dropout,
        epochs=setting.epochs,
        lr=setting.lr,
        weight_decay=setting.weight_decay,
        select=cast(Select, setting.select_adversary if adversarial else setting.select),
        eval_every=setting.eval_every,
        strategy=strategy,
        predict_temperature=temperature(setting.predict_temperature),
        device=device,
    )


def trainings(wanted: Iterable[RunSpec]) -> list[list[RunSpec]]:
    """Gather the cells that share one trained network, split by split.

    All methods of a split come before the next split, in an order that mixes data sets and methods:
    a run stopped early has a table of fewer splits, and the first few tell how long all will take.

    Example:
        >>> sorted(len(job) for job in trainings(cells(["nba"], ["mlp"], splits=1)))
        [1, 1, 3]
    """
    jobs: dict[RunSpec, list[RunSpec]] = {}
    for cell in wanted:
        jobs.setdefault(cell.training(), []).append(cell)
    order = sorted(jobs, key=lambda cell: (cell.seed, cell.split, cell.key))
    return [jobs[cell] for cell in order]


def listed(text: str, option: str, known: Iterable[str]) -> list[str]:
    """Read names with commas between; ``all`` are all.

    Example:
        >>> listed("mlp, fmp", "backbones", BACKBONES)
        ['mlp', 'fmp']
    """
    known = list(known)
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == ["all"]:
        return known
    for name in names:
        if name not in known:
            raise InputError(
                option, f"{name!r} is unknown", f"choose of {', '.join(known)}, or all"
            )
    return names


def numbers(text: str, option: str) -> Strengths:
    """Read ``default``, ``all``, or numbers with commas between.

    Example:
        >>> numbers("1,2.5", "strengths")
        [1.0, 2.5]
    """
    if text in ("default", "all"):
        return cast(Strengths, text)
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            option, f"{text!r} is neither 'default', 'all' nor numbers such as '1,2,5'"
        ) from None
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise InputError(option, f"{text!r} has a number that is no strength", "give 0 or more")
    return values


def _own(backbone: str, setting: Setting) -> float | None:
    """The strength a backbone has without any strategy."""
    if backbone != "fmp":
        return None
    return setting.target if setting.solver == "projection" else setting.lambda_f


def _strengths(
    backbone: str, strategy: str, strengths: Strengths, targets: Strengths, setting: Setting
) -> list[float | None]:
    if strategy in PENALTIES:
        return _listed(strengths, PENALTIES[strategy], PENALTY)
    if strategy in THRESHOLDS:
        return _listed(targets, TARGETS, setting.target)
    own = _own(backbone, setting)
    if own is None:
        return [None]
    return _listed(targets, TARGETS if setting.solver == "projection" else PULLS, own)


def _listed(asked: Strengths, every: Sequence[float], default: float) -> list[float | None]:
    if isinstance(asked, str):
        return [float(value) for value in (every if asked == "all" else (default,))]
    return [float(value) for value in _once(asked)]


def _once(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _check_target(target: float | None) -> None:
    if target is None or not 0 <= target <= 1:
        raise InputError(
            "targets",
            f"{target} is outside [0, 1]",
            "give the largest gap you accept, 0.02 for two points",
        )


def _check(
    data: Sequence[str],
    backbones: Sequence[str],
    strategies: Sequence[str],
    splits: int,
    seeds: int,
) -> None:
    for name, given, known in (
        ("backbones", backbones, tuple(BACKBONES)),
        ("strategies", strategies, STRATEGIES),
    ):
        for value in given:
            if value not in known:
                raise InputError(name, f"{value!r} is unknown", f"choose of {', '.join(known)}")
    for name, given in (("data", data), ("backbones", backbones), ("strategies", strategies)):
        if not given:
            raise InputError(name, "none given", "name at least one")
    for name, count in (("splits", splits), ("seeds", seeds)):
        if count < 1:
            raise InputError(name, f"{count} is too few", "give a whole number, 1 or more")
