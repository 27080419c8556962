"""Baselines tuned as FMP's defaults were: networks, penalties, and trees with fairlearn.

    python -m benchmarks.baselines
    python -m benchmarks.baselines --methods gcn residual-gat --device cuda --npz FOLDER

Every method has as many trials as the default has candidates. For a network, learning rate,
dropout, weight decay, width and depth are chosen by validation accuracy on the first split, and the
choice is trained on all of them. The regulariser and the adversary join the network of the
highest validation accuracy, with the setting found for it. Boosted trees read the node features
alone, or also the columns of the neighbourhood; fairlearn's ``ThresholdOptimizer`` is fitted on the
validation nodes. Every fit is one line of ``--log``, and a run that was stopped goes on from there.
With some of the methods only a part of the log is made, and no record.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import networks, provenance
from experiments.committed import SPLITS, TITLES
from experiments.graph_files import read_graph
from fairmp.datasets.splits import split
from fairmp.display import bar
from fairmp.graph import Graph
from fairmp.metrics import evaluate
from fairmp.parallel import WorkerPool
from fairmp.training.auto import CANDIDATES
from fairmp.training.classifier import build_classifier
from fairmp.training.graph_features import Neighbourhoods
from fairmp.training.run import versions

Job = dict[str, Any]
NETWORKS: tuple[str, ...] = ("mlp", "gcn", "appnp", *networks.NETWORKS)
TREES = ("trees", "neighbourhood-trees")
METHODS = (*NETWORKS, *TREES)
GRAPHS = tuple(reversed(TITLES))  # the largest first: no process is left with one at the end
FIGURES = ("accuracy", "auc", "dp", "eo")
TRIALS = len(CANDIDATES)  # of each method, as many as the default fits
GRID = {
    "lr": (1e-2, 1e-3),
    "dropout": (0.0, 0.5),
    "weight_decay": (5e-4, 1e-5),
    "hidden": (64, 256),
    "num_layers": (2, 3),
}
TREE_GRID = {"learning_rate": (0.2, 0.1, 0.03), "max_leaf_nodes": (7, 15, 31)}


def draw_settings(grid: Mapping[str, Sequence[Any]], trials: int = TRIALS) -> list[Job]:
    """Draw settings of a grid without replacement, the same in every run."""
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return random.Random(0).sample(every, trials)


SETTINGS, TREE_SETTINGS = draw_settings(GRID), draw_settings(TREE_GRID)
TUNING_SPLIT = SPLITS[0]
MAX_ATTENTION_WIDTH = 128  # attention holds this many numbers per edge
STRENGTHS = {"regulariser": (1.0, 10.0, 50.0), "adversary": (1.0, 5.0, 20.0)}


def settings_of(method: str) -> list[Job]:
    """The trials of a method."""
    if method in TREES:
        return TREE_SETTINGS
    if method == "residual-gat":
        return [s | {"hidden": min(s["hidden"], MAX_ATTENTION_WIDTH)} for s in SETTINGS]
    return SETTINGS


def measure(npz: Path | None, data_dir: Path | None, device: str, job: Job) -> Job:
    """Train one baseline on one split, and return what it shows."""
    data = read_graph(job["data"], npz, data_dir)
    start = time.perf_counter()
    figures = _trees(data, job) if job["method"] in TREES else _network(data, job, device)
    if device != "cpu":
        torch.cuda.empty_cache()  # for the other processes
    return {**job, **figures, "seconds": round(time.perf_counter() - start, 2)}


def _network(data: Any, job: Job, device: str) -> Job:
    settings = dict(job["setting"], epochs=300, eval_every=5)
    if data.num_nodes < 5_000:
        device = "cpu"
    strategy, strength = job.get("strategy", "vanilla"), job.get("strength", 1.0)
    if strategy == "adversary":
        settings |= {"select": "last", "patience": None, "adversary_lr": settings["lr"]}
    backbone: str | nn.Module = job["method"]
    if job["method"] in networks.NETWORKS:
        shape = {name: settings.pop(name) for name in ("hidden", "num_layers", "dropout")}
        torch.manual_seed(0)
        backbone = networks.build(job["method"], data, **shape)
    model = build_classifier(
        "none",
        backbone=backbone,
        strategy=strategy,
        h=strength,
        calibrate=False,
        device=device,
        **settings,
    )
    model.fit(data, seed=0, split_seed=job["split"], bootstrap=0, progress=False)
    run = model.run_
    return {name: _figures(getattr(run, name)) for name in ("val", "test")}


def _trees(data: Any, job: Job) -> Job:
    from fairlearn.postprocessing import ThresholdOptimizer
    from sklearn.ensemble import HistGradientBoostingClassifier

    masks = split(data, seed=job["split"])
    x, y, sens = (part.numpy() for part in (_columns(data, job, masks.train), data.y, data.sens))
    train, val, test = (mask.numpy() for mask in masks)
    model = HistGradientBoostingClassifier(random_state=0, **job["setting"])
    model.fit(x[train], y[train])
    rule = ThresholdOptimizer(
        estimator=model,
        constraints="demographic_parity",
        prefit=True,
        predict_method="predict_proba",
    )
    rule.fit(x[val], y[val], sensitive_features=sens[val])
    drawn = rule.predict(x[test], sensitive_features=sens[test], random_state=job["split"])
    scores = model.predict_proba(x)[:, 1]
    return {
        "val": _judged(data, masks.val, scores[val]),
        "test": _judged(data, masks.test, scores[test]),
        "fair": _judged(data, masks.test, drawn),
    }


def _columns(data: Any, job: Job, train: Tensor) -> Tensor:
    """What trees read: the features, and the columns of the neighbourhood."""
    if job["method"] == "trees":
        features: Tensor = data.x
        return features
    graph = Graph(data.edge_index, num_nodes=data.num_nodes)
    known = data.y.masked_fill(~train, -1)
    return Neighbourhoods(data.x, graph).rows(known, int(data.y.max()) + 1)


def _judged(data: Any, mask: Tensor, scores: Any) -> dict[str, float]:
    score = torch.from_numpy(np.asarray(scores, dtype=np.float32))
    proba = torch.stack([1 - score, score], 1)
    return _figures(evaluate(data.y[mask], proba, sensitive_features=data.sens[mask], bootstrap=0))


def _figures(evaluation: Any) -> dict[str, float]:
    return {figure: getattr(evaluation, figure) for figure in FIGURES}


class Fits:
    """Fits that are done, by job, and how to do others."""

    def __init__(self, fit: Callable[[Job], Job], workers: int, log: Path) -> None:
        self.fit, self.workers, self.log = fit, workers, log
        lines = log.read_text(encoding="utf8").splitlines() if log.exists() else []
        self.done = {self._key(record): record for record in map(json.loads, lines)}

    @staticmethod
    def _key(job: Job) -> str:
        names = "data", "method", "setting", "strategy", "strength", "split"
        return json.dumps([job.get(name) for name in names], sort_keys=True)

    def __call__(self, jobs: Sequence[Job], title: str) -> None:
        """Do those that are not done."""
        left = [job for job in jobs if self._key(job) not in self.done]
        with (
            WorkerPool(self.fit, self.workers) as pool,
            bar(len(left), title) as advance,
            self.log.open("a", encoding="utf8") as file,
        ):
            for job, record in pool.map(left):
                self.done[self._key(job)] = record
                file.write(json.dumps(record) + "\n")
                file.flush()
                advance(job["data"])
        print(f"{title}: {len(left)} fits", flush=True)

    def validation(self, job: Job) -> float:
        """Validation accuracy of a job that is done."""
        return float(self.done[self._key(job)]["val"]["accuracy"])


def tune(fits: Fits, graphs: Sequence[str], methods: Sequence[str]) -> dict[tuple[str, str], Job]:
    """The setting of the highest validation accuracy, by graph and method."""
    trials = {
        (graph, method): [
            {"data": graph, "method": method, "setting": setting, "split": TUNING_SPLIT}
            for setting in settings_of(method)
        ]
        for graph in graphs
        for method in methods
    }
    # One trial of every method after the other, so that the largest do not meet on one GPU.
    fits([job for jobs in zip(*trials.values(), strict=True) for job in jobs], "tuning")
    return {key: max(jobs, key=fits.validation)["setting"] for key, jobs in trials.items()}


def penalties(
    fits: Fits, graphs: Sequence[str], chosen: Mapping[tuple[str, str], Job]
) -> list[Job]:
    """Regulariser and adversary on each graph's network of the highest validation accuracy."""

    def accuracy(graph: str, method: str) -> float:
        jobs = _jobs(data=graph, method=method, setting=chosen[graph, method])
        return float(np.mean([fits.validation(job) for job in jobs]))

    jobs = []
    for graph in graphs:
        best = max(NETWORKS, key=partial(accuracy, graph))
        for strategy, strengths in STRENGTHS.items():
            for strength in strengths:
                penalty = {"strategy": strategy, "strength": strength}
                setting = chosen[graph, best]
                jobs += _jobs(data=graph, method=best, setting=setting, **penalty)
    return jobs


