"""``FairClassifier()`` where few groups are known, and where labels are wrong.

    python -m benchmarks.studies

Each graph, split and condition is one job: the default model is trained on what the condition
leaves, and its predictions for the test nodes are measured with their true labels and groups.
``--npz FOLDER`` reads graphs that ``experiments.graph_files FOLDER`` wrote; ``--merge`` joins
results of several commands.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import provenance
from experiments.graph_files import read_graph
from fairmp import FairClassifier
from fairmp.datasets.splits import with_split
from fairmp.display import bar
from fairmp.graph import normalise
from fairmp.metrics import evaluate
from fairmp.parallel import WorkerPool
from fairmp.postprocessing.group_estimator import estimate
from fairmp.postprocessing.predictions import attributes
from fairmp.training.run import versions

GRAPHS = ("pokec-province", "credit", "bail", "bail-without-time")
KNOWN = 500  # training nodes whose group is known, as in the paper's data table
FLIPPED = {"10 % of labels wrong": 0.1, "20 % of labels wrong": 0.2}
FEW, ESTIMATED = f"{KNOWN} training groups", f"{KNOWN} groups, others estimated"
CONDITIONS = ("all known", FEW, ESTIMATED, *FLIPPED)
MODES = ("batch", "per_node", "uncorrected")
FIGURES = ("accuracy", "auc", "dp", "eo")


def changed(data: Any, condition: str, seed: int) -> Any:
    """A graph with a split, as a condition leaves it.

    Labels are flipped, to another class drawn at random, among training and validation nodes.
    """
    result, generator = copy.copy(data), torch.Generator().manual_seed(seed)
    if condition in (FEW, ESTIMATED):
        known_nodes = data.train_mask.nonzero()[:, 0]
        known_nodes = known_nodes[torch.randperm(len(known_nodes), generator=generator)[:KNOWN]]
        # As in the paper: validation and test nodes keep their groups, unless they are estimated.
        hidden = torch.ones_like(data.train_mask)
        hidden[known_nodes] = False
        if condition == FEW:
            hidden &= ~(data.val_mask | data.test_mask)
        result.sens = data.sens.masked_fill(hidden, -1)
        if condition == ESTIMATED:
            graph = normalise(data.edge_index, len(data.x))
            (group,) = attributes(result.sens, len(data.x))
            estimated = estimate(group, data.x, graph).hard
            result.sens = torch.where(hidden, estimated, data.sens)
    elif condition in FLIPPED:
        seen = (data.train_mask | data.val_mask).nonzero()[:, 0]
        count = round(FLIPPED[condition] * len(seen))
        wrong = seen[torch.randperm(len(seen), generator=generator)[:count]]
        classes = int(data.y.max()) + 1
        steps = torch.randint(1, classes, (count,), generator=generator)
        result.y = data.y.clone()
        result.y[wrong] = (data.y[wrong] + steps) % classes
    return result


def measure(npz: Path | None, data_dir: Path | None, job: tuple[str, int, str]) -> dict[str, Any]:
    """Train under one condition, and return the true figures of the test nodes."""
    name, number, condition = job
    start = time.perf_counter()
    data = with_split(read_graph(name, npz, data_dir), seed=number)
    seen = changed(data, condition, number)
    test = data.test_mask
    record = {"data": name, "split": number, "condition": condition}
    if condition == ESTIMATED and len(seen.sens[data.val_mask].unique()) == 1:
        return {**record, "failed": "every validation node is estimated to be of one group"}
    model = FairClassifier()
    model.fit(seen, seed=0, bootstrap=0, progress=False)
    for mode in MODES:
        if mode == "uncorrected":
            model.network_.propagation.target = 1.0
        prediction: Any = "per-node" if mode == "per_node" else "batch"
        scores = model.predict_proba(seen, nodes=test, mode=prediction)
        evaluation = evaluate(data.y[test], scores, sensitive_features=data.sens[test], bootstrap=0)
        record[mode] = {figure: getattr(evaluation, figure) for figure in FIGURES}
    right = seen.sens[test] == data.sens[test]
    return {
        **record,
        "right_groups": float(right.double().mean()),  # of the test nodes, as the model saw them
        "seconds": time.perf_counter() - start,
    }


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Means and 95 % intervals (Student's t) over the splits of one graph and condition."""
    from scipy.stats import t

    means: dict[str, Any] = {"splits": len(records)}
    for mode in MODES:
        for figure in FIGURES:
            values = torch.tensor([record[mode][figure] for record in records]).double()
            mean, count = float(values.mean()), len(values)
            half = math.nan
            if count > 1:
                half = float(t.ppf(0.975, count - 1) * values.std() / count**0.5)
            interval = None if math.isnan(half) else [mean - half, mean + half]
            means[f"{mode} {figure}"] = {"mean": mean, "interval": interval}
    for figure in ("right_groups", "seconds"):
        means[figure] = sum(record[figure] for record in records) / len(records)
    return means


def main() -> None:
    """Run all jobs, and write records and summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first split")
    parser.add_argument("--npz", type=Path, help="folder with graphs as .npz files")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    results = Path(__file__).parent / "results" / "studies.json"
    parser.add_argument("--out", type=Path, default=results)
    parser.add_argument("--merge", type=Path, nargs="+", help="join these results, and end")
    options = parser.parse_args()
    if options.merge:
        parts = [json.loads(path.read_text()) for path in options.merge]
        joined = {**parts[0], "command": "; ".join(part["command"] for part in parts)}
        joined["summary"] = {k: v for part in parts for k, v in part["summary"].items()}
        joined["records"] = [record for part in parts for record in part["records"]]
        options.out.write_text(json.dumps(joined, indent=1, allow_nan=False) + "\n")
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # a process per core; inherited by the workers
    splits = range(options.first, options.first + options.splits)
    jobs = [
        (name, number, condition)
        for name in reversed(options.graphs)
        for number in splits
        for condition in CONDITIONS
    ]
    done: dict[tuple[str, int, str], dict[str, Any]] = {}
    train = partial(measure, options.npz, options.data_dir)
    with WorkerPool(train, options.workers) as pool, bar(len(jobs), "fits") as advance:
        for job, record in pool.map(jobs):
            done[job] = record
            batch, line = record.get("batch"), record.get("failed")
            if batch is not None:
                line = f"{100 * batch['accuracy']:.2f} % ΔDP {100 * batch['dp']:.2f}"
            print(*job, line, flush=True)
            advance(job[0])
    records = [done[job] for job in jobs]
    content = {
        **provenance("models"),
        "config": FairClassifier().config(),
        "versions": versions(),
        "summary": {
            name: {
                condition: summary([done[name, number, condition] for number in splits])
                for condition in CONDITIONS
                if not any("failed" in done[name, number, condition] for number in splits)
            }
            for name in options.graphs
        },
        "records": records,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
