"""Records of a comparison, as the experiments read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairmp.comparison import compare
from fairmp.comparison.grid import RunSpec, Setting

DP = {"MLP": 0.05, "GCN": 0.09, "GAT": 0.08, "SGC": 0.08, "APPNP": 0.07, "FMP": 0.001}


def records(data: str, dp: dict[str, float], noise: float = 0.002) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    runs = []
    for name, gap in dp.items():
        for split in range(5):
            method, _, solver = name.lower().rstrip(")").partition(" (")
            strength = 0.0 if method == "fmp" else None
            setting = Setting(solver=solver or "projection")
            spec = RunSpec(data, method, strength=strength, split=split, setting=setting)
            test = {"accuracy": 0.7 + noise * rng.normal(), "dp": gap + noise * rng.normal()}
            test |= {"eo": gap, "auc": 0.8, "f1": 0.6}
            run = {"test": test, "seconds": 1.0 + len(runs)}
            runs.append(compare._head(spec) | {"dataset": data.upper(), "run": run})
    return runs
