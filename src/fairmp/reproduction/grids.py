"""Runs behind each table and figure of the paper that compares methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fairmp.comparison.grid import LAMBDAS_F, PENALTIES, TARGETS, RunSpec, Setting, run_specs

QUICK = Setting(epochs=50, pretrain=20)
SMOOTHING = (0.0, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 15.0, 20.0)
RUNTIME_EPOCHS = 200


def table1(
    names: Sequence[str], *, quick: bool = False, splits: int | None = None
) -> list[RunSpec]:
    """Every backbone without a strategy, over ten splits; quick: fewer epochs, two splits."""
    setting, splits = QUICK if quick else None, splits or (2 if quick else 10)
    return run_specs(names, strategies=("vanilla",), splits=splits, setting=setting)


def pareto(
    names: Sequence[str], *, quick: bool = False, splits: int | None = None
) -> list[RunSpec]:
    """Every strength of regulariser and adversary on plain networks, and every target of FMP."""
    shared: dict[str, Any] = {"splits": splits or (2 if quick else 3)}
    shared["setting"] = QUICK if quick else None
    backbones = ("mlp", "gcn") if quick else ("mlp", "gcn", "appnp", "ppr")
    strengths: Any = (0.0, 2.0, 10.0) if quick else "all"
    targets = (0.0, 0.05, 0.2) if quick else TARGETS
    return [
        *run_specs(names, backbones, tuple(PENALTIES), strengths=strengths, **shared),
        *run_specs(names, ("fmp",), ("vanilla",), targets=targets, **shared),
    ]


def hyperparameters(
    names: Sequence[str], *, quick: bool = False, splits: int | None = None
) -> list[RunSpec]:
    """λ_f, target and λ_s varied one at a time, over three splits; quick: every third value."""
    step, count = (3, splits or 2) if quick else (1, splits or 3)

    def swept(solver: str, backbone: str, targets: Any, lambda_s: float = 3.0) -> list[RunSpec]:
        setting = replace(QUICK if quick else Setting(), solver=solver, lambda_s=lambda_s)
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


def runtime(
    names: Sequence[str], *, quick: bool = False, epochs: int = RUNTIME_EPOCHS
) -> list[RunSpec]:
    """Every backbone × strategy, three times; quick: once. Validation is evaluated once."""
    pretrain = 70 * epochs // RUNTIME_EPOCHS
    setting = Setting(epochs=epochs, eval_every=epochs, pretrain=pretrain)
    return run_specs(names, splits=1, seeds=1 if quick else 3, setting=setting)


GRIDS: dict[str, Callable[..., list[RunSpec]]] = {
    "table1": table1,
    "pareto": pareto,
    "hyperparameters": hyperparameters,
}
