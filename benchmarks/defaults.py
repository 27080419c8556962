"""Accuracy and fairness of ``FairClassifier()`` with all its defaults, on several splits.

Each graph and split is one job: a fit, measured on the test nodes in batch and in per-node
prediction. Run ``python -m benchmarks.defaults``; it writes ``benchmarks/results/defaults.json``.
With ``--npz FOLDER`` the graphs are read from files that ``experiments.graph_files FOLDER`` wrote,
which needs neither pandas nor the raw data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import provenance
from experiments.graph_files import read_graph
from fairmp import FairClassifier
from fairmp.datasets.splits import split
from fairmp.display import bar
from fairmp.parallel import WorkerPool
from fairmp.training.run import versions

GRAPHS = (
    *("nba", "german", "pokec-province", "bail", "credit"),
    *("facebook100", "pokec-n-graph"),
)
FIGURES = ("accuracy", "auc", "dp", "eo")
TARGETS = (0.01, 0.02, 0.05, 0.1, 1.0)  # of the trade-off curve; 1 corrects nothing


def bound(y: torch.Tensor, sens: torch.Tensor) -> float:
    """Highest accuracy of two-class decisions with equal rates in all groups, if all was known."""
    rates, counts = [], []
    for group in sens.unique():
        rates.append(float((y[sens == group] == 1).double().mean()))
        counts.append(int((sens == group).sum()))
    # The cost is piecewise linear in the common rate, with its corners at the base rates.
    costs = [sum(c * abs(b - r) for b, c in zip(rates, counts, strict=True)) for r in rates]
    return 1 - min(costs) / sum(counts)


def measure(
    npz: Path | None, data_dir: Path | None, settings: dict[str, Any], job: tuple[str, int]
) -> dict[str, Any]:
    """Fit on one split, and return what it shows."""
    name, number = job
    data = read_graph(name, npz, data_dir)
    start = time.perf_counter()
    model = FairClassifier(**settings)
    model.fit(data, seed=0, split_seed=number, bootstrap=0, progress=False)
    run = model.run_
    test = split(data, seed=number).test
    alone = model.evaluate(data, nodes=test, mode="per-node", bootstrap=0)
    layer, curve = model.network_.propagation, {}
    for target in TARGETS:
        layer.target = target
        other = model.evaluate(data, nodes=test, bootstrap=0)
        curve[target] = {figure: getattr(other, figure) for figure in FIGURES}
    y, sens = data.y[test], data.sens[test]
    return {
        "data": name,
        "split": number,
        "batch": {figure: getattr(run.test, figure) for figure in FIGURES},
        "per_node": {figure: getattr(alone, figure) for figure in FIGURES},
        "targets": curve,  # of the same model; it was trained and chosen with target 0
        "validation": {figure: getattr(run.val, figure) for figure in FIGURES},
        "one_node": 1 / int(torch.bincount(sens[sens >= 0]).min()),
        "base_rate_bound": bound(y, sens),
        "majority": float(torch.bincount(y).max()) / len(y),
        "seconds": time.perf_counter() - start,
        "gamma": list(getattr(model.network_.propagation, "gamma", ())),
        "tried": [trial.to_dict() for trial in run.tried],
    }


def summary(
    records: list[dict[str, Any]], modes: Sequence[str] = ("batch", "per_node")
) -> dict[str, Any]:
    """Return mean and 95 % interval (Student's t) over the splits of one graph."""
    from scipy.stats import t

    means: dict[str, Any] = {"splits": len(records)}
    for mode in modes:
        for figure in FIGURES:
            values = torch.tensor([record[mode][figure] for record in records]).double()
            mean, count = float(values.mean()), len(values)
            half = math.nan
            if count > 1:
                half = float(t.ppf(0.975, count - 1) * values.std() / count**0.5)
            interval = None if math.isnan(half) else [mean - half, mean + half]
            means[f"{mode} {figure}"] = {"mean": mean, "interval": interval}
    for figure in ("one_node", "base_rate_bound", "right_groups", "seconds"):
        if figure not in records[0]:
            continue
        means[figure] = sum(record[figure] for record in records) / len(records)
    return means


def main() -> None:
    """Run all jobs, and write records and summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--npz", type=Path, help="folder with graphs as .npz files")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--setting", action="append", default=[], help="another one, as lr=0.001")
    results = Path(__file__).parent / "results" / "defaults.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    settings: dict[str, Any] = {}
    for text in options.setting:
        key, _, value = text.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    os.environ["OMP_NUM_THREADS"] = "1"  # a process per core; inherited by the workers
    # The largest graphs come first, so that no worker is left with one at the end.
    splits = range(options.first, options.first + options.splits)
    jobs = [(name, number) for name in reversed(options.graphs) for number in splits]
    train = partial(measure, options.npz, options.data_dir, settings)
    records = []
    with WorkerPool(train, options.workers) as pool, bar(len(jobs), "fits") as advance:
        for (name, number), record in pool.map(jobs):
            records.append(record)
            batch, alone = record["batch"], record["per_node"]
            line = f"{name} {number}: {100 * batch['accuracy']:.2f} % ΔDP {100 * batch['dp']:.2f}"
            line += f"; per node {100 * alone['accuracy']:.2f} % ΔDP {100 * alone['dp']:.2f}"
            print(line, f"({record['seconds']:.0f} s)", flush=True)
            advance(name)
    records.sort(key=lambda record: (options.graphs.index(record["data"]), record["split"]))
    by_graph = {name: [r for r in records if r["data"] == name] for name in options.graphs}
    content = {
        **provenance("models"),
        "settings": settings,
        "config": FairClassifier(**settings).config(),
        "versions": versions(),
        "summary": {name: summary(graph_records) for name, graph_records in by_graph.items()},
        "records": records,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    for name, figures in content["summary"].items():
        cells = []
        for figure in ("batch accuracy", "batch dp", "per_node accuracy", "per_node dp"):
            low, high = figures[figure]["interval"] or (math.nan, math.nan)
            cells.append(f"{100 * figures[figure]['mean']:.2f} ± {50 * (high - low):.2f}")
        print(f"{name:16} {' | '.join(cells)} | bound {100 * figures['base_rate_bound']:.1f}")


if __name__ == "__main__":
    main()
