"""``fairmp demo``: every method on the embedded network, before and after the correction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch_geometric.data import Data

from fairmp.analysis.audits import audit
from fairmp.comparison import Record
from fairmp.comparison.training import write_runs
from fairmp.datasets.splits import split
from fairmp.datasets.synthetic import social_network
from fairmp.graph import Graph
from fairmp.metrics import evaluate
from fairmp.nn.fmp import FMP, PPR, SOLVERS
from fairmp.parallel import WorkerPool, default_workers
from fairmp.report import Document, Line, Point, Section, over, summarise, tradeoff
from fairmp.report.audits import graph_summary
from fairmp.report.document import summary
from fairmp.report.document import write as write_document
from fairmp.report.evaluations import add_decisions, from_evaluations, point
from fairmp.report.formats import constant_note, of_lines, points
from fairmp.report.panel import live_parts, show_own_figures
from fairmp.training import defaults
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Regulariser

K, LAMBDA_S = defaults.K, defaults.LAMBDA_S
EPOCHS, LR = 40, 0.02  # enough for the embedded network
PLAIN, FAIR = "plain propagation", "FMP"
STEPS = (
    "The logits of one trained network through each solver: the gap of predicted probabilities "
    "after each propagation step, over all nodes, in points. The printed step size is made for an "
    "operator whose squared norm is up to 2. On this network it is about {norm:.0e}, so after five "
    "steps the dual is thousands of times too small, whatever λ_f allows. The same steps with the "
    "right step size (papc) reduce the gap, and FMP as it is used here closes it in every step."
)
ASSUMPTIONS = [
    "The correction uses each person's group at prediction. Where that is not allowed, train a "
    "group-free model, which needs groups in training only.",
    "Fair means here that the groups get positive decisions equally often. That is one definition "
    "of several; which one matters is a decision, not a measurement.",
    "The network is synthetic: people mostly know people of their own group, and the groups differ "
    "in how often the label is positive. The group is not among the features. For your own graph: "
    "{train}.",
]


@dataclass(frozen=True)
class Commands:
    """Command lines that the report shows."""

    rerun: str
    train: str  # for the reader's own graph


@dataclass(frozen=True)
class Demo:
    """Every method on an embedded network."""

    data: Data
    records: list[Record]
    lines: list[Line]


class Job(NamedTuple):
    """A method to train on a split."""

    method: str
    split: int


@dataclass(frozen=True)
class Trained:
    """A method trained on one split."""

    record: Record
    model: FairClassifier


def methods(epochs: int = EPOCHS) -> dict[str, FairClassifier]:
    """The classifiers that are compared."""
    classifier = partial(FairClassifier, backbone="mlp", epochs=epochs, lr=LR, eval_every=5)
    plain = PPR(K, LAMBDA_S)
    return {
        "MLP (no graph)": classifier(None),
        "GCN, no regulariser": classifier(None, backbone="gcn"),
        PLAIN: classifier(plain),
        "plain + regulariser h=2": classifier(plain, strategy=Regulariser(2.0)),
        "FMP, paper (λ_f=30)": classifier(FMP(K, LAMBDA_S, 30.0, "paper")),
        "FMP, papc (λ_f=10)": classifier(FMP(K, LAMBDA_S, 10.0, "papc")),
        FAIR: classifier(FMP(K, LAMBDA_S)),
    }


def run(
    nodes: int,
    splits: int,
    seed: int,
    folder: Path,
    commands: Commands,
    *,
    classifiers: Mapping[str, FairClassifier] | None = None,
    workers: int | None = None,
    advance: Callable[[str], None] = lambda method: None,
) -> Demo:
    """Train every method on an embedded network; write records, table, figure, model and report.

    Args:
        nodes: size of the network.
        splits: number of splits.
        seed: seed of the network, the initialisations and the first split.
        folder: where to write.
        commands: what the report shows.
        classifiers: unfitted classifiers, by default those of :func:`methods`.
        workers: number of processes, by default one per core.
        advance: called with the name of each trained method.
    """
    data = social_network(n=nodes, seed=seed)
    classifiers = methods() if classifiers is None else classifiers
    jobs = [Job(method, split) for method in classifiers for split in range(splits)]
    train = partial(_train, classifiers=classifiers, nodes=nodes, seed=seed)
    trained: dict[Job, Trained] = {}
    with WorkerPool(train, workers or default_workers()) as pool:
        for job, result in pool.map(jobs[::-1]):
            trained[job] = result
            advance(job.method)
    records = [trained[job].record for job in jobs]
    model, uncorrected = trained[Job(FAIR, 0)].model, trained[Job(PLAIN, 0)].model
    lines = summarise(records)
    figure = tradeoff(lines, f"Embedded network, {over(splits)}")
    write_runs(records, lines, figure, model, folder)
    first_split = summarise(record for record in records if record["split"] == 0)
    write_document(_document(data, lines, first_split, uncorrected, model, commands), folder)
    return Demo(data, records, lines)


def _train(
    job: Job, *, classifiers: Mapping[str, FairClassifier], nodes: int, seed: int
) -> Trained:
    data = social_network(n=nodes, seed=seed)
    model = copy.deepcopy(classifiers[job.method])
    model.fit(data, seed=seed, split_seed=seed + job.split, bootstrap=0, progress=False)
    record = {"name": job.method, "dataset": data.name, "split": job.split}
    return Trained({**record, "run": model.run_.to_dict()}, model)


def gaps_by_step(model: FairClassifier, data: Data) -> dict[str, list[float]]:
    """Gap after each step of each solver on the logits of one network, over all nodes."""
    graph = Graph(data.edge_index, data.x.size(0))
    layers = {str(name): FMP(K, LAMBDA_S, lambda_f=30.0, solver=name) for name in SOLVERS}
    layers["no correction"] = FMP(K, LAMBDA_S, lambda_f=0.0, solver="papc")
    with torch.no_grad():
        logits = model.network_.logits(data.x, graph)
        adjacency = graph.adjacency(logits.dtype)
        p = logits.softmax(1)[:, 1]
        before = float((p[data.sens == 1].mean() - p[data.sens == 0].mean()).abs())
        gaps = {}
        for name, layer in layers.items():
            solution = layer.solve(logits, adjacency, data.sens, trace=True)
            gaps[name] = [before, *(float(step.gap.abs().max()) for step in solution.steps)]
    return gaps


def _document(
    data: Data,
    lines: list[Line],
    first_split: list[Line],
    uncorrected: FairClassifier,
    model: FairClassifier,
    commands: Commands,
) -> Document:
    """Contents of the report: one network, without and with its correction, on the first split."""
    splits = lines[0].splits
    test = split(data, seed=model.run_.split_seed or 0).test
    logits, y, sens = model.uncorrected()[test], data.y[test], data.sens[test]
    before = evaluate(
        y,
        logits,
        sensitive_features=sens,
        bootstrap=0,
        class_names=model.classes_,
        group_names=model.groups_,
    )
    report = from_evaluations(model.run_.test, before)
    decisions = (model.test_logits_.argmax(1).numpy(), logits.argmax(1).numpy())
    add_decisions(report, model.groups_, sens.numpy(), y.numpy(), *decisions)
    report |= live_parts(model, logits, y, sens)
    show_own_figures(report, model.criterion)
    if splits > 1:
        report["sample"] = f"split 1 of {splits}"
        report["summary"] = f"{_over_splits(lines)} Split 1: {summary(report)}"
    report |= {
        "title": "Fair message passing, in one minute",
        "graph": graph_summary(audit(data, steps=4)),
        "measured": "The test nodes of the first split",
        "correction": "Before is the same network with its correction between groups switched "
        "off; after is what it predicts.",
        "points": [
            *(_point(line) for line in first_split if line.name != FAIR),
            point("without the correction", "before", before),
            point("FMP", "chosen", model.run_.test),
        ],
        "lines": _every_method(lines),
        "extra": [_printed_algorithm(gaps_by_step(uncorrected, data), data.num_nodes)],
        "assumptions": [text.format(train=commands.train) for text in ASSUMPTIONS],
        "command": commands.rerun,
        "versions": model.run_.versions,
    }
    return report


def _over_splits(lines: Sequence[Line]) -> str:
    """The means that the table and the terminal show, for the headline."""
    figures = {line.name: line.figures for line in lines}
    (plain_gap, gap), (plain_accuracy, accuracy) = (
        [points(figures[name][key].mean) for name in (PLAIN, FAIR)] for key in ("dp", "accuracy")
    )
    return (
        f"On average over {lines[0].splits} splits, the gap between the groups (ΔDP) is {gap} "
        f"points with {FAIR} and {plain_gap} with {PLAIN}; accuracy is {accuracy} % and "
        f"{plain_accuracy} %."
    )


def _point(line: Line) -> Point:
    """A method on the trade-off chart."""
    accuracy, gap = line.figures["accuracy"].mean, line.figures["dp"].mean
    return {"name": line.name, "kind": "other", "accuracy": accuracy, "gap": gap}


def _every_method(lines: list[Line]) -> Section:
    """The table of all methods."""
    table = of_lines("", lines).without(["splits"])
    return Section(
        "Every method",
        text=[
            "ΔDP is the difference between the groups' rates of positive decisions, ΔEO the "
            "same among nodes whose label is positive, both in points. The constraint is on "
            "ΔDP: where the groups' true rates differ, closing it can open ΔEO, so both are "
            "shown."
        ],
        header=table.header,
        rows=table.rows,
        caption=f"Test nodes, {over(lines[0].splits)}. "
        f"{EPOCHS} epochs, lr {LR}, {defaults.HIDDEN} hidden units; fair predictions "
        f"were solved for the test nodes as a batch. {constant_note(lines)}".strip(),
    )


def _printed_algorithm(gaps: dict[str, list[float]], nodes: int) -> Section:
    """The gap after each step of each solver."""
    return Section(
        "The printed algorithm",
        [STEPS.format(norm=4 / nodes)],
        header=["solver", "input", *(f"step {k}" for k in range(1, K + 1))],
        rows=[[name, *(f"{100 * gap:.2f}" for gap in by_step)] for name, by_step in gaps.items()],
        appendix=True,
    )
