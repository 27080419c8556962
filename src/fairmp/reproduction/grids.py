"""Runs behind each table and figure of the paper that compares methods; needs no pandas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fairmp.comparison.grid import (
    BACKBONES,
    LAMBDAS_F,
    PENALTIES,
    TARGETS,
    RunSpec,
    Setting,
    run_specs,
)
from fairmp.training.defaults import PAPER

RECORDED = Setting(epochs=200, weight_decay=1e-5, eval_every=5, lambda_s=3.0, patience=None)
"""The setting of the records that the documentation shows."""
QUICK = replace(RECORDED, epochs=50, pretrain=20)
PRINTED = Setting(**{one.name: PAPER[one.name] for one in fields(Setting) if one.name in PAPER})
NETWORKS = tuple(name for name in BACKBONES if name != "auto")  # those of the paper, and PPR
SMOOTHING = (0.0, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 15.0, 20.0)
RUNTIME_EPOCHS = 200
Names = Sequence[str]


@cache
def printed() -> Any:
    """Return the figures printed in the paper."""
    return json.loads(files(__package__).joinpath("printed.json").read_text("utf8"))


def paper_key(data: str) -> str:
    """Name under which the paper has a data set, for any protocol or version of its files."""
    return data.partition("+")[0].removesuffix("-graph")


def table1(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every backbone without a strategy, over ten splits; quick: fewer epochs, two splits."""
    count = splits or (2 if quick else 10)
    ours = [name for name in names if "+" not in name]
    own = [f"{name}+fairgnn" for name in ours if paper_key(name) in printed()["table1"]]
    theirs = list(dict.fromkeys([*(name for name in names if "+" in name), *own]))
    shared: dict[str, Any] = {"strategies": ("vanilla",), "splits": count}
    setting = QUICK if quick else RECORDED
    found = run_specs(ours, NETWORKS, **shared, setting=setting) if ours else []
    if theirs:  # the paper's protocol and setting; FMP with the projection, and as printed
        setting = QUICK if quick else PRINTED
        found += run_specs(theirs, NETWORKS, **shared, setting=setting)
        setting = replace(setting, solver="paper", lambda_f=30.0)
        found += run_specs(theirs, ("fmp",), **shared, setting=setting)
    return found


def published(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Rows beside published ones: the protocol of NIFTY, five initialisations, our defaults."""
    shared: Any = {"splits": splits or (2 if quick else 5), "setting": QUICK if quick else None}
    found = run_specs(names, ("mlp", "gcn", "ppr"), ("vanilla",), **shared)
    found += run_specs(names, ("ppr",), ("thresholds-val",), **shared)
    return [*found, *run_specs(names, ("fmp", "auto"), ("vanilla", "per-node"), **shared)]


def pareto(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every strength of regulariser and adversary on plain networks, and every target of FMP."""
    shared: Any = {"splits": splits or (2 if quick else 3), "setting": QUICK if quick else RECORDED}
    backbones = ("mlp", "gcn") if quick else ("mlp", "gcn", "appnp", "ppr")
    strengths: Any = (0.0, 2.0, 10.0) if quick else "all"
    targets = (0.0, 0.05, 0.2) if quick else TARGETS
    found = run_specs(names, backbones, tuple(PENALTIES), strengths=strengths, **shared)
    return [*found, *run_specs(names, ("fmp",), ("vanilla",), targets=targets, **shared)]


def hyperparameters(names: Names, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """λ_f, target and λ_s varied one at a time, over three splits; quick: every third value."""
    step, count = (3, splits or 2) if quick else (1, splits or 3)

    def swept(solver: str, backbone: str, targets: Any, lambda_s: float = 3.0) -> list[RunSpec]:
        setting = replace(QUICK if quick else RECORDED, solver=solver, lambda_s=lambda_s)
        shared: dict[str, Any] = {"targets": targets, "setting": setting}
        return run_specs(names, (backbone,), ("vanilla",), splits=count, **shared)

    found = [*swept("paper", "fmp", LAMBDAS_F[::step]), *swept("papc", "fmp", LAMBDAS_F[::step])]
    found += swept("projection", "fmp", TARGETS[::step])
    for lambda_s in SMOOTHING[::step]:
        found += swept("projection", "ppr", "default", lambda_s)
        found += swept("projection", "fmp", "default", lambda_s)
        found += swept("paper", "fmp", (10.0,), lambda_s)
        found += swept("papc", "fmp", (10.0,), lambda_s)
    return list(dict.fromkeys(found))


def runtime(names: Names, quick: bool = False, epochs: int = RUNTIME_EPOCHS) -> list[RunSpec]:
    """Every backbone × strategy, three times; quick: once. Validation is evaluated once."""
    pretrain = 70 * epochs // RUNTIME_EPOCHS
    setting = replace(RECORDED, epochs=epochs, eval_every=epochs, pretrain=pretrain)
    return run_specs(names, NETWORKS, splits=1, seeds=1 if quick else 3, setting=setting)


GRIDS: dict[str, Callable[..., list[RunSpec]]] = {
    "table1": table1,
    "published": published,
    "pareto": pareto,
    "hyperparameters": hyperparameters,
}
