"""Decisions that read nobody's group, beside those that do, on several splits.

    python -m benchmarks.group_free --jobs 16             # all graphs, splits 20 to 29
    python -m benchmarks.group_free --graph nba --split 20

Each graph and split is one task: the model of the label and two models of the group (with and
without the neighbours' groups) are fitted once, and every rule and target is solved from their
out-of-fold predictions, as ``FairClassifier`` solves it. All rules decide node by node. fairlearn's
``ExponentiatedGradient`` reads the features of the nodes, and the same labels. A task that is done
is a file in ``--parts``, and is not done again; the record is made of all files there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from benchmarks import typed_command
from experiments.committed import SPLITS, TITLES
from experiments.provenance import code_hash
from fairmp import FMP, FairClassifier
from fairmp.datasets import load
from fairmp.datasets.splits import with_split
from fairmp.metrics import evaluate
from fairmp.metrics.intervals import sampling_floor
from fairmp.parallel import WorkerPool
from fairmp.postprocessing.debiaser import Debiaser
from fairmp.training.correction import blind_features, correct_rows
from fairmp.training.nodes import Names, TrainingNodes, graph_of
from fairmp.training.run import versions

GRAPHS = tuple(TITLES)
TARGETS = (0.0, 0.02, 0.05, 0.1)
FAIRLEARN_TARGETS = TARGETS[:2]
PARITY = "demographic_parity"
UNCORRECTED, AWARE, FAIRLEARN = "uncorrected", "group-aware", "ExponentiatedGradient"
NEIGHBOURS, FEATURES = "blind, neighbours' groups", "blind, no neighbours' groups"
FIGURES = ("accuracy", "dp", "eo")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Scores:
    """What one fit says about a graph: calibrated, propagated, not corrected."""

    nodes: TrainingNodes
    held: Tensor  # numbers of the labelled nodes outside the test set
    held_logits: Tensor  # of these, out of fold
    logits: Tensor  # of all nodes
    group_logits: dict[str, Tensor]  # of all nodes, a node's own group left out; by rule


def fit_scores(graph: str, split: int, rules: tuple[str, ...] = (NEIGHBOURS, FEATURES)) -> Scores:
    """Fit the model of the label, and those of the group."""
    data = with_split(load(graph), seed=split)
    return fit_nodes(TrainingNodes(data, graph_of(data), Names.of(data)), split, rules)


def fit_nodes(nodes: TrainingNodes, split: int, rules: tuple[str, ...]) -> Scores:
    """Fit on nodes that have a split."""
    layer = FMP(lambda_s="learned")
    # No time budget: what is fitted must not depend on how busy the machine is.
    model = FairClassifier(layer, group_free=True, time_budget=1e9)
    model.fit_nodes(nodes, seed=0, split_seed=split, bootstrap=0, progress=False)
    group_logits = {NEIGHBOURS: model.group_logits_}
    if FEATURES in rules:
        other = replace(model, neighbour_groups=False)
        group_logits[FEATURES] = other._estimate_groups(nodes, 0, False).logits
    held = model.held_out_.nodes.nonzero()[:, 0]
    return Scores(nodes, held, model.held_out_.logits, model.logits_, group_logits)


def group_aware(scores: Scores, target: float, test: Tensor) -> Tensor:
    """Logits of test nodes by the per-node correction of ``FairClassifier(FMP(target=…))``."""
    data = scores.nodes.data
    other = (data.sens >= 0) & ~(data.train_mask | data.val_mask | data.test_mask)
    rows = torch.cat([scores.held_logits, scores.logits[other]])
    sens = torch.cat([data.sens[scores.held], data.sens[other]])
    layer = FMP(1, 0.0, target=target)
    duals = correct_rows(layer, scores.nodes, rows, sens, "decisions").group_duals
    no_edges = torch.empty(2, 0, dtype=torch.long)
    return layer.frozen(scores.logits[test], no_edges, data.sens[test], duals)


def blind(scores: Scores, rule: str, target: float, test: Tensor) -> Tensor:
    """Logits of test nodes by the blind rule."""
    data, held = scores.nodes.data, scores.held
    features = partial(blind_features, criterion=PARITY)
    group_logits = scores.group_logits[rule]
    debiaser = Debiaser(PARITY, target, kind="logits", group_free=True)
    debiaser.fit(
        scores.held_logits,
        data.y[held],
        sensitive_features=data.sens[held],
        features=features(scores.held_logits, group_logits[held]),
    )
    fair: Tensor = debiaser.transform(
        scores.logits[test], features=features(scores.logits[test], group_logits[test])
    )
    return fair


def exponentiated_gradient(scores: Scores, target: float, test: Tensor) -> Tensor:
    """Decisions (as logits) of fairlearn's reduction, over small boosted trees."""
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    from sklearn.ensemble import HistGradientBoostingClassifier

    data, held = scores.nodes.data, scores.held
    x = (data.x.to_dense() if data.x.is_sparse else data.x).numpy()
    trees = HistGradientBoostingClassifier(max_iter=50, max_leaf_nodes=15, random_state=0)
    model = ExponentiatedGradient(trees, DemographicParity(difference_bound=target), max_iter=20)
    model.fit(x[held], data.y[held].numpy(), sensitive_features=data.sens[held].numpy())
    decided = model.predict(x[test.numpy()], random_state=0)
    return torch.from_numpy(np.eye(2)[np.asarray(decided, dtype=int)])


