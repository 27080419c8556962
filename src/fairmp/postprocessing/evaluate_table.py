"""Evaluate the predictions of a table file: what ``fairmp monitor`` compares with training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fairmp.errors import InputError, plural
from fairmp.metrics import evaluate
from fairmp.metrics.evaluation import Evaluation
from fairmp.postprocessing.prediction_columns import (
    TableScores,
    read_known_groups,
    read_labels,
    read_scores,
)
from fairmp.postprocessing.prediction_table import PredictionTable


def evaluate_table(  # noqa: PLR0913
    predictions: Path,
    *,
    class_names: tuple[str, ...],
    group_names: tuple[str, ...],
    sensitive: str,
    label: str | None = None,
    label_if_present: str | None = None,
    probabilities: str | None = None,
    logits: str | None = None,
    decision: str | None = None,
    decision_if_present: str | None = None,
) -> Evaluation:
    """Read a table of predictions and evaluate it by the classes and groups of a model.

    ``sensitive``, ``label`` and ``decision`` are columns; ``label_if_present`` and
    ``decision_if_present`` are such that a table may lack. Rates, gaps and accuracy are of the
    column of decisions, and without one of the likeliest classes.
    """
    columns = (sensitive, label, decision)
    table = PredictionTable.read(predictions, columns=columns, exact=(*columns, label_if_present))
    if label is None and label_if_present in table.columns:
        label = label_if_present
    if decision is None and decision_if_present in table.columns:
        decision = decision_if_present
    roles = {"sensitive": sensitive, "label": label, "decision": decision}
    taken = {column: role for role, column in roles.items() if column is not None}
    scores = read_scores(table, probabilities=probabilities, logits=logits, taken=taken)
    scores = _in_order(scores, class_names)
    sens = _group_codes(table, sensitive, group_names)
    y = np.full(len(sens), -1)
    if label is not None:
        y = read_labels(table, label, scores).y
    measured = partial(
        evaluate, y, sensitive_features=sens, class_names=class_names, group_names=group_names
    )
    try:
        evaluation = measured(scores.values)
        if decision is not None:
            decided = _decision_codes(table, decision, class_names)
            differing = int((decided != scores.values.argmax(1)).sum())
            evaluation = _with_decisions(evaluation, measured(decided), decision, differing)
    except InputError as error:
        known_names = {"sensitive_features": "sensitive"}
        raise error.rename(known_names.get(error.argument, error.argument)) from None
    notes = evaluation.notes
    if unknown := int((sens < 0).sum()):
        notes += (f"{plural(unknown, 'row')} of unknown group, or of one not seen in training",)
    return replace(evaluation, notes=notes)


def _decision_codes(
    table: PredictionTable, column: str, class_names: tuple[str, ...]
) -> np.ndarray:
    codes = {name: code for code, name in enumerate(class_names)}
    cells = [str(cell).strip() for cell in table.cells("decision", column)]
    stray = next((cell for cell in cells if cell not in codes), None)
    if stray is not None:
        value = f"{stray!r} in column {column!r} is not a class"
        raise InputError("decision", value, f"the model predicts {', '.join(class_names)}")
    return np.array([codes[cell] for cell in cells])


def _with_decisions(
    by_score: Evaluation, by_decision: Evaluation, column: str, differing: int
) -> Evaluation:
    """Rates and gaps of decisions, beside the AUC and calibration of the scores."""
    groups = tuple(
        replace(
            decided,
            score_counts=scored.score_counts,
            calibration_error=scored.calibration_error,
        )
        for decided, scored in zip(by_decision.groups, by_score.groups, strict=True)
    )
    notes = by_score.notes
    if differing:
        rows = plural(differing, "row")
        notes += (f"decisions are those of column {column!r}; {rows} differ from the likeliest",)
    return replace(
        by_decision,
        auc=by_score.auc,
        calibration_error=by_score.calibration_error,
        intervals=by_decision.intervals | {"auc": by_score.intervals["auc"]},
        groups=groups,
        notes=notes,
    )


def _in_order(scores: TableScores, class_names: tuple[str, ...]) -> TableScores:
    """Scores with their columns in the order of the classes."""
    values, names = scores.values, scores.class_names
    if names is not None and set(names) == set(class_names):
        values = values[:, [names.index(name) for name in class_names]]
    elif values.shape[1] != len(class_names) or names is not None:
        value = f"classes {', '.join(names or map(str, range(values.shape[1])))}"
        raise InputError("predictions", value, f"the model predicts {', '.join(class_names)}")
    return replace(scores, values=values, class_names=class_names)


def _group_codes(table: PredictionTable, column: str, group_names: tuple[str, ...]) -> np.ndarray:
    # The training names groups "f" or "sex = f", depending on the column.
    stem = f"{column} = "
    groups = [name.removeprefix(stem) for name in group_names]
    codes: np.ndarray = read_known_groups(table, column, groups).sens.numpy()
    return np.where(codes < len(groups), codes, -1)
