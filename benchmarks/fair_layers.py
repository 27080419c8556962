"""Time the layer beside ``fairness-training``'s, which also holds a gap in its forward pass.

    pip install fairness-training cvxpy cvxpylayers diffcp
    OMP_NUM_THREADS=1 python -m benchmarks.fair_layers

Both take one score per row, two groups and no graph, and return predictions whose mean differs by
at most the target between the groups, with gradients. ``FairModel`` projects probabilities in the
Euclidean norm by a convex solver (cvxpylayers), whose problem is built in every call; ``FMP`` finds
the closest predictions in relative entropy. Forward and backward passes take turns in one process;
the fastest of each counts, in processor time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import provenance
from fairmp import FMP

ROWS = (500, 2_000, 8_000)
TARGET = 0.02
PACKAGES = ("fairness-training", "cvxpylayers", "cvxpy", "diffcp", "torch")


@dataclass(frozen=True)
class Task:
    """Scores of class 1 on the scale of logits, two groups, and the gradient of what follows."""

    logits: Tensor
    groups: Tensor
    gradient: Tensor

    @classmethod
    def draw(cls, rows: int, seed: int = 0) -> Task:
        """Draw scores whose means differ by about 15 points."""
        generator = torch.Generator().manual_seed(seed)
        groups = torch.randint(2, (rows,), generator=generator)
        logits = torch.randn(rows, generator=generator) + 0.75 * groups
        return cls(logits, groups, torch.randn(rows, generator=generator))

    def gap(self, predictions: Tensor) -> float:
        """Distance between the groups' mean predictions."""
        means = [predictions[self.groups == group].mean() for group in (0, 1)]
        return float(means[1] - means[0])


Layer = Callable[[Tensor], Tensor]


def fmp_layer(task: Task) -> Layer:
    """One step of ``FMP`` without edges, which is the projection alone."""
    layer = FMP(K=1, lambda_s=0.0, target=TARGET)
    no_edges = torch.empty(2, 0, dtype=torch.long)

    def predictions(logits: Tensor) -> Tensor:
        scores = torch.stack([torch.zeros_like(logits), logits], 1)
        return layer(scores, no_edges, task.groups).softmax(1)[:, 1]

    return predictions


def cvxpy_layer(task: Task) -> Layer:
    """``FairModel`` of fairness-training around the sigmoid; the group is its only column."""
    from fairness_training import FairModel  # type: ignore[import-not-found]

    network = _GivenScores(task.logits)
    model = FairModel.wrap(network, 0, 1, fairness_tolerance=TARGET, prediction_bounds=(0.0, 1.0))
    group_column = task.groups.float().unsqueeze(1)

    def predictions(logits: Tensor) -> Tensor:
        network.logits = logits
        fair: Tensor = model(group_column).squeeze(1)
        return fair

    return predictions


class _GivenScores(nn.Module):
    """A network whose scores are given: features that need gradients are refused."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits[: len(x), None].sigmoid()


@dataclass
class Times:
    """Milliseconds of each call of a layer, and the gap it leaves."""

    milliseconds: list[float]
    gap: float


def measure(layers: dict[str, Layer], task: Task, repeats: int) -> dict[str, Times]:
    """Time forward and backward passes of several layers by turns."""
    times = {name: Times([], float("nan")) for name in layers}
    for turn in range(repeats + 1):
        for name, layer in layers.items():
            logits = task.logits.clone().requires_grad_()
            begin = time.process_time()
            predictions = layer(logits)
            predictions.backward(task.gradient)
            milliseconds = 1e3 * (time.process_time() - begin)
            if turn:  # the first call compiles
                times[name].milliseconds.append(milliseconds)
            times[name].gap = abs(task.gap(predictions.detach()))
    return times


def compare(rows: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Measure both layers at each number of rows."""
    table = []
    for count in rows:
        task = Task.draw(count)
        layers = {"fairmp": fmp_layer(task), "fairness-training": cvxpy_layer(task)}
        times = measure(layers, task, repeats)
        best = {name: min(entry.milliseconds) for name, entry in times.items()}
        table.append(
            {
                "rows": count,
                "milliseconds": best,
                "ratio": best["fairness-training"] / best["fairmp"],
                "gap_before": abs(task.gap(task.logits.sigmoid())),
                "gap": {name: entry.gap for name, entry in times.items()},
            }
        )
        print(json.dumps(table[-1]), flush=True)
    return table


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=15)
    results = Path(__file__).parent / "results" / "fair-layers.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the convex solver, on its settings
    record = {
        **provenance("layer"),
        "versions": {package: version(package) for package in PACKAGES},
        "target": TARGET,
        "table": compare(ROWS, options.repeats),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
