"""``fairmp monitor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.cli import options
from fairmp.cli.options import CriterionGate, argument, option
from fairmp.errors import InputError, plural

if TYPE_CHECKING:
    import numpy as np

    from fairmp.cli.prediction_table import PredictionTable


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
    from fairmp.metrics import evaluate
    from fairmp.metrics.drift import compare
    from fairmp.report import monitoring
    from fairmp.report.from_results import recorded_evaluation

    with options.typed({"run": "RUN"}):
        training = recorded_evaluation(run)
    table = prediction_table.read(predictions, None, (sensitive, label))
    sensitive, label = _columns(run, table, sensitive, label)
    classes = list(training.class_names)
    groups = [group.name for group in training.groups]
    sample = _sample(table, classes, groups, sensitive, label, probabilities)
    with options.typed({"sens": "--sensitive"}):
        evaluation = evaluate(
            sample.proba, sample.y, sample.sens, class_names=classes, group_names=groups
        )
    notes = list(evaluation.notes)
    if unknown := int((sample.sens < 0).sum()):
        notes.append(f"{plural(unknown, 'row')} of unknown group, or of one not seen in training")
    drift = compare(training, evaluation)
    with results.staging(folder) as staging:
        record = monitoring.write(
            drift,
            training,
            evaluation,
            staging,
            title=f"{predictions.name} against {run}",
            command=options.rerun_command(),
            notes=notes,
        )
    lines = [str(drift), *(f"note: {note}" for note in notes)]
    where = f"All figures in {folder / monitoring.RECORD}; open {folder / 'report.html'}."
    options.report(results.as_json, record, *lines, where)
    gate.check(options.gap_of_evaluation(record["now"], gate.criterion))


def _columns(
    run: Path, table: PredictionTable, sensitive: str | None, label: str | None
) -> tuple[str, str | None]:
    """The sensitive and the label column, by default those of the model's training table."""
    if sensitive is None or label is None:
        from fairmp.training.classifier import FairClassifier

        with options.typed({"path": "RUN"}):
            encoding = FairClassifier.load(run / "model").encoding_
        if encoding is not None:
            if label is None and encoding.label.column in table.columns:
                label = encoding.label.column
            if sensitive is None and len(encoding.sensitive) == 1:
                sensitive = encoding.sensitive[0].column
    if sensitive is None:
        raise InputError("--sensitive", "missing", "name the column with the groups")
    return sensitive, label


@dataclass(frozen=True)
class _Sample:
    """The predictions of a table."""

    proba: np.ndarray
    y: np.ndarray  # −1 for unknown
    sens: np.ndarray  # −1 for unknown


def _sample(
    table: PredictionTable,
    classes: list[str],
    groups: list[str],
    sensitive: str,
    label: str | None,
    probabilities: str | None,
) -> _Sample:
    """Read the columns of a table, coded by the classes and groups of the training."""
    import numpy as np

    from fairmp.cli import prediction_table

    taken = {sensitive: "--sensitive", label or "": "--label"}
    scores = prediction_table.find(table, {"--probabilities": probabilities}, taken)
    proba: Any = scores.values
    if scores.names is not None and set(scores.names) == set(classes):
        proba = proba[:, [scores.names.index(name) for name in classes]]
    elif proba.shape[1] != len(classes) or scores.names is not None:
        value = f"classes {', '.join(scores.names or map(str, range(proba.shape[1])))}"
        raise InputError("PREDICTIONS", value, f"the model predicts {', '.join(classes)}")
    table.require("--sensitive", sensitive)
    # The training names groups "f" or "sex = f", depending on the column.
    codes = {name.removeprefix(f"{sensitive} = "): code for code, name in enumerate(groups)}
    cells = [str(cell).strip() for cell in table.raw.column(sensitive).to_pylist()]
    sens = np.array([codes.get(cell, -1) for cell in cells])
    y = np.full(len(cells), -1)
    if label is not None:
        scores.names = classes
        y, _ = prediction_table.labels(table, label, scores, None)
    return _Sample(proba, y, sens)
