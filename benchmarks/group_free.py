"""Training without groups at prediction: ΔDP on test nodes against the target, and its cost.

    python -m benchmarks.group_free --splits 5 --out benchmarks/results/group-free.json

Plain propagation without a penalty, with the regulariser of weight 5, and with the Lagrange
multiplier at several targets; one MLP, one setting and the same splits for all. "noise" is the
standard deviation of a gap of 0 on so many test nodes, from sampling alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from fairmp import PPR, FairClassifier
from fairmp.datasets import load
from fairmp.training.penalties import Lagrangian, Regulariser, Strategy
from fairmp.training.trainer import versions

GRAPHS = ("nba", "german", "bail", "credit", "pokec-province", "facebook100")
SETTING = {
    "backbone": "mlp",
    "dropout": 0.0,
    "lr": 0.01,
    "weight_decay": 5e-4,
    "calibrate": False,
    "epochs": 300,
    "eval_every": 1,
    "patience": None,
}
METHODS: dict[str, Strategy | None] = {
    "no penalty": None,
    "regulariser, weight 5": Regulariser(5.0),
    "multiplier, target 0.02": Lagrangian(0.02),
    "multiplier, target 0.05": Lagrangian(0.05),
}


def trained(graph: str, method: str, split: int) -> dict[str, object]:
    """Train one method on one split."""
    data = load(graph)
    model = FairClassifier(PPR(5, 1.0), strategy=METHODS[method], **SETTING)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(data, seed=0, split_seed=split, bootstrap=0, progress=False)
        run = model.run_
    groups = [(group.count, group.rates[-1]) for group in run.test.groups]
    rate = sum(n * r for n, r in groups) / sum(n for n, _ in groups)
    return {
        "graph": graph,
        "method": method,
        "split": split,
        "accuracy": run.test.accuracy,
        "dp": run.test.dp,
        "eo": run.test.eo,
        "val_dp": run.val.dp,
        "noise": math.sqrt(rate * (1 - rate) * sum(1 / n for n, _ in groups)),
        "missed": any("no epoch met the target" in str(w.message) for w in caught),
        "seconds": time.perf_counter() - start,
    }


def summary(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Means over splits, with half the width of a 95 % interval (t distribution)."""
    from scipy.stats import t

    lines = []
    for graph, method in dict.fromkeys((row["graph"], row["method"]) for row in rows):
        matching = [row for row in rows if (row["graph"], row["method"]) == (graph, method)]
        line: dict[str, object] = {"graph": graph, "method": method, "splits": len(matching)}
        for key in ("accuracy", "dp", "val_dp", "noise"):
            values = np.array([row[key] for row in matching], dtype=float)
            width = t.ppf(0.975, len(matching) - 1) * values.std(ddof=1) / math.sqrt(len(matching))
            line |= {key: round(values.mean(), 5), f"{key}_half_width": round(float(width), 5)}
        lines.append({**line, "missed": sum(bool(row["missed"]) for row in matching)})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/group-free.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for graph in options.graphs:
        for split in range(options.splits):
            rows += [trained(graph, method, split) for method in METHODS]
        record = {
            "command": f"python -m benchmarks.group_free {' '.join(sys.argv[1:])}".strip(),
            "setting": {**SETTING, "propagation": "PPR(K=5, lambda_s=1.0)"},
            "versions": versions(),
            "summary": summary(rows),
            "runs": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for line in summary(rows)[-len(METHODS) :]:
            print(
                f"{line['graph']:15} {line['method']:24} accuracy {100 * line['accuracy']:.1f}"  # type: ignore[operator]
                f" ± {100 * line['accuracy_half_width']:.1f}, ΔDP {100 * line['dp']:.1f}"  # type: ignore[operator]
                f" ± {100 * line['dp_half_width']:.1f} (noise {100 * line['noise']:.1f}),"  # type: ignore[operator]
                f" missed {line['missed']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
