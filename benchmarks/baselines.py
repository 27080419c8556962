"""Baselines tuned as FMP's defaults were: networks, penalties, and trees with fairlearn.

    python -m benchmarks.baselines --splits 10 --first 10

Every method has as many trials as the default has candidates. For a network, learning rate,
dropout, weight decay, width and depth are chosen by validation accuracy on the first splits, and
the choice is trained on all of them. The regulariser and the adversary join the network of the
highest validation accuracy, with the setting found for it. Boosted trees read the node features
alone, or also the columns of the neighbourhood; fairlearn's ``ThresholdOptimizer`` is fitted on the
validation nodes. Every fit is one line of ``--log``, and a run that was stopped goes on from there.
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
from benchmarks.defaults import FIGURES, GRAPHS
from experiments.graph_files import read_graph
from fairmp.datasets.splits import split
from fairmp.display import bar
from fairmp.graph import Graph
from fairmp.metrics import evaluate
from fairmp.nn.models import BACKBONES
from fairmp.parallel import WorkerPool
from fairmp.training.auto import CANDIDATES
from fairmp.training.classifier import build_classifier
from fairmp.training.graph_features import Neighbourhoods
from fairmp.training.run import versions

Job = dict[str, Any]
NETWORKS: tuple[str, ...] = (*BACKBONES, *networks.NETWORKS)
TREES = ("trees", "neighbourhood-trees")
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
TUNING_SPLITS = 3
STRENGTHS = {"regulariser": (1.0, 10.0, 50.0), "adversary": (1.0, 5.0, 20.0)}


def measure(npz: Path | None, data_dir: Path | None, device: str, job: Job) -> Job:
    """Train one baseline on one split, and return what it shows."""
    data = read_graph(job["data"], npz, data_dir)
    start = time.perf_counter()
    figures = _trees(data, job) if job["method"] in TREES else _network(data, job, device)
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

    def mean(self, jobs: Sequence[Job], figure: str = "accuracy") -> float:
        """Mean of a validation figure."""
        return float(np.mean([self.done[self._key(job)]["val"][figure] for job in jobs]))


def main() -> None:
    """Tune, train, and write records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=10, help="seed of the first split")
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
    splits = range(options.first, options.first + options.splits)
    # The largest graphs come first, so that no worker is left with one at the end.
    graphs = list(reversed(options.graphs))
    few = splits[:TUNING_SPLITS]

    def jobs(numbers: Sequence[int], **job: Any) -> list[Job]:
        return [{**job, "split": number} for number in numbers]

    tuning = {
        (name, method): [
            jobs(few, data=name, method=method, setting=setting)
            for setting in (TREE_SETTINGS if method in TREES else SETTINGS)
        ]
        for name in graphs
        for method in (*NETWORKS, *TREES)
    }
    fits([job for many in tuning.values() for jobs in many for job in jobs], "tuning")
    chosen = {key: max(many, key=fits.mean)[0]["setting"] for key, many in tuning.items()}
    final = {
        key: jobs(splits, data=key[0], method=key[1], setting=setting)
        for key, setting in chosen.items()
    }
    fits([job for many in final.values() for job in many], "networks and trees")
    penalties = []
    for name in graphs:
        best = max(NETWORKS, key=lambda method: fits.mean(final[name, method]))
        for strategy, strengths in STRENGTHS.items():
            for strength in strengths:
                job = {"strategy": strategy, "strength": strength, "setting": chosen[name, best]}
                penalties += jobs(splits, data=name, method=best, **job)
    fits(penalties, "penalties")
    reported = [job for many in final.values() for job in many] + penalties
    content = {
        **provenance("models"),
        "versions": versions(),
        "tuned": {
            "settings": SETTINGS,
            "trees": TREE_SETTINGS,
            "splits": list(few),
            "by": "validation accuracy",
        },
        "records": [fits.done[fits._key(job)] for job in reported],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join("  " + json.dumps(record) for record in content.pop("records"))
    text = json.dumps(content, indent=1).removesuffix("\n}")
    options.out.write_text(f'{text},\n "records": [\n{rows}\n ]\n}}\n', encoding="utf8")


if __name__ == "__main__":
    main()
