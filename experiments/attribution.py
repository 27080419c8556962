"""What does the work: networks, propagation, blending and each correction, row by row.

Two tracks that are never mixed: *batch* rows use the groups of the nodes predicted together, *per
node* rows decide one node at a time. All rows of the default blend share one fit per split.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor
from torch_geometric.data import Data

from experiments import external
from experiments.committed import SPLITS, TITLES, exists, read
from experiments.options import Page, Scope, show
from experiments.parts import Task, run
from experiments.provenance import stamp
from fairmp import FairClassifier, outputs
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
from fairmp.report.formats import Table, spread
from fairmp.training.classifier import build_classifier

FIGURES = ("accuracy", "dp", "eo")
NO_CORRECTION, PER_NODE, BATCH = "none", "per node", "batch"
BLEND, BLIND = "default blend", "FairClassifier(group_free=True)"
ROWS: dict[str, str] = {
    "MLP": NO_CORRECTION,
    "plain propagation": NO_CORRECTION,
    "boosted trees": NO_CORRECTION,
    BLEND: NO_CORRECTION,
    "FairGNN, no fairness part": NO_CORRECTION,
    "NIFTY, no fairness part": NO_CORRECTION,
    "MLP + FMP (paper)": BATCH,
    "MLP + FMP": BATCH,
    f"{BLEND} + thresholds": BATCH,
    "FairClassifier()": BATCH,
    "FairGNN": PER_NODE,
    "NIFTY": PER_NODE,
    "MLP + FMP, per node": PER_NODE,
    f"{BLEND} + ThresholdOptimizer": PER_NODE,
    "FairClassifier(), per node": PER_NODE,
    BLIND: PER_NODE,
}
"""Rows and the track each belongs to."""
SUMMARY = {
    "the default blend of models, uncorrected": BLEND,
    "the same, a threshold per group, nodes predicted together": f"{BLEND} + thresholds",
    "the same, FMP, nodes predicted together": "FairClassifier()",
    "the same, FMP, each node alone": "FairClassifier(), per node",
    "no group read, each node alone": BLIND,
}
"""Rows that tell the story in short."""
REFERENCE = {BATCH: "FairClassifier()", PER_NODE: "FairClassifier(), per node"}
RECORD = "attribution.json"
GROUP_FREE, GROUP_FREE_RULE = "group-free", ("blind, neighbours' groups", 0.0)
NO_LIMIT = 1e9  # seconds: what is fitted must not depend on how busy the machine is
PARTS = ("blend", "blind", "networks")  # the longest first
Settings = Mapping[str, Any]


def command(
    results: Results,
    scope: Scope,
    graph: list[str] = option("Graph; repeat for several. The same as --data.", []),
    split: list[int] = option("Split; repeat for several. By default 20 to 29.", []),
    jobs: Workers = None,
    group_free: bool = option("Also fit without reading groups.", True),
) -> None:
    """Separate what networks, propagation, blending and each correction contribute.

    One line per graph, split and part is appended to records.jsonl; the same command continues.
    Rows without the group are taken from the record of the blind rules, where this code made it.
    """
    folder = results.out or Path("fairmp-attribution")
    outputs.hold(folder, overwrite=True)
    compare.check_folder(folder)
    names = list(graph) or list(scope.data or ())
    names = names or (["embedded:300"] if scope.quick else ["nba", "german"])
    splits = list(split) or list(SPLITS[: 1 if scope.quick else None])
    parts = [part for part in PARTS if group_free or part != "blind"]
    folder.mkdir(parents=True, exist_ok=True)
    # The largest graphs are named last, and come first: no process is left with one at the end.
    tasks = [Task(*each) for each in itertools.product(reversed(names), splits, parts)]
    settings = {"epochs": 5, "folds": 2} if scope.quick else {}
    fit = partial(measure, data_dir=scope.data_dir, settings=settings)
    path, jobs = folder / compare.RECORDS, jobs or default_workers()
    records = merged(run(tasks, fit, path, jobs, stamp(), _recorded_blind(tasks)), names)
    content = {"command": "python -m experiments attribution", **stamp(), "records": records}
    write_json(folder / RECORD, content)
    tables = [table(records, name) for name in names]
    Page("Attribution", _SUMMARY, tables).write(folder)
    show(results, content, folder, tables)


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
        whole["rows"] = {title: whole["rows"][title] for title in ROWS if title in whole["rows"]}
        wholes.append(whole)
    return wholes


def measure(task: Task, *, data_dir: Path | None, settings: Settings) -> Record:
    """Fit the models of one part on one split, and measure its rows on the test nodes."""
    data = with_split(from_files(task.data, data_dir), seed=task.split)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of targets that are missed on fitting nodes
        if task.part == "blend":
            return _blend(data, settings)
        rows = {
            "networks": partial(_networks, data, settings),
            "blind": partial(_blind, data, settings),
        }[task.part]()
    return {"rows": {title: _figures(evaluation) for title, evaluation in rows.items()}}


def _blind(data: Data, settings: Settings) -> dict[str, Evaluation]:
    model = FairClassifier(group_free=True, time_budget=NO_LIMIT, **settings)
    return {BLIND: _measured(_fit(model, data), data)}


def _blend(data: Data, settings: Settings) -> Record:
    """The rows of one fit of the default, and what it is made of."""
    model = _fit(FairClassifier(time_budget=NO_LIMIT, **settings), data)
    rows = _blend_rows(model, data)
    sens = data.sens[data.test_mask]
    counts = torch.bincount(sens[sens >= 0]).tolist()
    rate = float(np.mean([group.positive_rate for group in rows[BLEND].groups]))
    layer = model.network_.propagation
    return {
        "rows": {title: _figures(evaluation) for title, evaluation in rows.items()},
        "floor": sampling_floor(counts, rate),
        "one_node": 1 / min(counts),
        "gamma": list(layer.gamma) if isinstance(layer, FMP) else [],
        "propagates": isinstance(layer, FMP) and min(layer.gamma) < 1,
        "tried": [trial.to_dict() for trial in model.run_.tried],
    }


def _fit(model: FairClassifier, data: Data) -> FairClassifier:
    return model.fit(data, seed=0, bootstrap=0, progress=False)


def _networks(data: Data, settings: Settings) -> dict[str, Evaluation]:
    epochs = {key: value for key, value in settings.items() if key == "epochs"}
    rows = {}
    for title, solver, backbone in (
        ("MLP", "none", "mlp"),
        ("plain propagation", "plain", "mlp"),
        ("MLP + FMP (paper)", "paper", "mlp"),
        ("boosted trees", "none", "trees"),
    ):
        rows[title] = _measured(
            _fit(build_classifier(solver, backbone=backbone, **epochs), data), data
        )
    fair = _fit(build_classifier("projection", backbone="mlp", **epochs), data)
    rows["MLP + FMP"] = _measured(fair, data)
    rows["MLP + FMP, per node"] = _measured(fair, data, "per-node")
    return rows


def _blend_rows(model: FairClassifier, data: Data) -> dict[str, Evaluation]:
    """Every correction of the scores of one fit."""
    rows = {
        "FairClassifier()": _measured(model, data),
        "FairClassifier(), per node": _measured(model, data, "per-node"),
    }
    layer, test = model.network_.propagation, data.test_mask
    assert isinstance(layer, FMP)
    target, layer.target = layer.target, 1.0  # any gap is within it: nothing is corrected
    logits = model.predict_proba(data, nodes=test).double().clamp_min(1e-300).log()
    rows[BLEND] = _measured(model, data)
    layer.target = target
    held, held_logits = model.held_out_.nodes, model.held_out_.logits.double()
    labels = (held_logits, data.y[held], data.sens[held])
    rows[f"{BLEND} + ThresholdOptimizer"] = _threshold_optimizer(labels, logits, data)
    thresholds = GroupThresholds(target, kind="logits").fit(
        held_logits, data.y[held], sensitive_features=data.sens[held]
    )
    sens = data.sens[test]
    solved = thresholds.solve(logits, sensitive_features=sens)
    shifted = solved.shift(logits, sensitive_features=sens)
    rows[f"{BLEND} + thresholds"] = evaluate(
        data.y[test], shifted, sensitive_features=sens, bootstrap=0
    )
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


def _figures(evaluation: Evaluation) -> dict[str, float]:
    return {key: float(getattr(evaluation, key)) for key in FIGURES}


def with_rivals(records: Iterable[Record]) -> list[Record]:
    """The records with the rows of FairGNN and NIFTY on the same splits, where they were run."""
    rivals = external.recorded()
    return [
        {**record, "rows": {**record["rows"], **rivals.get((record["data"], record["split"]), {})}}
        for record in records
    ]


def table(records: Sequence[Record], graph: str) -> Table:
    """The rows of one graph, by track, with paired differences to the default of the track."""
    records = with_rivals(record for record in records if record["data"] == graph)
    rows = []
    for title, track in ROWS.items():
        values = [record["rows"].get(title) for record in records]
        if not records or None in values:
            continue
        cells = [_cell([value[key] for value in values]) for key in FIGURES]
        rows.append([title, track, *cells, _difference(records, title, track)])
    floor = 100 * float(np.mean([record["floor"] for record in records] or [np.nan]))
    count = sum(record["propagates"] for record in records)
    note = f"The default propagates on {count} of {len(records)} splits."
    header = ["method", "track", "accuracy %", f"ΔDP (floor {floor:.1f})", "ΔEO", "Δ accuracy"]
    return Table(f"{graph}: what does the work. {note}", header, rows)


def summary(records: Sequence[Record], graph: str) -> Table:
    """The rows of one graph that tell the story in short."""
    records = [record for record in records if record["data"] == graph]
    rows = [
        [words, *(_cell([record["rows"][title][key] for record in records]) for key in FIGURES[:2])]
        for words, title in SUMMARY.items()
    ]
    floor = 100 * float(np.mean([record["floor"] for record in records]))
    return Table("", ["", "accuracy %", f"ΔDP (floor {floor:.1f})"], rows)


def propagation(records: Sequence[Record]) -> Table:
    """On how many splits of each graph the default propagates at all."""
    rows = []
    for graph in dict.fromkeys(record["data"] for record in records):
        flags = [record["propagates"] for record in records if record["data"] == graph]
        rows.append([TITLES[graph], f"{sum(flags)} of {len(flags)} splits"])
    return Table("", ["graph", "the default propagates on"], rows)


def _difference(records: Sequence[Record], title: str, track: str) -> str:
    reference = REFERENCE.get(track)
    if reference in (None, title):
        return "–"
    own, other = (
        np.array([record["rows"][name]["accuracy"] for record in records])
        for name in (title, reference)
    )
    return _cell((own - other).tolist(), sign="+")


def _cell(values: Sequence[float], sign: str = "") -> str:
    interval = spread(list(values))
    text = f"{100 * interval.mean:{sign}.1f}"
    if np.isnan(interval.low):
        return text
    return f"{text} ± {50 * (interval.high - interval.low):.1f}"
