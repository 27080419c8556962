"""Coverage of the intervals for gaps, in simulated cases whose truth is known.

Run ``python -m benchmarks.intervals``; it writes ``benchmarks/results/intervals.json``.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from fairmp.metrics import evaluate

SIZES = (20, 60, 200, 1000, 5000)  # nodes of all groups together
GROUPS = (2, 5)
GAPS = (0.0, 0.05, 0.15, 0.3)
BASE_RATES = (0.1, 0.3, 0.5, 0.65, 0.7)  # 5 × 2 × 4 × 5 = 200 cases
METRICS = ("dp", "eo", "odds")


def simulate(
    n: int, groups: int, gap: float, base: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decisions, labels and groups; every rate rises evenly by ``gap`` over the groups."""
    sens = np.r_[np.repeat(np.arange(groups), 2), rng.integers(0, groups, n - 2 * groups)]
    y = np.r_[np.tile([0, 1], groups), rng.integers(0, 2, n - 2 * groups)]
    rate = base + gap * sens / (groups - 1)
    return (rng.random(n) < rate).astype(int), y, sens


def main() -> None:
    """Simulate every case and write how often the truth is covered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    cases = []
    for k, (n, groups, gap, base) in enumerate(product(SIZES, GROUPS, GAPS, BASE_RATES)):
        rng = np.random.default_rng(k)
        covered, contained, width = dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0), 0.0
        for _ in range(arguments.repeats):
            pred, y, sens = simulate(n, groups, gap, base, rng)
            evaluation = evaluate(np.eye(2)[pred], y, sens, bootstrap=1)
            for key in METRICS:
                low, high = evaluation.intervals[key]
                covered[key] += low <= gap <= high
                contained[key] += low <= getattr(evaluation, key) <= high
            width += evaluation.intervals["dp"][1] - evaluation.intervals["dp"][0]
        cases.append(
            {
                "nodes": n,
                "groups": groups,
                "gap": gap,
                "base_rate": base,
                "coverage": {key: covered[key] / arguments.repeats for key in METRICS},
                "contains_estimate": {key: contained[key] / arguments.repeats for key in METRICS},
                "dp_width": width / arguments.repeats,
            }
        )
    coverage = [case["coverage"][key] for case in cases for key in METRICS]  # type: ignore[index]
    contains = [case["contains_estimate"][key] for case in cases for key in METRICS]  # type: ignore[index]
    summary = {
        "cases": len(cases),
        "repeats": arguments.repeats,
        "nominal": 0.95,
        "smallest_coverage": min(coverage),
        "mean_coverage": float(np.mean(coverage)),
        "smallest_share_that_contains_its_estimate": min(contains),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"summary": summary, "cases": cases}, indent=1) + "\n"
    (arguments.out / "intervals.json").write_text(text, encoding="utf-8")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
