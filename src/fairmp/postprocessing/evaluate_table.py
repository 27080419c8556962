"""Evaluate the predictions of a table file: what ``fairmp monitor`` compares with training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fairmp.errors import InputError, plural
from fairmp.metrics import evaluate
from fairmp.metrics.evaluation import Evaluation
from fairmp.postprocessing.prediction_table import (
    PredictionTable,
    TableScores,
    read_labels,
    read_scores,
)


def evaluate_table(
    predictions: Path,
    *,
    class_names: tuple[str, ...],
    group_names: tuple[str, ...],
    sensitive: str,
    label: str | None = None,
    label_if_present: str | None = None,
    probabilities: str | None = None,
) -> Evaluation:
    """Read a table of predictions and evaluate it by the classes and groups of a model.

    ``sensitive`` and ``label`` are columns; ``label_if_present`` is one that a table may lack.
    """
    table = PredictionTable.read(predictions, columns=(sensitive, label))
    if label is None and label_if_present in table.columns:
        label = label_if_present
    taken = {sensitive: "sensitive"} | ({label: "label"} if label else {})
    scores = read_scores(table, probabilities=probabilities, taken=taken)
    scores = _in_order(scores, class_names)
    sens = _group_codes(table, sensitive, group_names)
    y = np.full(len(sens), -1)
    if label is not None:
        y = read_labels(table, label, scores).y
    try:
        evaluation = evaluate(
            scores.values, y, sens, class_names=class_names, group_names=group_names
        )
    except InputError as error:
        raise error.rename("sensitive" if error.argument == "sens" else error.argument) from None
    notes = evaluation.notes
    if unknown := int((sens < 0).sum()):
        notes += (f"{plural(unknown, 'row')} of unknown group, or of one not seen in training",)
    return replace(evaluation, notes=notes)


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
    codes = {name.removeprefix(stem): code for code, name in enumerate(group_names)}
    cells = [str(cell).strip() for cell in table.cells("sensitive", column)]
    return np.array([codes.get(cell, -1) for cell in cells])
