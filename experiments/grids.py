"""Runs behind each table and figure of the paper that compares methods.

Needs neither pandas nor matplotlib, so that ``python -m experiments.bare_grid`` can run these grids
on a machine without them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.rivals.tuning import METHODS as RIVALS
from fairmp.comparison.grid import (
    LAMBDAS_F,
    METHODS,
    PENALTIES,
    TARGETS,
    RunSpec,
    Setting,
    Strengths,
    run_specs,
)
from fairmp.training.defaults import PAPER

RECORDED = Setting(epochs=200, weight_decay=1e-5, eval_every=5, lambda_s=3.0, patience=None)
"""The setting of the records that the documentation shows."""
QUICK = replace(RECORDED, epochs=50, pretrain=20)
PRINTED = Setting(
    **{field.name: PAPER[field.name] for field in fields(Setting) if field.name in PAPER}
)
"""The paper's setting."""
NETWORKS = tuple(name for name in METHODS if name != "auto")  # those of the paper, and PPR
SMOOTHING = (0.0, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 15.0, 20.0)
RUNTIME_EPOCHS, RUNTIME_RUNS = 200, 5
PAPERS_SOLVERS = ("paper", "released")  # the iteration as printed, and the authors' code
PAPERS_LAMBDA_F = 30.0  # of both, where it is not varied
Names = Sequence[str]


@cache
def printed() -> Any:
    """Return the figures printed in the paper."""
    return json.loads(Path(__file__).with_name("printed.json").read_text("utf8"))


def paper_key(data: str) -> str:
    """Name under which the paper has a data set, for any protocol or version of its files."""
    return data.partition("+")[0].removesuffix("-graph")