def _jobs(**job: Any) -> list[Job]:
    """One job on every split."""
    return [{**job, "split": split} for split in SPLITS]


def main() -> None:
    """Tune, train, and write records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--npz", type=Path, help="folder with graphs as .npz files")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", type=Path, default=Path("baselines.jsonl"))
    results = Path(__file__).parent / "results" / "baselines.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    fits = Fits(
        partial(measure, options.npz, options.data_dir, options.device),
        options.workers,
        options.log,
    )
    chosen = tune(fits, options.graphs, options.methods)
    reported = [
        job
        for (graph, method), setting in chosen.items()
        for job in _jobs(data=graph, method=method, setting=setting)
    ]
    fits(sorted(reported, key=lambda job: job["split"]), "networks and trees")
    if set(options.methods) < set(METHODS):
        return
    penalised = penalties(fits, options.graphs, chosen)
    fits(penalised, "penalties")
    _write(options.out, [fits.done[fits._key(job)] for job in reported + penalised])


def _write(path: Path, records: Sequence[Job]) -> None:
    content = {
        **provenance("models"),
        "versions": versions(),
        "tuned": {
            "settings": {method: settings_of(method) for method in METHODS},
            "split": TUNING_SPLIT,
            "by": "validation accuracy",
        },
    }
    rows = ",\n".join("  " + json.dumps(record) for record in records)
    text = json.dumps(content, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{text},\n "records": [\n{rows}\n ]\n}}\n', encoding="utf8")


if __name__ == "__main__":
    main()
