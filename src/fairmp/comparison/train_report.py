"""One configuration on one graph: its classifier, and the files that tell of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.analysis.audits import audit
from fairmp.comparison.runner import Record
from fairmp.datasets.checks import MASKS
from fairmp.datasets.splits import split
from fairmp.datasets.statistics import Statistics
from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.nn.fmp import FMP, PPR, SOLVERS
from fairmp.nn.models import Graph
from fairmp.report import Line, Section, over, summarise, to_markdown, tradeoff
from fairmp.report.document import Point, Story
from fairmp.report.document import write as write_story
from fairmp.report.figures import to_svg
from fairmp.report.formatting import asked
from fairmp.report.from_evaluation import add_decisions, cautions, from_evaluations, point
from fairmp.report.sections import part_of
from fairmp.report.tables import COLUMNS, cells
from fairmp.report.topology import topology
from fairmp.training.alignment import to_device
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Regulariser, Strategy

_SMALL = 0.005
_SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


def classifier(
    solver: str,
    target: float,
    k: int,
    lambda_s: float,
    lambda_f: float,
    regulariser: float,
    *,
    adversary: float = 0.0,
    pretrain: int = 70,
    **setting: Any,
) -> FairClassifier:
    """Make the classifier the program's options describe.

    Example:
        >>> classifier("plain", 0.0, 5, 3.0, 1.0, 0.0)
        FairClassifier(PPR(K=5, lambda_s=3.0), backbone='mlp')
    """
    names = (*SOLVERS, "plain", "none")
    if solver not in names:
        raise InputError("--solver", f"{solver!r} is unknown", f"choose one of {', '.join(names)}")
    propagation: FMP | PPR | None = None
    if solver == "plain":
        propagation = PPR(k, lambda_s)
    elif solver in SOLVERS:
        propagation = FMP(k, lambda_s, lambda_f, solver, target)
    if regulariser and adversary:
        raise InputError(
            "--adversary",
            f"{adversary:g} beside --regulariser {regulariser:g}",
            "choose one of them",
        )
    strategy: Strategy | None = None
    if regulariser:
        strategy = Regulariser(regulariser)
    elif adversary:
        strategy = Adversary(adversary, pretrain_classifier=pretrain)
    return FairClassifier(propagation, strategy=strategy, **setting)


def write(
    data: Data | Statistics,
    records: Sequence[Record],
    model: FairClassifier,
    folder: Path,
    *,
    command: str = "",
    picture: bool = False,
) -> list[Line]:
    """Write records, table, pictures, model and report under a folder; return the table's lines.

    Args:
        data: the graph; its statistics where it is too large to have in one place.
        records: one a split (:func:`fairmp.comparison.runner.one_split`).
        model: the first split's.
        folder: where to.
        command: how to run it again.
        picture: whether to draw the graph.
    """
    lines = summarise(records)
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / "table.md").write_text(to_markdown(lines), encoding="utf-8")
    per_split = [
        line
        for record in records
        for line in summarise([{**record, "name": f"split {record['split']}"}])
    ]
    figure = tradeoff([*lines, *per_split][:8], f"{data.name}: {lines[0].name}")
    figure.savefig(folder / "tradeoff.png", dpi=150)
    model.save(folder / "model")
    told = _figures(data, model) if isinstance(data, Statistics) else story(data, model)
    told |= {
        "command": command,
        "lines": {
            "header": ["", *COLUMNS.values()],
            "rows": [[line.name, *cells(line)] for line in [*lines, *per_split]],
            "title": "Over several splits" if len(records) > 1 else "On one split",
            "caption": f"Test nodes, {over(len(records))}. Gaps in points."
            + " The parts above are of the first split." * (len(records) > 1),
        },
    }
    if picture and not isinstance(data, Statistics):
        drawn = topology(data, components=1, max_nodes=1000)
        (folder / "topology.svg").write_text(to_svg(drawn), encoding="utf-8")
        told["picture"] = "topology.svg"
    write_story(told, folder)
    return lines


def of_first(model: FairClassifier) -> list[str]:
    """Say how the first split's model does on its test nodes, and what to mind in that."""
    test, target = model.run_.test, _target(model)
    notes = cautions(test.to_dict())
    if target is not None and len(test.groups) > 2:
        notes.insert(0, asked(target))
    return ["The first split's test nodes:", str(test), *(f"note: {note}" for note in notes)]


