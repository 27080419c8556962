"""Class-balanced training nodes: FMP in batch and per node, beside fairlearn.

    python -m benchmarks.balanced
    python -m benchmarks.balanced --data german+nifty bail+nifty credit+nifty --out nifty.json

By default on Credit, where training takes at most 3,000 nodes of each class in several shuffles
(``datasets.protocols.nifty_split``), so that the scores of a model are far from the base rates
until they are calibrated on the validation nodes. With a protocol's name the split is the
protocol's, and initialisations differ. fairlearn's ``ThresholdOptimizer`` is fitted on the same
validation nodes, on the scores of the same automatically chosen model without a correction.
"""

from __future__ import annotations

import argparse
import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
from fairlearn.postprocessing import ThresholdOptimizer

from benchmarks import provenance
from benchmarks.odds import Scores
from benchmarks.tree_scores import gap, write
from fairmp import PPR, FairClassifier
from fairmp.datasets.by_name import from_files
from fairmp.datasets.protocols import nifty_split
from fairmp.datasets.splits import MASKS
from fairmp.metrics import mean_interval
from fairmp.metrics.intervals import sampling_floor

LABEL_NUMBER = 6000
FIRST_SEED = 20


def split_by_protocol(graph: Any, seed: int, label_number: int = LABEL_NUMBER) -> Any:
    """A graph with its protocol's split, or else with a class-balanced one."""
    if "protocol" in graph:
        return graph
    data = copy.copy(graph)
    for mask, nodes in zip(MASKS, nifty_split(data.y, label_number, seed=seed), strict=True):
        data[mask] = nodes
    return data


def rows(name: str, graph: Any, seed: int) -> list[dict[str, Any]]:
    """Accuracy and ΔDP on the test nodes of one split, method by method."""
    data = split_by_protocol(graph, seed)
    y, sens = data.y.numpy(), data.sens.numpy()
    val, test = data.val_mask.numpy(), data.test_mask.numpy()
    decisions = {"constant": np.full(y.size, np.bincount(y[val]).argmax())}
    plain = FairClassifier(PPR(lambda_s="learned"))
    plain.fit(data, seed=seed, bootstrap=0, progress=False)
    scores = plain.predict_proba(data)[:, 1].double().numpy()
    decisions["no correction"] = scores > 0.5
    rule = ThresholdOptimizer(
        estimator=Scores().fit(scores[val, None], y[val]),
        constraints="demographic_parity",
        prefit=True,
        predict_method="predict",
    )
    rule.fit(scores[val, None], y[val], sensitive_features=sens[val])
    drawn = rule.predict(scores[:, None], sensitive_features=sens, random_state=seed)
    decisions["ThresholdOptimizer"] = np.asarray(drawn)
    models = {"FMP": FairClassifier(), "FMP, one fold": FairClassifier(folds=1)}
    for title, model in models.items():
        model.fit(data, seed=seed, bootstrap=0, progress=False)
        for mode in ("batch", "per-node"):
            fair = model.predict_proba(data, nodes=data.test_mask, mode=mode)
            chosen = np.zeros(y.size)
            chosen[test] = fair[:, 1].numpy() > 0.5
            decisions[f"{title}, {mode}"] = chosen
    counts = np.bincount(sens[test][sens[test] >= 0]).tolist()
    return [
        {
            "data": name,
            "split": seed,
            "method": method,
            "accuracy": float((chosen[test] == y[test]).mean()),
            "dp": gap(chosen[test], sens[test]),
            "floor": sampling_floor(counts, float(chosen[test].mean())),
        }
        for method, chosen in decisions.items()
    ]


def base_rate_gaps(graph: Any) -> dict[str, float]:
    """Gap of the labels themselves in each part of a protocol's split."""
    parts = {name: graph[name].numpy() for name in MASKS}
    parts["no part"] = ~np.any(list(parts.values()), axis=0)
    y, sens = graph.y.numpy(), graph.sens.numpy()
    return {name: gap(y[mask], sens[mask]) for name, mask in parts.items() if mask.any()}


def main() -> None:
    """Run every split, print the means, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["credit"])
    parser.add_argument("--splits", type=int, default=5, help="shuffles, or initialisations")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/balanced.json"))
    options = parser.parse_args()
    all_rows, table, gaps = [], [], {}
    for name in options.data:
        graph = from_files(name, os.environ.get("FAIRMP_DATA"))
        graph_rows = [
            row for k in range(options.splits) for row in rows(name, graph, FIRST_SEED + k)
        ]
        for method in dict.fromkeys(row["method"] for row in graph_rows):
            entry: dict[str, Any] = {"data": name, "method": method}
            for key in ("accuracy", "dp", "floor"):
                values = [row[key] for row in graph_rows if row["method"] == method]
                entry[key] = mean_interval(values)[:3]
            mean, (gap_mean, _, gap_high) = entry["accuracy"], entry["dp"]
            print(
                f"{name:15} {method:20} {100 * mean[0]:6.2f} ± {100 * (mean[2] - mean[0]):.2f}"
                f"   ΔDP {100 * gap_mean:.2f} ± {100 * (gap_high - gap_mean):.2f}",
                flush=True,
            )
            table.append(entry)
        all_rows += graph_rows
        if "protocol" in graph:
            gaps[name] = base_rate_gaps(graph)
    record = {**provenance("models"), "table": table, "base_rate_gaps": gaps}
    write(options.out, record, all_rows)


if __name__ == "__main__":
    main()
