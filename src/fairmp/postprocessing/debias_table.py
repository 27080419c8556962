"""Correct the predictions of a table file: ``fairmp debias``, as a function."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fairmp.datasets.targets import Bins
from fairmp.errors import InputError
from fairmp.nn.decisions import On
from fairmp.postprocessing import prediction_table
from fairmp.postprocessing.debiaser import Debiaser
from fairmp.postprocessing.prediction_table import PredictionTable, TableScores, listed
from fairmp.postprocessing.predictions import Attribute
from fairmp.postprocessing.result import DebiasResult
from fairmp.postprocessing.solver import debias

# Arguments of debias() and Debiaser, as they are called here.
NAMES = {
    "scores": "predictions",
    "X": "predictions",
    "sens": "sensitive",
    "sensitive_features": "sensitive",
    "y": "label",
    "sample_weight": "weight",
}


@dataclass(frozen=True)
class TableSpec:
    """A table of predictions, what its columns mean, and how it is corrected."""

    predictions: Path  # CSV, TSV or Parquet
    sensitive: Sequence[str] = ()  # columns, empty where unknown
    probabilities: str | None = None  # columns, separated by commas; else those that look like it
    logits: str | None = None  # columns; a single one has the log-odds of class 1
    decision: str | None = None  # column with decisions, if there are no scores; new ones are drawn
    label: str | None = None  # column with true classes, empty where unknown
    positive: str | None = None  # value of the label (or decision) that is class 1
    population: str | None = None  # column, true where the gap is closed; by default all rows
    weight: str | None = None  # column with the weight of each row
    sensitive_bins: Bins | None = None  # of a numeric sensitive column
    cross: bool = False  # cross the sensitive columns into one
    criterion: Sequence[str] = ()  # demographic parity if there is none
    target: Sequence[float] = ()  # of all criteria or of each; 0 if there is none
    on: On = "decisions"
    temperature: float = 1.0
    edges: Path | None = None  # edge table; with it predictions are smoothed
    id: str | None = None  # column with the ids that edges join
    k: int = 5  # propagation steps
    lambda_s: float = 1.0  # strength of the smoothing
    estimate_sens: bool = False  # estimate unknown groups
    features: str | None = None  # columns of the estimate, or 'all'
    save: Path | None = None  # for the correction, which is then found for rows of any table
    apply: Path | None = None  # such a correction, to apply instead of finding one
    seed: int = 0  # of random draws

    def check(self) -> None:
        """Refuse arguments that exclude each other."""
        if not self.sensitive:
            raise InputError("sensitive", "missing", "name the column with the groups")
        if self.features is not None and not self.estimate_sens:
            hint = "add {estimate_sens=True}"
            raise InputError("features", "they are used to estimate groups", hint)
        by_row = ("edges", "features", "population", "estimate_sens")
        excluded = {"save": by_row, "apply": (*by_row, "criterion", "target", "save")}
        for name, arguments in excluded.items():
            for argument in arguments if getattr(self, name) else ():
                if getattr(self, argument):
                    hint = f"omit it, or {{{name}}}"
                    raise InputError(argument, "a saved correction has no use for it", hint)

    def columns_by_role(self) -> dict[str, str]:
        """Columns that hold no predictions, and the argument that names each."""
        columns = dict.fromkeys(self.sensitive, "sensitive")
        for argument in ("label", "id", "population", "weight"):
            if column := getattr(self, argument):
                columns[column] = argument
        if self.features is not None:
            columns |= dict.fromkeys(listed("features", self.features), "features")
        return columns


@dataclass(frozen=True)
class TableInputs:
    """The columns of a table, as :func:`~fairmp.postprocessing.solver.debias` takes them."""

    scores: TableScores
    groups: Sequence[Attribute] | dict[str, list[Any]]
    y: np.ndarray | None
    class_names: Sequence[str] | None
    weight: np.ndarray | None
    population: np.ndarray | None
    edge_index: Tensor | None
    features: np.ndarray | None


@dataclass(frozen=True)
class TableResult:
    """A corrected table."""

    table: PredictionTable
    inputs: TableInputs
    result: DebiasResult
    corrector: Debiaser | None  # applies to other tables, if asked for
    notes: tuple[str, ...]  # how the table was read


def debias_table(spec: TableSpec) -> TableResult:
    """Read a table of predictions and correct them."""
    spec.check()
    corrector = None if spec.apply is None else Debiaser.load(spec.apply)
    names = [spec.label, spec.population, spec.weight, *spec.sensitive]
    for argument in ("probabilities", "logits", "decision"):
        if text := getattr(spec, argument):
            names += listed(argument, text)
    table = PredictionTable.read(spec.predictions, id=spec.id, columns=names)
    with _renamed_arguments(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        inputs, notes = _read_inputs(table, spec)
        if corrector is not None:
            result = _apply(corrector, inputs)
        elif spec.save is not None:
            corrector = _fit(spec, inputs)
            assert corrector.result_ is not None
            result = corrector.result_
        else:
            result = _correct(spec, inputs)
    notes += tuple(str(warning.message) for warning in caught)
    return TableResult(table, inputs, result, corrector, (*table.report.notes, *notes))


@contextmanager
def _renamed_arguments() -> Iterator[None]:
    """Name the column of a table in errors about an argument of :func:`debias`."""
    try:
        yield
    except InputError as error:
        raise error.rename(NAMES.get(error.argument, error.argument)) from None


def _read_inputs(table: PredictionTable, spec: TableSpec) -> tuple[TableInputs, tuple[str, ...]]:
    """Read the columns, and note how they were found."""
    scores = prediction_table.read_scores(
        table,
        probabilities=spec.probabilities,
        logits=spec.logits,
        decision=spec.decision,
        positive=spec.positive,
        taken=spec.columns_by_role(),
    )
    notes, y, class_names = scores.notes, None, scores.class_names
    if spec.label is not None:
        labels = prediction_table.read_labels(table, spec.label, scores, spec.positive)
        notes, y, class_names = notes + labels.notes, labels.y, labels.class_names
    if spec.id is not None:
        table.require("id", spec.id)
    features = None
    if spec.features is not None:
        others = {*spec.sensitive, *filter(None, (spec.label, spec.id))}
        features = prediction_table.read_features(table, spec.features, others)
    inputs = TableInputs(
        scores=scores,
        groups=_read_groups(table, spec),
        y=y,
        class_names=class_names,
        weight=None if spec.weight is None else table.numbers("weight", spec.weight),
        population=None if spec.population is None else table.mask("population", spec.population),
        edge_index=None
        if spec.edges is None
        else prediction_table.read_edges(table, spec.edges, spec.id),
        features=features,
    )
    return inputs, notes


def _read_groups(
    table: PredictionTable, spec: TableSpec
) -> Sequence[Attribute] | dict[str, list[Any]]:
    if spec.apply is not None and not spec.cross and spec.sensitive_bins is None:
        # The groups are those of the correction, some may be absent here.
        return {column: table.cells("sensitive", column) for column in spec.sensitive}
    return prediction_table.read_groups(
        table, spec.sensitive, spec.sensitive_bins, cross=spec.cross
    )


def batch_arguments(spec: TableSpec, inputs: TableInputs) -> dict[str, Any]:
    """Arguments of :func:`debias` that do not depend on the criterion."""
    return {
        "population": inputs.population,
        "edge_index": inputs.edge_index,
        "K": spec.k,
        "lambda_s": spec.lambda_s,
        "kind": inputs.scores.kind,
        "class_names": inputs.class_names,
        "seed": spec.seed,
        "sample_weight": inputs.weight,
    }


def _correct(spec: TableSpec, inputs: TableInputs) -> DebiasResult:
    """Correct the predictions as a batch."""
    result: DebiasResult = debias(
        inputs.scores.values,
        inputs.groups,
        **_goal(spec, inputs),
        y=inputs.y,
        estimate_sens=spec.estimate_sens,
        features=inputs.features,
        full_output=True,
        **batch_arguments(spec, inputs),
    )
    return result


def _goal(spec: TableSpec, inputs: TableInputs) -> dict[str, Any]:
    """What is closed, and how far."""
    target = list(spec.target) or [0.0]
    return {
        "criterion": list(spec.criterion) or ["demographic_parity"],
        "target": target[0] if len(target) == 1 else target,
        # Decisions without scores can only be equalised by chance: their probabilities are.
        "on": "probabilities" if inputs.scores.are_decisions else spec.on,
        "temperature": spec.temperature,
    }


def _fit(spec: TableSpec, inputs: TableInputs) -> Debiaser:
    """Find a correction that applies to other tables."""
    corrector = Debiaser(
        **_goal(spec, inputs),
        kind=inputs.scores.kind,
        seed=spec.seed,
        class_names=inputs.class_names,
    )
    return corrector.fit(
        inputs.scores.values,
        inputs.y,
        sensitive_features=inputs.groups,
        sample_weight=inputs.weight,
    )


def _apply(corrector: Debiaser, inputs: TableInputs) -> DebiasResult:
    """Apply a correction that was saved."""
    corrector.kind_ = inputs.scores.kind
    return corrector.evaluate(
        inputs.scores.values,
        inputs.y,
        sensitive_features=inputs.groups,
        sample_weight=inputs.weight,
    )


def added_columns(corrected: TableResult, seed: int) -> dict[str, np.ndarray | list[str]]:
    """Columns of corrected predictions, and of the decisions before and after."""
    scores, result = corrected.inputs.scores, corrected.result
    values = np.asarray(result.predictions)
    decided = values.argmax(1)
    if scores.are_decisions:
        names = [f"p_corrected({name})" for name in result.classes]
        draw = np.random.default_rng(seed).random((len(values), 1))
        decided = np.minimum((values.cumsum(1) < draw).sum(1), values.shape[1] - 1)
        if len(names) == 2:
            names, values = ["p_corrected"], values[:, 1:]
    else:
        names = [f"{column}_corrected" for column in scores.columns]
        if scores.are_log_odds:
            values = values[:, 1:] - values[:, :1]
        elif len(names) == 1:
            values = values[:, 1:]
    classes = np.array(result.classes, dtype=object)
    return {
        **dict(zip(names, values.T, strict=True)),
        "decision_before": classes[scores.values.argmax(1)].tolist(),
        "decision_corrected": classes[decided].tolist(),
    }