def story(data: Data, model: FairClassifier) -> Story:
    """Tell what a fitted classifier does to the test nodes of the split it was fitted on.

    Before is the same network with its correction switched off, and the curve is what mending that
    to smaller and smaller gaps costs.
    """
    run = model.run_
    test = (
        data[MASKS[2]]
        if run.split_seed is None
        else split((data.y, groups.likeliest(data.sens)), seed=run.split_seed).test
    )
    y, sens = data.y[test], groups.certain(data.sens)[test]
    fair = isinstance(model.propagation, FMP)
    plain = _uncorrected(model, data)[test]
    names: dict[str, Any] = {"class_names": model.classes_, "group_names": model.groups_}
    without = evaluate(plain, y, sens, **names).to_dict()
    after = run.test.to_dict()
    told = _figures(data, model, without if fair else None)
    add_decisions(
        told,
        model.groups_,
        sens.numpy(),
        y.numpy(),
        model.predict(data, nodes=test).cpu().numpy(),
        plain.argmax(1).numpy() if fair else None,
    )
    told |= {
        "curve": _mended(plain, y, sens, without["dp"], names),
        "curve_note": "The curve takes the network's predictions without the correction and mends "
        "them, after the fact, to smaller and smaller gaps on the same test nodes.",
        "points": [point("this model", "chosen", after)],
        "read": [] if getattr(data, "report", None) is None else list(data.report.lines()),
    }
    if fair:
        told["points"].append(point("without the correction", "before", without))
        told["correction"] = (
            "Before is the same network with its correction between groups switched off; after is "
            "what it predicts."
        )
    if not groups.soft(data.sens):
        told["graph"] = audit(data).to_dict()
    unknown = int((~groups.known(data.sens)).sum())
    if unknown:
        told["assumptions"].append(
            f"The group of {unknown:,} of {data.sens.size(0):,} nodes is unknown: they are in no "
            "gap, and no correction reaches them."
        )
    return told


def _figures(
    data: Data | Statistics, model: FairClassifier, without: dict[str, Any] | None = None
) -> Story:
    """What can be told without the graph."""
    run = model.run_
    told = from_evaluations(run.test.to_dict(), without, within=_target(model))
    told |= {
        "title": f"{data.name}: a trained classifier",
        "measured": f"{run.test.n:,} test nodes of the first split, which neither the training nor "
        "the choice of the epoch saw",
        "assumptions": _assumptions(model, run.test.n),
        "setting": model.config(),
        "versions": run.versions,
    }
    if isinstance(data, Statistics):
        told["extra"] = [part_of(Section("The graph", header=["", "value"], rows=_facts(data)))]
    return told


def _target(model: FairClassifier) -> float | None:
    """The gap that was asked for; only the projection asks for one."""
    layer = model.propagation
    return layer.target if isinstance(layer, FMP) and layer.solver == "projection" else None


def _facts(row: Statistics) -> list[tuple[str, str]]:
    share = lambda x: "n/a" if x is None else f"{100 * x:.2f} %"  # noqa: E731
    return [
        ("nodes", f"{row.nodes:,}"),
        ("undirected edges", f"{row.edges // 2:,}"),
        ("features", f"{row.features}"),
        ("labelled nodes", f"{row.labelled:,}"),
        ("sensitive homophily", share(row.sens_homophily)),
        ("label homophily, labelled pairs", share(row.label_homophily_labelled)),
        ("groups", ", ".join(f"{k}: {v:,}" for k, v in (row.groups or {}).items())),
        ("classes", ", ".join(f"{k}: {v:,}" for k, v in (row.classes or {}).items())),
    ]


def _uncorrected(model: FairClassifier, data: Data) -> Tensor:
    """The network's logits, propagated and not corrected (n×C, on the CPU)."""
    if not isinstance(model.propagation, FMP):
        return model.predict_proba(data).clamp_min(1e-12).log().cpu()
    data = to_device(data, model.device)
    graph = Graph(data.edge_index, data.x.size(0), data.get("edge_weight"))
    with torch.no_grad():
        logits = model.network_.logits(data.x, graph)
        plain = PPR(model.propagation.K, model.propagation.lambda_s)
        return plain(logits, graph.adjacency(logits.dtype)).cpu()


def _mended(
    logits: Tensor, y: Tensor, sens: Tensor, gap: float, names: dict[str, Any]
) -> list[Point]:
    """Accuracy and gap of predictions mended to a range of targets."""
    if not gap > _SMALL:
        return []
    edges, found = torch.empty(2, 0, dtype=torch.int64), set()
    for share in _SHARES:
        with torch.no_grad():
            layer = FMP(1, 0.0, target=share * gap)
            fair = layer(logits, edges, sens, decisions=True)
        figures = evaluate(fair, y, sens, bootstrap=0, **names)
        found.add((figures.dp, figures.accuracy))
    return [{"gap": dp, "accuracy": accuracy} for dp, accuracy in sorted(found)]


def _assumptions(model: FairClassifier, count: int) -> list[str]:
    found = []
    if isinstance(model.propagation, FMP):
        found.append(
            "The correction uses each person's group at prediction. Where that is not allowed, "
            "train with --solver plain --regulariser 5, which needs groups in training only."
        )
        found.append(
            "The correction was solved for the test nodes as one batch. Another batch is corrected "
            "a little differently; 'fairmp predict --mode frozen' keeps one correction for all."
        )
    return [
        *found,
        "Fair means here that the groups get positive decisions equally often (ΔDP). Where their "
        "true rates differ, that pulls away from equal chances among the truly positive (ΔEO). "
        "Both are shown; which one matters is a decision, not a measurement.",
        "The labels are taken for the truth. If they are past decisions, their bias is in them.",
        f"Intervals speak of other draws of {count:,} test nodes, taken as independent. Neighbours "
        "in a graph resemble each other, so true intervals are wider rather than narrower.",
    ]
