"""``fairmp monitor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.cli import options
from fairmp.cli.options import CriterionGate, argument, option
from fairmp.errors import InputError
from fairmp.outputs import write_json

if TYPE_CHECKING:
    from fairmp.cli.prediction_table import PredictionTable
    from fairmp.metrics import Evaluation
    from fairmp.metrics.drift import Change, ScoreChange

UNCHANGED = "Nothing changed by more than sampling error."


def command(
    results: options.Results,
    gate: CriterionGate,
    run: Path = argument("Results of 'fairmp train'."),
    predictions: Path = argument("Table of new predictions, as 'fairmp predict' writes it."),
    sensitive: str | None = option("Sensitive column; by default that of training."),
    label: str | None = option("Column with known labels; by default that of training."),
    probabilities: str | None = option("Columns with the probability of each class: no,yes."),
) -> None:
    """Compare new predictions with those at training: has anything changed?

    Compares the shares of the groups, their rates of positive decisions, their scores and, where
    labels have come in, accuracy and gaps with those of the saved model's test nodes. A figure
    counts as changed where its difference exceeds sampling error.
    """
    folder = results.folder("monitor")
    from fairmp.cli import prediction_table
    from fairmp.metrics.drift import changes
    from fairmp.metrics.evaluation import aligned, json_safe
    from fairmp.report import document
    from fairmp.report.document import from_evaluations

    before = _reference(run)
    table = prediction_table.read(predictions, None, (sensitive, label))
    if sensitive is None or label is None:
        known = _columns(run)
        sensitive = known.get("sensitive") if sensitive is None else sensitive
        if label is None and known.get("label") in table.columns:
            label = known["label"]
    if sensitive is None:
        raise InputError("--sensitive", "missing", "name the column with the groups")
    after, strangers = _measure(table, before, sensitive, label, probabilities)
    now, notes = after.to_dict(), [*after.notes]
    figures, scores = changes(before, now)
    names = [one.name for one in figures if one.changed]
    names += [f"scores of {one.group}" for one in scores if one.changed]
    verdict = f"Changed by more than sampling error: {', '.join(names)}." if names else UNCHANGED
    if strangers:
        notes.append(f"{strangers:,} rows of unknown group, or of one not seen in training")
    record = {
        "verdict": verdict,
        "changed": bool(names),
        "figures": json_safe(figures),
        "scores": json_safe(scores),
        "training": before,
        "now": now,
        "notes": notes,
    }
    rows = _rows(figures, scores)
    with results.staging(folder) as staging:
        write_json(staging / "monitor.json", record)
        page = from_evaluations(now)
        page |= {"title": f"{predictions.name} against {run}", "summary": verdict, "notes": notes}
        caption = (
            "Training: the saved model's test nodes. Changed: the difference exceeds sampling "
            "error at a level of 5 % for all figures together."
        )
        lines = {"header": rows[0], "rows": rows[1:], "title": "Then and now", "caption": caption}
        document.write(page | {"lines": lines, "command": options.rerun_command()}, staging)
    where = f"All figures in {folder / 'monitor.json'}; open {folder / 'report.html'}."
    notes = [f"note: {note}" for note in notes]
    options.report(results.as_json, record, *aligned(rows), *notes, verdict, where)
    gate.check(options.gap_of_evaluation(now, gate.criterion))


def _reference(run: Path) -> dict[str, Any]:
    """Figures of the saved model's test nodes."""
    path = run / "records.jsonl"
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.readline())["run"]["test"]
        if not found["groups"] or not found["class_names"]:
            raise ValueError("no groups")
    except (OSError, KeyError, TypeError, ValueError) as error:
        hint = "give the folder that 'fairmp train' wrote"
        raise InputError("RUN", f"{path} is not a record of a training ({error})", hint) from None
    return dict(found)


def _columns(run: Path) -> dict[str, str]:
    """The sensitive and the label column of the model's training table, if it had one."""
    from fairmp.training.classifier import FairClassifier

    with options.typed({"path": "RUN"}):
        encoding = FairClassifier.load(run / "model").encoding_
    if encoding is None:
        return {}
    found = {"label": encoding.label.column}
    if len(encoding.sensitive) == 1:
        found["sensitive"] = encoding.sensitive[0].column
    return found


def _measure(
    table: PredictionTable,
    before: dict[str, Any],
    sensitive: str,
    label: str | None,
    probabilities: str | None,
) -> tuple[Evaluation, int]:
    """Figures of the new predictions, and the number of rows without a known group."""
    import numpy as np

    from fairmp.cli import prediction_table as columns
    from fairmp.metrics import evaluate

    classes = [str(name) for name in before["class_names"]]
    taken = {sensitive: "--sensitive", label or "": "--label"}
    found = columns.find(table, {"--probabilities": probabilities}, taken)
    proba = found.values
    if found.names is not None and set(found.names) == set(classes):
        proba = proba[:, [found.names.index(name) for name in classes]]
    elif proba.shape[1] != len(classes) or found.names is not None:
        value = f"classes {', '.join(found.names or map(str, range(proba.shape[1])))}"
        raise InputError("PREDICTIONS", value, f"the model predicts {', '.join(classes)}")
    table.require("--sensitive", sensitive)
    names = [str(group["name"]).removeprefix(f"{sensitive} = ") for group in before["groups"]]
    cells = [str(cell).strip() for cell in table.raw.column(sensitive).to_pylist()]
    sens = np.array([names.index(cell) if cell in names else -1 for cell in cells])
    y = np.full(len(cells), -1)
    if label is not None:
        found.names = classes
        y, _ = columns.labels(table, label, found, None)
    groups = [str(group["name"]) for group in before["groups"]]
    with options.typed({"sens": "--sensitive"}):
        measured = evaluate(proba, y, sens, class_names=classes, group_names=groups)
    return measured, int((sens < 0).sum())


def _rows(figures: list[Change], scores: list[ScoreChange]) -> list[list[str]]:
    from fairmp.metrics.evaluation import points

    rows = [["in points", "training", "now", "difference", "95 % interval", "verdict"]]
    for one in figures:
        ends = f"{100 * one.low:+.1f} to {100 * one.high:+.1f}"
        numbers = [points(one.before), points(one.after), f"{100 * (one.after - one.before):+.1f}"]
        rows.append([one.name, *numbers, ends, "changed" if one.changed else "–"])
    for score in scores:
        index = f"stability index {score.psi:.3f}"
        shown = [f"scores of {score.group}", "", "", index, f"p = {score.p_value:.2g}"]
        rows.append([*shown, "changed" if score.changed else "–"])
    return rows
