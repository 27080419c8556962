"""What does the work: networks, propagation, blending and each correction, row by row.

All rows of the default blend share one fit per split. The same fits show the defaults at several
targets, and with one fold instead of five.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor
from torch_geometric.data import Data

from experiments.attribution_tables import (
    BLEND,
    BLIND,
    DEFAULT,
    DEFAULT_ALONE,
    FIGURES,
    ONE_FOLD,
    ROWS,
    THRESHOLD_OPTIMIZER,
    THRESHOLDS,
    table,
)
from experiments.committed import exists, read
from experiments.grids import PAPERS_LAMBDA_F, PAPERS_SOLVERS
from experiments.options import Page, Scope, show
from experiments.parts import Graphs, SplitNumbers, Task, prepare, run
from experiments.provenance import stamp
from fairmp import FairClassifier
from fairmp.cli.options import Results, Workers, option
from fairmp.comparison import Record, compare
from fairmp.datasets.by_name import from_files
from fairmp.datasets.splits import with_split
from fairmp.metrics import Evaluation, evaluate
from fairmp.metrics.intervals import sampling_floor
from fairmp.nn.fmp import FMP
from fairmp.outputs import write_json
from fairmp.parallel import default_workers
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.training.classifier import build_classifier

RECORD = "attribution.json"
GROUP_FREE, GROUP_FREE_RULE = "group-free", ("blind, neighbours' groups", 0.0)
NO_LIMIT = 1e9  # seconds: what is fitted must not depend on how busy the machine is
PARTS = ("blend", "blind", "one fold", "networks")  # the longest first
TARGETS = (0.01, 0.02, 0.05, 0.1)  # of the trade-off; the model was trained and chosen with 0
NO_TARGET = 1.0  # any gap is within it: nothing is corrected
Settings = Mapping[str, Any]


def command(
    results: Results,
    scope: Scope,
    graph: Graphs = None,
    split: SplitNumbers = None,
    jobs: Workers = None,
    group_free: bool = option("Also fit without reading groups.", True),
) -> None:
    """Separate what networks, propagation, blending and each correction contribute.

    One line per graph, split and part is appended to records.jsonl; the same command continues.
    Rows without the group are taken from the record of the blind rules, where this code made it.
    """
    grid = prepare(
        results, scope, graph, split, folder="fairmp-attribution", quick_graph="embedded:300"
    )
    parts = [part for part in PARTS if group_free or part != "blind"]
    # The largest graphs are named last, and come first: no process is left with one at the end.
    tasks = [Task(*each) for each in itertools.product(reversed(grid.names), grid.splits, parts)]
    settings = {"epochs": 5, "folds": 2} if scope.quick else {}
    fit = partial(measure, data_dir=scope.data_dir, settings=settings)
    path, jobs = grid.folder / compare.RECORDS, jobs or default_workers()
    records = merged(run(tasks, fit, path, jobs, stamp(), _recorded_blind(tasks)), grid.names)
    content = {"command": "python -m experiments attribution", **stamp(), "records": records}
    write_json(grid.folder / RECORD, content)
    tables = [table(records, name) for name in grid.names]
    Page("Attribution", _SUMMARY, tables).write(grid.folder)
    show(results, content, grid.folder, tables)


_SUMMARY = (
    "Means over splits with 95 % intervals, in points. Batch rows use the groups of the nodes that "
    "are predicted together; per-node rows decide one at a time, and are shown beside their "
    "sampling floor. Differences are paired, to FairClassifier() of the same track."
)


def _recorded_blind(tasks: Sequence[Task]) -> dict[Task, Record]:
    """Blind rows that ``benchmarks.group_free`` measured with the same code."""
    parts = read(GROUP_FREE)["parts"] if exists(GROUP_FREE) else []
    rows = {}
    for part in parts:
        task = Task(part["graph"], part["split"], "blind")
        if task in tasks and stamp().items() <= part.items():
            [row] = [row for row in part["rows"] if (row["rule"], row["target"]) == GROUP_FREE_RULE]
            rows[task] = {"rows": {BLIND: {key: row[key] for key in FIGURES}}}
    return rows


def merged(records: Mapping[Task, Record], names: Sequence[str]) -> list[Record]:
    """One record per graph and split, with the rows of all its parts."""
    splits = sorted({task.split for task in records})
    wholes = []
    for data, split in itertools.product(names, splits):
        parts = [records[task] for task in records if (task.data, task.split) == (data, split)]
        whole: Record = {"data": data, "split": split, "rows": {}}
        for part in parts:
            facts = {key: value for key, value in part.items() if key not in ("part", "code")}
            whole |= {**facts, "rows": whole["rows"] | part["rows"]}
        order = [*ROWS, *ONE_FOLD]
        whole["rows"] = {title: whole["rows"][title] for title in order if title in whole["rows"]}
        wholes.append(whole)
    return wholes


def measure(task: Task, *, data_dir: Path | None, settings: Settings) -> Record:
    """Fit the models of one part on one split, and measure its rows on the test nodes."""
    data = with_split(from_files(task.data, data_dir), seed=task.split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of targets that are missed on fitting nodes
        if task.part == "blend":
            return _blend(data, settings)
        rows = {"networks": _networks, "blind": _blind, "one fold": _one_fold}[task.part]
        evaluations = rows(data, settings)
    return {"rows": {title: _figures(evaluation) for title, evaluation in evaluations.items()}}


def _blind(data: Data, settings: Settings) -> dict[str, Evaluation]:
    model = FairClassifier(group_free=True, time_budget=NO_LIMIT, **settings)
    return {BLIND: _measured(_fit(model, data), data)}


def _one_fold(data: Data, settings: Settings) -> dict[str, Evaluation]:
    """The default, fitted on training nodes and judged on validation nodes."""
    uncorrected, batch, per_node = ONE_FOLD
    model = _fit(FairClassifier(time_budget=NO_LIMIT, **{**settings, "folds": 1}), data)
    return {
        batch: _measured(model, data),
        per_node: _measured(model, data, "per-node"),
        uncorrected: _at_target(model, data, NO_TARGET),
    }


def _blend(data: Data, settings: Settings) -> Record:
    """The rows of one fit of the default, and what it is made of."""
    start = time.process_time()
    model = _fit(FairClassifier(time_budget=NO_LIMIT, **settings), data)
    seconds = time.process_time() - start
    rows = _blend_rows(model, data)
    test = data.test_mask
    y, sens = data.y[test], data.sens[test]
    counts = torch.bincount(sens[sens >= 0]).tolist()
    rate = float(np.mean([group.positive_rate for group in rows[BLEND].groups]))
    layer = model.network_.propagation
    return {
        "rows": {title: _figures(evaluation) for title, evaluation in rows.items()},
        "targets": {str(target): _figures(_at_target(model, data, target)) for target in TARGETS},
        "floor": sampling_floor(counts, rate),
        "one_node": 1 / min(counts),
        "base_rate_bound": base_rate_bound(y, sens),
        "majority": float(torch.bincount(y).max()) / len(y),
        "gamma": list(layer.gamma) if isinstance(layer, FMP) else [],
        "propagates": isinstance(layer, FMP) and min(layer.gamma) < 1,
        "tried": [trial.to_dict() for trial in model.run_.tried],
        "processor_seconds": round(seconds, 1),
    }


def base_rate_bound(y: Tensor, sens: Tensor) -> float:
    """Highest accuracy of two-class decisions with equal rates in all groups, if all was known.

    Example:
        >>> y, sens = torch.tensor([0, 0, 1, 1, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> base_rate_bound(y, sens)  # base rates 1/2 and 3/4: one decision must be wrong
        0.875
    """
    base_rates, counts = [], []
    for group in sens.unique():
        base_rates.append(float((y[sens == group] == 1).double().mean()))
        counts.append(int((sens == group).sum()))
    # The cost is piecewise linear in the common rate, with its corners at the base rates.
    costs = [
        sum(count * abs(base - rate) for base, count in zip(base_rates, counts, strict=True))
        for rate in base_rates
    ]
    return 1 - min(costs) / sum(counts)


def _fit(model: FairClassifier, data: Data) -> FairClassifier:
    return model.fit(data, seed=0, bootstrap=0, progress=False)


def _networks(data: Data, settings: Settings) -> dict[str, Evaluation]:
    epochs = {key: value for key, value in settings.items() if key == "epochs"}
    rows = {}
    for title, solver, backbone in (
        ("MLP", "none", "mlp"),
        ("plain propagation", "plain", "mlp"),
        *((f"MLP + FMP ({solver})", solver, "mlp") for solver in PAPERS_SOLVERS),
        ("boosted trees", "none", "trees"),
    ):
        strength: Settings = {"lambda_f": PAPERS_LAMBDA_F} if solver in PAPERS_SOLVERS else {}
        model = build_classifier(solver, backbone=backbone, **strength, **epochs)
        rows[title] = _measured(_fit(model, data), data)
    fair = _fit(build_classifier("projection", backbone="mlp", **epochs), data)
    rows["MLP + FMP"] = _measured(fair, data)
    rows["MLP + FMP, per node"] = _measured(fair, data, "per-node")
    return rows


def _blend_rows(model: FairClassifier, data: Data) -> dict[str, Evaluation]:
    """Every correction of the scores of one fit."""
    rows = {
        DEFAULT: _measured(model, data),
        DEFAULT_ALONE: _measured(model, data, "per-node"),
        BLEND: _at_target(model, data, NO_TARGET),
    }
    test, layer = data.test_mask, model.network_.propagation
    assert isinstance(layer, FMP)
    target, layer.target = layer.target, NO_TARGET
    logits = model.predict_proba(data, nodes=test).double().clamp_min(1e-300).log()
    layer.target = target
    held, held_logits = model.held_out_.nodes, model.held_out_.logits.double()
    labels = (held_logits, data.y[held], data.sens[held])
    rows[THRESHOLD_OPTIMIZER] = _threshold_optimizer(labels, logits, data)
    thresholds = GroupThresholds(target, kind="logits").fit(
        held_logits, data.y[held], sensitive_features=data.sens[held]
    )
    sens = data.sens[test]
    solved = thresholds.solve(logits, sensitive_features=sens)
    shifted = solved.shift(logits, sensitive_features=sens)
    rows[THRESHOLDS] = evaluate(data.y[test], shifted, sensitive_features=sens, bootstrap=0)
    return rows


def _threshold_optimizer(
    labelled: tuple[Tensor, Tensor, Tensor], logits: Tensor, data: Data
) -> Evaluation:
    """Fairlearn's rule, fitted on the out-of-fold scores of labelled nodes."""
    from fairlearn.postprocessing import ThresholdOptimizer  # type: ignore[import-untyped]

    held_logits, y, sens = labelled
    test = data.test_mask

    rule = ThresholdOptimizer(
        estimator=_Scores(),
        constraints="demographic_parity",
        prefit=True,
        predict_method="predict",
    )
    margins, test_margins = (
        (z[:, 1:] - z[:, :1]).sigmoid().cpu().numpy() for z in (held_logits, logits)
    )
    rule.fit(margins, y.numpy(), sensitive_features=sens.numpy())
    decided = rule.predict(test_margins, sensitive_features=data.sens[test].numpy(), random_state=0)
    decisions = np.asarray(decided, dtype=int)
    return evaluate(data.y[test], decisions, sensitive_features=data.sens[test], bootstrap=0)


class _Scores(BaseEstimator):
    """A fitted estimator whose features are its scores."""

    fitted_ = True

    def fit(self, x: np.ndarray, y: np.ndarray) -> _Scores:
        """Do nothing."""
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the scores."""
        return np.asarray(x)[:, 0]


def _measured(model: FairClassifier, data: Data, mode: str = "batch") -> Evaluation:
    return model.evaluate(data, nodes=data.test_mask, mode=mode, bootstrap=0)  # type: ignore[arg-type]


def _at_target(model: FairClassifier, data: Data, target: float) -> Evaluation:
    """The same model, corrected to another target."""
    layer = model.network_.propagation
    assert isinstance(layer, FMP)
    own_target, layer.target = layer.target, target
    evaluation = _measured(model, data)
    layer.target = own_target
    return evaluation


def _figures(evaluation: Evaluation) -> dict[str, float]:
    return {key: float(getattr(evaluation, key)) for key in FIGURES}