def table1(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every backbone without a strategy, over ten splits; quick: fewer epochs, two splits.

    FMP runs with the projection, as printed and as released. Data sets that the paper has are also
    run under its protocol, which is FairGNN's, and with its setting, with FairGNN and NIFTY.
    """
    splits = splits or (2 if quick else 10)
    own_protocol = [name for name in names if "+" not in name]
    in_paper = [
        f"{name}+fairgnn" for name in own_protocol if paper_key(name) in printed()["table1"]
    ]
    with_protocol = [name for name in names if "+" in name]
    specs: list[RunSpec] = []
    if own_protocol:
        specs += _vanilla(own_protocol, QUICK if quick else RECORDED, splits)
    if published_protocol := list(dict.fromkeys([*with_protocol, *in_paper])):
        setting = QUICK if quick else PRINTED
        specs += _vanilla(published_protocol, setting, splits)
        specs += _rivals(published_protocol, setting, splits)
    return specs


def _vanilla(names: Names, setting: Setting, splits: int) -> list[RunSpec]:
    """Every backbone without a strategy, and the paper's versions of FMP."""
    specs = run_specs(names, NETWORKS, ("vanilla",), splits=splits, setting=setting)
    return [*specs, *papers_fmp(names, setting, splits)]


def _rivals(names: Names, setting: Setting | None, splits: int) -> list[RunSpec]:
    """FairGNN and NIFTY, with and without their fairness part, in their authors' setting."""
    return run_specs(names, tuple(RIVALS.values()), ("vanilla",), splits=splits, setting=setting)


def papers_fmp(names: Names, setting: Setting, splits: int, seeds: int = 1) -> list[RunSpec]:
    """FMP as printed, and as the authors' public code computes it, in the same setting."""
    return [
        spec
        for solver in PAPERS_SOLVERS
        for spec in run_specs(
            names,
            ("fmp",),
            ("vanilla",),
            splits=splits,
            seeds=seeds,
            setting=papers_setting(setting, solver),
        )
    ]


def papers_setting(setting: Setting, solver: str = "paper") -> Setting:
    """The same setting with a solver of the paper's, by default its iteration as printed."""
    return replace(setting, solver=solver, lambda_f=PAPERS_LAMBDA_F)


def published(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Rows beside published ones: the protocol of NIFTY, five initialisations, our defaults."""
    splits = splits or (2 if quick else 5)
    setting = QUICK if quick else None
    methods = [
        (("mlp", "gcn", "ppr"), ("vanilla",)),
        (("ppr",), ("thresholds-val",)),
        (("fmp", "auto"), ("vanilla", "per-node")),
    ]
    specs = [
        spec
        for backbones, strategies in methods
        for spec in run_specs(names, backbones, strategies, splits=splits, setting=setting)
    ]
    specs += _rivals(names, setting, splits)
    return specs + papers_fmp(names, setting or Setting(), splits)


def pareto(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every strength of regulariser and adversary on the paper's networks and plain propagation.

    FMP runs with every target, and as printed with every λ_f. Fewer than five splits would give no
    interval of an area.
    """
    splits = splits or (2 if quick else 5)
    setting = QUICK if quick else RECORDED
    backbones = ("mlp", "gcn", "gat", "sgc") if quick else ("mlp", "gcn", "gat", "sgc", "ppr")
    strengths: Strengths = (2.0,) if quick else "all"
    targets = (0.0, 0.2) if quick else TARGETS
    lambdas_f = (0.0, 1000.0) if quick else LAMBDAS_F
    penalised = run_specs(
        names, backbones, tuple(PENALTIES), strengths=strengths, splits=splits, setting=setting
    )
    vanilla = ("vanilla",)
    fair = run_specs(names, ("fmp",), vanilla, targets=targets, splits=splits, setting=setting)
    fair += run_specs(
        names, ("fmp",), vanilla, targets=lambdas_f, splits=splits, setting=papers_setting(setting)
    )
    return [*penalised, *fair]


def hyperparameters(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """λ_f, target and λ_s varied one at a time, over three splits; quick: every third value.

    The paper prints γ = 1/(1+λ_f) where it means λ_s: read literally, both strengths are one.
    """
    splits = splits or (2 if quick else 3)
    every = 3 if quick else 1
    base = QUICK if quick else RECORDED

    def sweep(
        solver: str, backbone: str, targets: Strengths, lambda_s: float = 3.0
    ) -> list[RunSpec]:
        setting = replace(base, solver=solver, lambda_s=lambda_s)
        return run_specs(
            names, (backbone,), ("vanilla",), splits=splits, targets=targets, setting=setting
        )

    specs = sweep("paper", "fmp", LAMBDAS_F[::every])
    specs += sweep("papc", "fmp", LAMBDAS_F[::every])
    specs += sweep("projection", "fmp", TARGETS[::every])
    for lambda_s in SMOOTHING[::every]:
        specs += sweep("projection", "ppr", "default", lambda_s)
        specs += sweep("projection", "fmp", "default", lambda_s)
        specs += sweep("paper", "fmp", (10.0,), lambda_s)
        specs += sweep("papc", "fmp", (10.0,), lambda_s)
    for lambda_f in LAMBDAS_F[::every]:
        specs += sweep("paper", "fmp", (lambda_f,), lambda_f)
    return list(dict.fromkeys(specs))


def runtime(names: Names, quick: bool = False, epochs: int = RUNTIME_EPOCHS) -> list[RunSpec]:
    """Every backbone × strategy, five times; quick: once. Validation is evaluated once."""
    pretrain, seeds = 70 * epochs // RUNTIME_EPOCHS, 1 if quick else RUNTIME_RUNS
    setting = replace(RECORDED, epochs=epochs, eval_every=epochs, pretrain=pretrain)
    return [
        *run_specs(names, NETWORKS, splits=1, seeds=seeds, setting=setting),
        *papers_fmp(names, setting, splits=1, seeds=seeds),
    ]


Grid = Callable[..., list[RunSpec]]
GRIDS: dict[str, Grid] = {
    "table1": table1,
    "published": published,
    "pareto": pareto,
    "hyperparameters": hyperparameters,
}
