"""``fairmp monitor``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fairmp.cli import options, output
from fairmp.cli.options import CriterionGate, Gap, argument, option
from fairmp.cli.output import rerun_command
from fairmp.errors import InputError


def command(
    results: options.Results,
    gate: CriterionGate,
    run: Path = argument("Results of 'fairmp train'."),
    predictions: Path = argument("Table of new predictions, as 'fairmp predict' writes it."),
    sensitive: str | None = option("Sensitive column; by default that of training."),
    label: str | None = option("Column with known labels; by default that of training."),
    probabilities: str | None = option("Columns with the probability of each class: no,yes."),
    logits: str | None = option("Columns of logits; a single one is the log-odds of class 1."),
    decision: str | None = option("Column with decisions; by default that of 'fairmp predict'."),
) -> None:
    """Compare new predictions with those at training: has anything changed?

    Compares the shares of the groups, their rates of positive decisions, their scores and, where
    labels have come in, accuracy and gaps with those of the saved model's test nodes. A figure
    counts as changed if its difference exceeds sampling error. Decisions are read from their column
    if there is one; otherwise the likeliest class counts.
    """
    folder = results.folder("monitor")
    from fairmp.metrics.drift import compare
    from fairmp.postprocessing.evaluate_table import evaluate_table
    from fairmp.report import monitoring
    from fairmp.report.from_results import recorded_evaluation

    training = recorded_evaluation(run)
    named = (sensitive, label, decision)
    usual = _training_columns(run) if None in named else TrainingColumns()
    if sensitive is None and usual.sensitive is None:
        raise InputError("sensitive", "missing", "name the column with the groups")
    groups = sensitive or str(usual.sensitive)
    try:
        now = evaluate_table(
            predictions,
            class_names=training.class_names,
            group_names=tuple(group.name for group in training.groups),
            sensitive=groups,
            label=label,
            label_if_present=usual.label,
            probabilities=probabilities,
            logits=logits,
            decision=decision,
            decision_if_present=usual.decision,
        )
    except InputError as error:
        if error.argument == "sensitive" and not _has_column(predictions, groups):
            hint = "monitoring needs groups: join them to the table"
            raise InputError("sensitive", error.value, hint) from None
        raise
    drift = compare(training, now)
    with results.staging(folder) as staging:
        record = monitoring.write(
            drift,
            training,
            now,
            staging,
            title=f"{predictions.name} against {run}",
            command=rerun_command(),
        )
    lines = [str(drift), *(f"note: {note}" for note in now.notes)]
    where = f"All figures in {folder / monitoring.RECORD}; open {folder / 'report.html'}."
    output.report(results.as_json, record, *lines, where)
    figures = record["now"]
    gate.check(Gap.of_evaluation(figures, gate.criterion), impact_ratio=Gap.impact_ratio(figures))


def _has_column(table: Path, column: str) -> bool:
    from fairmp.postprocessing.prediction_table import PredictionTable

    return column in PredictionTable.read(table, columns=(column,)).columns


class TrainingColumns(NamedTuple):
    """Columns of the table a model was trained on."""

    sensitive: str | None = None
    label: str | None = None
    decision: str | None = None  # of its predictions


def _training_columns(run: Path) -> TrainingColumns:
    """The columns of a saved model; none if it was not trained on tables."""
    from fairmp.training.classifier import FairClassifier
    from fairmp.training.tables import prediction_columns

    model = FairClassifier.load(run / "model")
    decision, encoding = prediction_columns(model).decision, model.encoding_
    if encoding is None:
        return TrainingColumns(decision=decision)
    sensitive = encoding.sensitive[0].column if len(encoding.sensitive) == 1 else None
    return TrainingColumns(sensitive, encoding.label.column, decision)