def measure_split(job: tuple[str, int]) -> dict[str, Any]:
    """Fit on one split, and measure every rule on its test nodes."""
    graph, split = job
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of targets that are missed on fitting nodes
        scores = fit_scores(graph, split)
        data = scores.nodes.data
        test = data.test_mask.nonzero()[:, 0]
        rows: dict[tuple[str, float | None], Tensor] = {(UNCORRECTED, None): scores.logits[test]}
        for target in TARGETS:
            rows[AWARE, target] = group_aware(scores, target, test)
            for rule in scores.group_logits:
                rows[rule, target] = blind(scores, rule, target, test)
        for target in FAIRLEARN_TARGETS:
            rows[FAIRLEARN, target] = exponentiated_gradient(scores, target, test)
    lines = []
    for (rule, asked), logits in rows.items():
        evaluation = evaluate(
            data.y[test], logits.double(), sensitive_features=data.sens[test], bootstrap=0
        )
        figures = {figure: getattr(evaluation, figure) for figure in FIGURES}
        lines.append({"rule": rule, "target": asked, **figures})
    rate = float((rows[UNCORRECTED, None].argmax(1) == 1).double().mean())
    counts = torch.bincount(data.sens[test]).tolist()
    return {
        "graph": graph,
        "split": split,
        "floor": sampling_floor(counts, rate),
        "group_accuracy": {  # of the estimates, on test nodes
            rule: float((logits[test].argmax(1) == data.sens[test]).double().mean())
            for rule, logits in scores.group_logits.items()
        },
        "largest_group": max(counts) / sum(counts),
        "rows": lines,
        "seconds": time.perf_counter() - start,
        "code": code_hash("models"),
        "versions": versions(),
    }


def summarise(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the splits of each graph, rule and target, and differences from other rules."""
    lines = []
    for graph in [name for name in GRAPHS if any(part["graph"] == name for part in parts)]:
        chosen = [part for part in parts if part["graph"] == graph]
        tables = [{(row["rule"], row["target"]): row for row in part["rows"]} for part in chosen]
        for rule, target in tables[0]:
            figures = {
                figure: interval([table[rule, target][figure] for table in tables])
                for figure in FIGURES
            }
            others = [(AWARE, target), (UNCORRECTED, None), (FAIRLEARN, target)]
            differences = {
                other: interval(
                    [table[rule, target]["accuracy"] - table[key]["accuracy"] for table in tables]
                )
                for key in others
                for other in key[:1]
                if key in tables[0] and other != rule
            }
            floor = float(np.mean([part["floor"] for part in chosen]))
            lines.append(
                {"graph": graph, "rule": rule, "target": target, "splits": len(chosen)}
                | {"floor": floor, **figures, "accuracy_above": differences}
            )
    return lines


def interval(values: list[float]) -> dict[str, float | None]:
    """Mean, and half the width of a 95 % interval (Student's t)."""
    if len(values) < 2:
        return {"mean": values[0], "half_width": None}
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return {"mean": float(np.mean(values)), "half_width": float(half)}


def one_code(records: list[dict[str, Any]]) -> str | None:
    """The hash of the code that made all of them, if it was the same."""
    codes = {record.get("code") for record in records}
    return codes.pop() if len(codes) == 1 else None


def write_record(parts: Path, out: Path) -> list[dict[str, Any]]:
    """Put the parts together."""
    records = [json.loads(path.read_text()) for path in sorted(parts.glob("*.json"))]
    records.sort(key=lambda part: (GRAPHS.index(part["graph"]), part["split"]))
    summary = summarise(records)
    content = {
        "command": typed_command(),
        "code": one_code(records),
        "targets": TARGETS,
        "summary": summary,
        "parts": records,
    }
    out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--split", nargs="+", type=int, default=list(SPLITS))
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--parts", type=Path, default=Path("build/group-free"))
    parser.add_argument("--out", type=Path, default=RESULTS / "group-free.json")
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"

    def part(job: tuple[str, int]) -> Path:
        path: Path = options.parts / f"{job[0]}-{job[1]}.json"
        return path

    # The largest graphs come first, so that no process is left with one at the end.
    jobs = [(graph, split) for graph in reversed(options.graph) for split in options.split]
    jobs = [job for job in jobs if not part(job).exists()]
    with WorkerPool(measure_split, options.jobs) as pool:
        for count, (job, record) in enumerate(pool.map(jobs), 1):
            draft = part(job).with_suffix(".draft")
            draft.write_text(json.dumps(record, allow_nan=False) + "\n")
            draft.replace(part(job))
            print(f"{count} of {len(jobs)}: {job[0]} {job[1]}, {record['seconds']:.0f} s")
            for row in record["rows"]:
                figures = " ".join(f"{figure} {100 * row[figure]:5.1f}" for figure in FIGURES)
                print(f"  {row['rule']:30} {row['target'] or 0:4g}: {figures}", flush=True)
    for line in write_record(options.parts, options.out):
        cells = " ".join(f"{f} {100 * line[f]['mean']:5.1f}" for f in FIGURES)
        print(f"{line['graph']:15} {line['rule']:30} {line['target'] or 0:4g} {cells}")


if __name__ == "__main__":
    main()
