"""Measured points of small synthetic graphs."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from experiments.synthetic import OPERATORS
from experiments.synthetic_settings import COVARIANCES, GraphSetting, measure

SMALL = GraphSetting(n=500, rho=0.02, eps=0.8, c=0.5)


def few_panels() -> pd.DataFrame:
    moved = (("density", "rho", 0.02), ("nodes", "n", 400), ("ratio", "c", 0.6))
    return pd.DataFrame(
        measure(
            replace(SMALL, eps=eps, covariance=name, normalisation=operator, **{field: value}),
            seeds=2,
            series=series,
        )
        for operator in OPERATORS
        for name in COVARIANCES
        for series, field, value in moved
        for eps in (0.2, 0.9)
    )


def few_phases() -> pd.DataFrame:
    return pd.DataFrame(
        measure(replace(SMALL, eps=eps, rho=rho), seeds=2)
        for rho in (0.01, 0.05)
        for eps in (0.2, 0.5, 0.9)
    )


def few_depths() -> pd.DataFrame:
    return pd.DataFrame(
        measure(replace(SMALL, steps=steps, normalisation=normalisation), seeds=2)
        for normalisation in ("row", "symmetric")
        for steps in (1, 2)
    )
