"""Correct the predictions of a table file: ``fairmp debias``, as a function."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fairmp.datasets.edges import EdgeColumns, node_ids
from fairmp.datasets.targets import Bins
from fairmp.datasets.values import free_names
from fairmp.errors import InputError
from fairmp.metrics.inputs import CROSS
from fairmp.nn.decisions import On
from fairmp.postprocessing import prediction_columns
from fairmp.postprocessing.corrections import Thresholds
from fairmp.postprocessing.debiaser import Debiaser
from fairmp.postprocessing.group_free import GroupFree
from fairmp.postprocessing.prediction_columns import TableScores, listed
from fairmp.postprocessing.prediction_table import PredictionTable
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
REVERSED_DEVIATIONS = 3  # below an AUC of a half, from which scores look reversed


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
    unknown: Sequence[str] | None = None  # values of sensitive columns that mean "not known"
    criterion: Sequence[str] = ()  # demographic parity if there is none
    target: Sequence[float] = ()  # of all criteria or of each; 0 if there is none
    on: On = "decisions"
    temperature: float = 1.0
    edges: Path | None = None  # edge table: smooths predictions; group_free: for the estimate
    id: str | None = None  # column with the ids that edges join
    edge_source: str | None = None  # columns of the edge table
    edge_target: str | None = None
    k: int = 5  # propagation steps
    lambda_s: float = 1.0  # strength of the smoothing
    estimate_sens: bool = False  # estimate unknown groups
    features: str | None = None  # columns of the estimate, or 'all'
    save: Path | None = None  # for the correction, which is then found for rows of any table
    apply: Path | None = None  # such a correction, to apply instead of finding one
    group_free: bool = False  # estimate groups from features, and read none when it is applied
    confidence: float | None = None  # of a promise about new people
    seed: int = 0  # of random draws

    def check(self) -> None:
        """Refuse arguments that exclude each other."""
        if not self.sensitive and not (self.group_free and self.apply):
            hint = "name the column with the groups"
            if self.apply:
                hint += ", or if the correction reads none, add {group_free=True}"
            raise InputError("sensitive", "missing", hint)
        if self.features is not None and not (self.estimate_sens or self.group_free):
            hint = "add {estimate_sens=True} or {group_free=True}"
            raise InputError("features", "they are used to estimate groups", hint)
        for argument in ("group_free", "confidence"):
            if getattr(self, argument) and self.save is None and self.apply is None:
                hint = "add {save}, a file for the correction"
                raise InputError(argument, "it is about rows of other tables", hint)
        if self.group_free and (self.features is None or self.features.strip() == "all"):
            raise InputError("features", "missing", "name the numeric columns that tell the group")
        self._check_saved()

    def _check_saved(self) -> None:
        """Refuse arguments that have no part in a correction that is saved or applied."""
        by_row = ["population", "estimate_sens"]
        if not self.group_free:
            by_row += ["edges", "features"]
        elif self.edges is not None and self.id is None:
            hint = "name the column with the ids, by which new people are joined to these"
            raise InputError("id", "missing", hint)
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
    groups: Sequence[Attribute]
    y: np.ndarray | None
    class_names: Sequence[str] | None
    weight: np.ndarray | None
    population: np.ndarray | None
    edge_index: Tensor | None
    features: np.ndarray | pd.DataFrame | None


@dataclass(frozen=True)
class TableResult:
    """A corrected table."""

    table: PredictionTable
    inputs: TableInputs
    result: DebiasResult
    corrector: Debiaser | None  # applies to other tables, if asked for
    notes: tuple[str, ...]  # how the table was read


def debias_table(spec: TableSpec) -> TableResult:
    """Read a table of predictions and correct them.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 1000)
        >>> p = 1 / (1 + np.exp(-rng.normal(size=1000) - (sex == "m")))
        >>> with tempfile.TemporaryDirectory() as place:
        ...     loans = Path(place) / "loans.csv"
        ...     pd.DataFrame({"p": p, "sex": sex}).to_csv(loans, index=False)
        ...     corrected = debias_table(TableSpec(loans, sensitive=["sex"], target=[0.02]))
        >>> corrected.notes
        ('probabilities of class 1 taken from p',)
        >>> [parity] = corrected.result.criteria
        >>> print(f"gap {parity.decisions_before:.2f} → {parity.decisions_after:.2f}")
        gap 0.40 → 0.02
    """
    spec.check()
    corrector = None if spec.apply is None else Debiaser.load(spec.apply)
    names = [spec.label, spec.population, spec.weight, *spec.sensitive]
    for argument in ("probabilities", "logits", "decision"):
        if text := getattr(spec, argument):
            names += listed(argument, text)
    exact = [spec.label, spec.decision, *(spec.sensitive if spec.sensitive_bins is None else ())]
    table = PredictionTable.read(
        spec.predictions,
        id=spec.id,
        columns=names,
        exact=exact,
        categories=_text_columns(spec, corrector),
    )
    with _renamed_arguments(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        columns, notes = _read_inputs(table, spec, corrector)
        if corrector is not None:
            result = _apply(corrector, columns)
        elif spec.save is not None:
            corrector = _fit(spec, columns, table)
            assert corrector.result_ is not None
            result = corrector.result_
        else:
            result = _correct(spec, columns)
    if columns.scores.are_decisions and corrector is not None:
        _check_draws_decisions(corrector)
    notes += tuple(str(warning.message) for warning in caught)
    return TableResult(table, columns, result, corrector, (*table.report.notes, *notes))


def _check_draws_decisions(corrector: Debiaser) -> None:
    """Refuse corrections that give probabilities, where decisions alone were given."""
    if not isinstance(corrector.correction_, Thresholds):
        value = "this correction gives probabilities, of which decisions cannot be measured"
        raise InputError("decision", value, "give {probabilities}, or leave out {save}")


@contextmanager
def _renamed_arguments() -> Iterator[None]:
    """Name the column of a table in errors about an argument of :func:`debias`."""
    try:
        yield
    except InputError as error:
        raise error.rename(NAMES.get(error.argument, error.argument)) from None


def _read_inputs(
    table: PredictionTable, spec: TableSpec, corrector: Debiaser | None
) -> tuple[TableInputs, tuple[str, ...]]:
    """Read the columns, and note how they were found."""
    scores = prediction_columns.read_scores(
        table,
        probabilities=spec.probabilities,
        logits=spec.logits,
        decision=spec.decision,
        positive=spec.positive,
        taken=spec.columns_by_role(),
    )
    scores = prediction_columns.with_positive_last(scores, spec.positive)
    notes, y, class_names = scores.notes, None, scores.class_names
    if spec.label is not None:
        labels = prediction_columns.read_labels(table, spec.label, scores, spec.positive)
        notes, y, class_names = notes + labels.notes, labels.y, labels.class_names
    if class_names is not None and len(class_names) == 2:
        guess = "" if spec.positive else "; name another with 'positive'"
        notes = (f"the positive class is {class_names[1]!r}{guess}", *notes)
        if y is not None:
            notes += _reversed_scores(scores.values, y, class_names)
    if spec.id is not None:
        table.require("id", spec.id)
    features: np.ndarray | pd.DataFrame | None = None
    if spec.group_free and spec.features is not None:
        names = listed("features", spec.features)
        features = pd.DataFrame({name: table.numbers("features", name) for name in names})
    elif spec.features is not None:
        others = {*spec.sensitive, *filter(None, (spec.label, spec.id))}
        features = prediction_columns.read_features(table, spec.features, others)
    columns = TableInputs(
        scores=scores,
        groups=_read_groups(table, spec, corrector),
        y=y,
        class_names=class_names,
        weight=None if spec.weight is None else table.numbers("weight", spec.weight),
        population=None if spec.population is None else table.mask("population", spec.population),
        edge_index=_edges(table, spec, corrector),
        features=features,
    )
    return columns, notes


def _reversed_scores(
    values: np.ndarray, y: np.ndarray, class_names: Sequence[str]
) -> tuple[str, ...]:
    """Ask whether scores of two classes that rank the labels the wrong way are of the other one."""
    from sklearn.metrics import roc_auc_score

    labelled = y >= 0
    positives = int((y[labelled] == 1).sum())
    negatives = int(labelled.sum()) - positives
    if not positives or not negatives:
        return ()
    auc = float(roc_auc_score(y[labelled], values[labelled, 1] - values[labelled, 0]))
    deviation = np.sqrt((1 / positives + 1 / negatives) / 12)  # of scores that know nothing
    if auc >= 0.5 - REVERSED_DEVIATIONS * deviation:
        return ()
    return (
        f"the higher the score of {class_names[1]!r}, the rarer that label (AUC {auc:.2f}): if "
        f"these are scores of {class_names[0]!r}, say so with 'positive'",
    )


def _edges(table: PredictionTable, spec: TableSpec, corrector: Debiaser | None) -> Tensor | None:
    """Read the edges between the rows or, to apply a correction, to the rows it was found on."""
    if spec.edges is None:
        return None
    columns = EdgeColumns(spec.edge_source, spec.edge_target)
    if corrector is None:
        return prediction_columns.read_edges(table, spec.edges, spec.id, columns)
    correction = corrector.correction_
    people = correction.people if isinstance(correction, GroupFree) else None
    if people is None or not people.ids:
        value = "the correction was found without them"
        raise InputError("edges", value, "leave them out, or find it with {edges}")
    return prediction_columns.read_edges_to_known(table, spec.edges, spec.id, columns, people.ids)


def _text_columns(spec: TableSpec, corrector: Debiaser | None) -> list[str]:
    """Columns to cross that held text where the correction was found: numbers have a stem there."""
    if corrector is None or not spec.cross or spec.sensitive_bins is not None:
        return []
    names = [
        name for _, groups in corrector.groups_ for group in groups for name in group.split(CROSS)
    ]
    return [
        column
        for column in spec.sensitive
        if not any(name.startswith(f"{column} = ") for name in names)
    ]


def _read_groups(
    table: PredictionTable, spec: TableSpec, corrector: Debiaser | None
) -> Sequence[Attribute]:
    if not spec.sensitive:
        return []
    if corrector is not None and not spec.cross and spec.sensitive_bins is None:
        # The groups are those of the correction, some may be absent here.
        known = [groups for _, groups in corrector.groups_]
        if len(known) == len(spec.sensitive):
            return [
                prediction_columns.read_known_groups(table, column, groups)
                for column, groups in zip(spec.sensitive, known, strict=True)
            ]
    return prediction_columns.read_groups(
        table, spec.sensitive, spec.sensitive_bins, cross=spec.cross, unknown=spec.unknown
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
    if inputs.scores.are_decisions and spec.on == "probabilities":
        value = "'probabilities', but a column of decisions has none"
        raise InputError("on", value, "leave it out, or name {probabilities}")
    target = list(spec.target) or [0.0]
    return {
        "criterion": list(spec.criterion) or ["demographic_parity"],
        "target": target[0] if len(target) == 1 else target,
        "on": spec.on,
        "temperature": spec.temperature,
    }


def _fit(spec: TableSpec, inputs: TableInputs, table: PredictionTable) -> Debiaser:
    """Find a correction that applies to other tables."""
    corrector = Debiaser(
        **_goal(spec, inputs),
        kind=inputs.scores.kind,
        seed=spec.seed,
        class_names=inputs.class_names,
        group_free=spec.group_free,
        confidence=spec.confidence,
    )
    corrector.fit(
        inputs.scores.values,
        inputs.y,
        sensitive_features=inputs.groups,
        sample_weight=inputs.weight,
        features=inputs.features,
        edge_index=inputs.edge_index,
    )
    correction = corrector.correction_
    if isinstance(correction, GroupFree) and correction.people is not None:
        ids = tuple(map(str, node_ids(table.frame, spec.id).to_pylist()))
        people = replace(correction.people, ids=ids)
        corrector.correction_ = replace(correction, people=people)
    return corrector


def _apply(corrector: Debiaser, inputs: TableInputs) -> DebiasResult:
    """Apply a correction that was saved."""
    corrector.kind_ = inputs.scores.kind
    return corrector.evaluate(
        inputs.scores.values,
        inputs.y,
        sensitive_features=inputs.groups or None,
        sample_weight=inputs.weight,
        features=inputs.features,
        edge_index=inputs.edge_index,
    )


DECISIONS = ("decision_before", "decision_corrected")


def added_names(corrected: TableResult) -> list[str]:
    """Names of the columns that are added: none takes the name of a column of the table."""
    scores = corrected.inputs.scores
    names = [f"{column}_corrected" for column in scores.columns]
    if scores.are_decisions:
        names = []
    taken = {*corrected.table.columns, *corrected.table.raw.column_names}
    return free_names([*names, *DECISIONS], taken)


def added_columns(corrected: TableResult) -> dict[str, np.ndarray | list[str]]:
    """Columns of corrected predictions, and of the decisions before and after."""
    scores, result = corrected.inputs.scores, corrected.result
    values = np.asarray(result.predictions)
    decided = values.argmax(1)
    names = added_names(corrected)
    if scores.are_decisions:
        values = values[:, :0]
    elif scores.are_log_odds:
        values = values[:, 1:] - values[:, :1]
    elif len(names) == 1 + len(DECISIONS):
        values = values[:, 1:]
    classes = np.array(result.classes, dtype=object)
    before, after = classes[scores.values.argmax(1)].tolist(), classes[decided].tolist()
    return dict(zip(names, [*values.T, before, after], strict=True))
