"""Time of ``debias``, and of a step of FMP, with many groups.

Seconds are of the processor, for one thread, after a first call that compiles; each is the smaller
of two runs. Peak memory is of the whole process so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import provenance
from fairmp import debias
from fairmp.groups import group_operator
from fairmp.nn.dual import shift_groups, solve_dual

SIZES = ((500, 20_000), (5_000, 60_000))
TARGETS = (0.0, 0.02)


def main() -> None:
    """Time every case, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    results = Path(__file__).parent / "results" / "many-groups.json"
    parser.add_argument("--out", type=Path, default=results)
    path = parser.parse_args().out
    warnings.simplefilter("ignore")  # of groups with few labels
    torch.set_num_threads(1)
    debias(*table(50, 1000, 1.0)[:2], kind="logits", on="probabilities")  # compiles
    rows = [*debias_rows(), *dual_rows()]
    record = {**provenance("models"), "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def table(groups: int, nodes: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of two classes, groups of two nodes or more, and labels."""
    rng = np.random.default_rng(0)
    group = np.r_[np.tile(np.arange(groups), 2), rng.integers(0, groups, nodes - 2 * groups)]
    z = rng.normal(size=(nodes, 2)) + 0.5 * rng.normal(size=(groups, 2))[group]
    return scale * z, group, rng.integers(0, 2, nodes)


def debias_rows() -> list[dict[str, Any]]:
    """Two classes: decisions, probabilities, and criteria on labels."""
    rows = []
    for groups, nodes in SIZES:
        cases = [
            ("decisions", "demographic_parity", 1.0),
            ("probabilities", "demographic_parity", 1.0),
            ("probabilities", "demographic_parity", 1e4),
            ("decisions", "equal_opportunity", 1.0),
            ("decisions", "equalized_odds", 1.0),
            ("probabilities", "equalized_odds", 1.0),
        ]
        for on, criterion, scale in cases:
            z, group, labels = table(groups, nodes, scale)
            y = None if criterion == "demographic_parity" else labels
            for target in TARGETS:
                seconds = timed(
                    lambda z=z, group=group, y=y, on=on, criterion=criterion, target=target: debias(
                        z, group, target=target, on=on, criterion=criterion, y=y, kind="logits"
                    )
                )
                rows.append(
                    {
                        "groups": groups,
                        "nodes": nodes,
                        "on": on,
                        "criterion": criterion,
                        "logits": scale,
                        "target": target,
                        "seconds": round(seconds, 2),
                        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def dual_rows() -> list[dict[str, Any]]:
    """A step of FMP: 24 nodes, 12 groups, 5 classes, logits of 10⁴."""
    rows = []
    delta = group_operator(torch.arange(24) % 12)
    generator = torch.Generator().manual_seed(0)
    z = 1e4 * torch.randn(24, 5, generator=generator, dtype=torch.float64)
    for target in (*TARGETS, 0.1):
        seconds = timed(lambda target=target: solve_dual(z, delta, target, 1.0))
        shifted = shift_groups(z, solve_dual(z, delta, target, 1.0))
        gap = float(delta.largest_gap(shifted.softmax(1)).max())
        case = {"step": "12 groups, 5 classes", "target": target}
        rows.append({**case, "seconds": round(seconds, 2), "gap": round(gap, 6)})
        print(rows[-1], flush=True)
    return rows


def timed(call: Callable[[], object]) -> float:
    """The smaller time of two calls."""
    times = []
    for _ in range(2):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
