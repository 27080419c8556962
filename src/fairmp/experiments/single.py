"""One configuration on one graph: its classifier, and the files that tell of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from fairmp.datasets.statistics import statistics
from fairmp.errors import InputError
from fairmp.estimator import FairClassifier
from fairmp.experiments.trials import Record
from fairmp.metrics import METRICS, Evaluation
from fairmp.propagation import FMP, PPR, SOLVERS
from fairmp.report import Line, Section, page, summarise, to_markdown, tradeoff
from fairmp.report.figures import to_svg
from fairmp.report.tables import COLUMNS, cells
from fairmp.strategies import Regulariser


def classifier(
    solver: str,
    target: float,
    k: int,
    lambda_s: float,
    lambda_f: float,
    regulariser: float,
    **setting: Any,
) -> FairClassifier:
    """Make the classifier the program's options describe.

    Example:
        >>> classifier("plain", 0.0, 5, 3.0, 1.0, 0.0)
        FairClassifier(PPR(K=5, lambda_s=3.0), backbone='mlp')
    """
    names = (*SOLVERS, "plain", "none")
    if solver not in names:
        raise InputError(f"--solver: {solver!r} is unknown; choose one of {', '.join(names)}")
    propagation: FMP | PPR | None = None
    if solver == "plain":
        propagation = PPR(k, lambda_s)
    elif solver in SOLVERS:
        propagation = FMP(k, lambda_s, lambda_f, solver, target)
    strategy = Regulariser(regulariser) if regulariser else None
    return FairClassifier(propagation, strategy=strategy, **setting)


def write(data: Data, records: Sequence[Record], model: FairClassifier, folder: Path) -> list[Line]:
    """Write records, table, picture, model and page under a folder; return the table's lines."""
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
    test = model.run_.test
    sections = [
        Section("The graph", header=["", "value"], rows=_facts(data)),
        Section(
            "The figures",
            header=["method", *COLUMNS.values()],
            rows=[[line.name, *cells(line)] for line in [*lines, *per_split]],
            caption="Test nodes, in points; ± is half of a 95 % interval of the mean over splits.",
        ),
        Section("Accuracy and gap", svg=to_svg(figure)),
        Section(
            "The first split, group by group",
            header=["group", "nodes", "labelled", "accuracy %", *_rate_titles(test)],
            rows=_group_rows(test),
            caption=_intervals(test),
            text=list(test.notes),
        ),
        Section("The setting", code=json.dumps(model.config(), indent=2, ensure_ascii=False)),
    ]
    fair = "solved for the test nodes as a batch" if test.mode == "solve" else "not corrected"
    summary = (
        f"Accuracy {lines[0].cell('accuracy')} %, ΔDP {lines[0].cell('dp')} points and ΔEO "
        f"{lines[0].cell('eo')} points over {lines[0].splits} splits; predictions were {fair}."
    )
    (folder / "report.html").write_text(
        page(f"{data.name}: a trained classifier", summary, sections), encoding="utf-8"
    )
    return lines


def _facts(data: Data) -> list[tuple[str, str]]:
    row = statistics(data)
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


def _rate_titles(test: Evaluation) -> list[str]:
    return [f"predicted {name} %" for name in test.class_names] + ["TPR %", "FPR %"]


def _group_rows(test: Evaluation) -> list[list[str]]:
    return [
        [
            row.name,
            f"{row.count:,}",
            f"{row.labelled:,}",
            *(_percent(x) for x in (row.accuracy, *row.rates, row.tpr, row.fpr)),
        ]
        for row in test.groups
    ]


def _intervals(test: Evaluation) -> str:
    parts = []
    for key in METRICS:
        low, high = test.intervals.get(key, (float("nan"),) * 2)
        if low == low:
            parts.append(f"{key} {100 * low:.1f} to {100 * high:.1f}")
    return "95 % bootstrap intervals within this split: " + ", ".join(parts) + "."


def _percent(x: float) -> str:
    return "n/a" if x != x else f"{100 * x:.1f}"
