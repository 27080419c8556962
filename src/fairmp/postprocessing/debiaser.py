"""A correction that is learned on one table and applied to another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from fairmp.errors import InputError, plural
from fairmp.groups import is_soft
from fairmp.metrics.counts import weights
from fairmp.nn.decisions import On, Ties
from fairmp.postprocessing import correction_files
from fairmp.postprocessing.confidence import Promise, certify_thresholds
from fairmp.postprocessing.corrections import (
    MAX_FITTED_LOGIT,
    CorrectedLogits,
    Correction,
    ThresholdMixture,
    Thresholds,
)
from fairmp.postprocessing.criteria import (
    Criterion,
    Measure,
    Problem,
    measures_of,
    read_criteria,
    read_problem,
)
from fairmp.postprocessing.effects import summarise
from fairmp.postprocessing.group_free import GroupFree, fit_group_free
from fairmp.postprocessing.neighbours import KnownPeople
from fairmp.postprocessing.predictions import (
    Attribute,
    Scores,
    attributes,
    attributes_of_all,
    column_names,
    read_features,
    read_labels,
    read_scores,
    recode,
)
from fairmp.postprocessing.result import DebiasResult
from fairmp.postprocessing.solver import (
    Settings,
    memberships_of,
    missed_probability_targets,
    missed_targets,
    same_decision,
    solve,
)

CALIBRATED_SLACK = 0.02  # by which labels may miss a target that their calibrated rates meet
ROUTED = {"sensitive_features": True, "features": True}


class NotFitted(InputError, NotFittedError):
    """A correction is used before it is fitted."""


@dataclass(frozen=True)
class _Rows:
    """Rows to correct."""

    scores: Scores
    groups: Sequence[Attribute]  # empty where they are not read
    columns: np.ndarray | None = None  # from which groups are estimated, where they are


@dataclass(frozen=True)
class _Fitted:
    """A correction that was found, and what it was found for."""

    correction: Correction | GroupFree
    measures: tuple[Measure, ...]
    promise: Promise | None = None
    columns: np.ndarray | None = None  # of the fitting rows, as in _Rows


class Debiaser(TransformerMixin, BaseEstimator):
    r"""Learn a correction by group on one table and apply it to another, row by row.

    A scikit-learn transformer: :meth:`fit` finds the correction that :func:`fairmp.debias` would
    make, :meth:`transform` applies it to any rows, one at a time, and :meth:`predict` decides. On
    new rows the gap is the target plus sampling error: ``result_.expected_gap(m)`` is the gap to
    expect on m new people. The correction is verified on the fitting table as it is applied to
    others; a warning names each target it misses there by more than one row.

    In a ``Pipeline`` or a search it comes after a classifier's scores
    (:class:`~fairmp.postprocessing.out_of_fold.OutOfFoldScores`); ``sensitive_features`` and
    ``features`` reach it by scikit-learn's metadata routing, without ``set_fit_request``.

    Args:
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (the same as
            ``"true_positive_rate_parity"``), ``"false_positive_rate_parity"``,
            ``"equalized_odds"``, or a list of these.
        target: the largest gap accepted, 0.02 for two points.
        on: close the gap of ``"decisions"`` or of ``"probabilities"``. That of decisions is exact
            for two classes and one criterion, by one threshold per group; for equalized odds and
            several criteria, thresholds drawn at random have these rates on average; else small
            temperatures are used.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``, decided by the table it is fitted on.
        ties: ``"random"``: rows with equal scores at a threshold are split at random; ``"keep"``:
            they get the same decision.
        seed: of the random choice among ties.
        temperature: τ of the probabilities whose gap is closed, with ``on="probabilities"``.
        calibrate: with labels, find thresholds for calibrated probabilities of the labels, which
            varies less from sample to sample than the labels themselves; False closes the gap on
            the labelled rows of the fitting table exactly.
        class_names: names of the classes, for text labels.
        group_free: read nobody's group in :meth:`transform`. Groups are estimated from the
            ``features`` of each row, and the :mod:`blind rule <fairmp.postprocessing.blind>`
            decides; for one attribute and one criterion.
        confidence: promise the target for new people of the same population with this confidence,
            0.95 for example, or refuse with the number of people that are missing; for demographic
            parity and equal opportunity of two classes, and for every criterion and any number of
            classes with ``group_free``. ``promise_`` says it in words.

    Attributes:
        result_: a :class:`~fairmp.postprocessing.result.DebiasResult` on the fitting table;
            ``None`` for a loaded correction.
        correction_: what :meth:`transform` applies (:mod:`fairmp.postprocessing.corrections`).
        promise_: the :class:`~fairmp.postprocessing.confidence.Promise`, with ``confidence``.
        groups_: names of the groups of each attribute.
        classes_: names of the classes.
        kind_: ``"logits"`` or ``"probabilities"``.
        n_features_in_: number of columns of scores.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> sex = np.where(rng.random(4000) < 0.5, "f", "m")
        >>> p = 1 / (1 + np.exp(-rng.normal(size=4000) - (sex == "m")))
        >>> corrector = Debiaser(target=0.0).fit(p[:2000], sensitive_features=sex[:2000])
        >>> fair, others = corrector.transform(p[2000:], sensitive_features=sex[2000:]), sex[2000:]
        >>> for q in (p[2000:], fair):
        ...     print(f"{(q[others == 'm'] > 0.5).mean() - (q[others == 'f'] > 0.5).mean():.2f}")
        0.34
        0.00
    """

    result_: DebiasResult | None
    correction_: Correction | GroupFree
    promise_: Promise | None
    groups_: list[tuple[str, tuple[str, ...]]]
    classes_: tuple[str, ...]
    kind_: str
    n_features_in_: int

    # What scikit-learn routes here where a pipeline or a search is given it.
    __metadata_request__fit = ROUTED
    __metadata_request__transform = ROUTED
    __metadata_request__predict = ROUTED
    __metadata_request__score = ROUTED

    def __init__(  # noqa: PLR0913
        self,
        criterion: str | Sequence[str] = "demographic_parity",
        target: Any = 0.0,
        *,
        on: On = "decisions",
        kind: str = "auto",
        ties: Ties = "random",
        seed: int = 0,
        temperature: float = 1.0,
        calibrate: bool = True,
        class_names: Sequence[str] | None = None,
        group_free: bool = False,
        confidence: float | None = None,
    ) -> None:
        self.group_free, self.confidence = group_free, confidence
        self.criterion, self.target, self.on = criterion, target, on
        self.kind, self.ties, self.seed = kind, ties, seed
        self.temperature, self.calibrate, self.class_names = temperature, calibrate, class_names

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        features: Any = None,
        edge_index: Any = None,
    ) -> Self:
        """Find the correction.

        Args:
            X: n×C logits or probabilities, or n probabilities of class 1.
            y: true classes (n): numbers (−1 unknown) or names (empty unknown); needed for criteria
                on labels.
            sensitive_features: groups, or several attributes; see :func:`fairmp.debias`.
            sample_weight: weight of each row (n).
            features: what groups are estimated from (n×d), with ``group_free``; numbers. Columns of
                a table are found by their names later.
            edge_index: edges between the rows (2×E), with ``group_free``: the neighbours' features
                and known groups enter the estimates
                (:class:`~fairmp.postprocessing.neighbours.KnownPeople`). The correction then stores
                the features and groups of these rows.
        """
        if edge_index is not None and not self.group_free:
            raise InputError("edge_index", "groups are not estimated", "add {group_free=True}")
        if sensitive_features is None:
            raise InputError("sensitive_features", "missing", "give the group of each row")
        aligned = {
            "sensitive_features": sensitive_features,
            "y": y,
            "sample_weight": sample_weight,
            "features": features,
        }
        scores = read_scores(X, self.kind, argument="X", aligned=aligned)
        _check_size(scores.logits)
        problem = read_problem(
            scores,
            attributes_of_all(sensitive_features, len(scores.logits)),
            y,
            class_names=self.class_names,
            sample_weight=sample_weight,
        )
        # In float64, so that the shift of a row does not depend on its precision.
        problem = replace(problem, logits=scores.logits.double())
        criteria = read_criteria(self.criterion, self.target)
        if self.group_free:
            fitted = self._fit_group_free(problem, criteria, features, edge_index)
        else:
            fitted = self._fit_by_group(problem, criteria)
        self.correction_, self.promise_ = fitted.correction, fitted.promise
        self.kind_ = "probabilities" if scores.are_probabilities else "logits"
        self.classes_ = problem.classes
        self.groups_ = [(attribute.name, attribute.groups) for attribute in problem.attributes]
        self.n_features_in_ = 1 if scores.single else len(problem.classes)
        # As it is applied to any other table.
        applied = self._apply(_Rows(scores, problem.attributes, fitted.columns))
        self.result_ = self._effect(problem, applied)
        for text in self._missed(problem, fitted.measures, applied.logits):
            warnings.warn(text, stacklevel=2)
        if self.on == "decisions":
            for text in same_decision(problem, applied.logits):
                warnings.warn(text, stacklevel=2)
        return self

    def _fit_by_group(self, problem: Problem, criteria: list[Criterion]) -> _Fitted:
        """Find a correction that reads the group of a row."""
        settings = Settings(
            on=self.on,
            temperature=self.temperature,
            ties=self.ties,
            seed=self.seed,
            calibrate=self.calibrate,
            for_other_rows=True,
        )
        solution = solve(problem, criteria, settings)
        assert solution.correction is not None
        if self.confidence is None:
            return _Fitted(solution.correction, solution.measures)
        # Replace the thresholds by those whose gap can be promised.
        if not isinstance(solution.correction, Thresholds) or problem.is_weighted:
            value = "a promise is for two classes, one attribute, one criterion and no weights"
            raise InputError("confidence", value, "leave it out")
        (criterion,), (attribute,) = criteria, problem.attributes
        logits = problem.logits.cpu().numpy()
        certified = certify_thresholds(
            logits[:, 1] - logits[:, 0],
            attribute.sens.cpu().numpy(),
            problem.y.cpu().numpy(),
            target=criterion.target,
            confidence=self.confidence,
            criterion=criterion.name,
            groups=attribute.groups,
            seed=self.seed,
        )
        thresholds = Thresholds(certified.rule.thresholds, certified.rule.tie_rates)
        return _Fitted(thresholds, solution.measures, certified.promise)

    def _fit_group_free(
        self, problem: Problem, criteria: list[Criterion], features: Any, edge_index: Any
    ) -> _Fitted:
        """Find the blind rule; groups are read here, and nowhere later."""
        single = len(criteria) == len(problem.attributes) == 1
        if not single or problem.is_weighted or self.on != "decisions":
            value = "for decisions, one attribute, one criterion and no weights"
            raise InputError("group_free", value, "leave the others out")
        (criterion,), (attribute,) = criteria, problem.attributes
        if is_soft(attribute.sens):
            raise InputError("sensitive_features", "probabilities", "give true groups")
        columns, sens = read_features(features, len(problem.logits)), attribute.sens.cpu().numpy()
        people = None
        if edge_index is not None:
            people = KnownPeople(columns, sens, len(attribute.groups))
            columns = people.columns(edge_index)
        fitted = fit_group_free(
            problem.logits.cpu().numpy(),
            columns,
            sens,
            problem.y.cpu().numpy(),
            criterion=criterion.name,
            target=criterion.target,
            confidence=self.confidence,
            groups=attribute.groups,
        )
        measures, _ = measures_of(criteria, problem)
        names = column_names(features)
        correction = replace(fitted.correction, people=people, feature_names=names)
        return _Fitted(correction, measures, fitted.promise, columns)

    def _missed(
        self, problem: Problem, measures: tuple[Measure, ...], logits: Tensor
    ) -> Iterator[str]:
        """A text for each target that corrected rows of the fitting table miss."""
        if self.group_free:
            yield from missed_targets(measures, logits, slack=CALIBRATED_SLACK)
            return
        if self.promise_ is not None:
            return
        hint = ""
        if self.on == "probabilities":
            missed = missed_probability_targets(measures, logits, self.temperature)
        elif self.calibrate and problem.has_labels and isinstance(self.correction_, Thresholds):
            # Calibrated rates meet the target, from which those of few labels differ a little.
            missed = missed_targets(measures, logits, slack=CALIBRATED_SLACK)
            hint = "; calibrated rates meet it, calibrate=False closes it on these labels"
        elif isinstance(self.correction_, ThresholdMixture):
            missed = missed_targets(measures, logits)
            hint = "; thresholds are drawn at random, and meet it on average"
        else:
            missed = missed_targets(measures, logits)
            hint = "; ties='random' closes it" if self.ties == "keep" else ""
        yield from (text + hint for text in missed)

    def transform(
        self,
        X: Any,
        *,
        sensitive_features: Any = None,
        features: Any = None,
        edge_index: Any = None,
    ) -> Any:
        """Correct scores row by row; logits for logits, in the type that was given.

        Rows of unknown group, or of a group not seen in :meth:`fit` (with a warning), are kept.
        With ``group_free``, give ``features`` instead of groups, which are not read, and if it was
        fitted with a graph, ``edge_index``: row i of these has the number n + i, after the n rows
        of the fit.
        """
        rows = self._read_rows(X, sensitive_features, features, edge_index)
        return rows.scores.like_original(rows.scores.corrected(self._apply(rows).logits))

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        *,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        features: Any = None,
    ) -> Any:
        """Fit, and correct the same scores."""
        self.fit(
            X,
            y,
            sensitive_features=sensitive_features,
            sample_weight=sample_weight,
            features=features,
        )
        return self.transform(X, sensitive_features=sensitive_features, features=features)

    def predict(
        self, X: Any, *, sensitive_features: Any = None, features: Any = None
    ) -> np.ndarray:
        """The class that each row is decided for: its name, or its number if it has no name."""
        rows = self._read_rows(X, sensitive_features, features)
        codes = self._apply(rows).logits.argmax(1).cpu().numpy()
        numbered = self.classes_ == tuple(map(str, range(len(self.classes_))))
        return codes if numbered else np.array(self.classes_)[codes]

    def score(
        self,
        X: Any,
        y: Any,
        *,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        features: Any = None,
    ) -> float:
        """The accuracy of :meth:`predict` on the labelled rows, by which searches choose."""
        rows = self._read_rows(X, sensitive_features, features, y=y)
        _, labels = read_labels(y, rows.scores, self.classes_)
        if not bool((labels >= 0).any()):
            raise InputError("y", "no row is labelled", "give the true classes")
        decisions = self._apply(rows).logits.argmax(1)
        correct, labelled = (decisions == labels).cpu().numpy(), (labels >= 0).cpu().numpy()
        weight = weights(sample_weight, len(correct))
        return float(np.average(correct[labelled], weights=weight[labelled]))

    def evaluate(
        self,
        X: Any,
        y: Any = None,
        *,
        sensitive_features: Any = None,
        sample_weight: Any = None,
        features: Any = None,
        edge_index: Any = None,
    ) -> DebiasResult:
        """Correct scores and measure the effect on them; without groups no gap is measured."""
        rows = self._read_rows(X, sensitive_features, features, edge_index)
        groups = rows.groups
        if self.group_free and sensitive_features is not None:  # not to correct by
            groups = self._read_groups(rows.scores, sensitive_features)
        problem = read_problem(
            rows.scores, groups, y, class_names=self.classes_, sample_weight=sample_weight
        )
        return self._effect(problem, self._apply(rows))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the correction to a JSON file."""
        self._check_fitted()
        correction_files.save(self, path)

    def to_dict(self) -> dict[str, Any]:
        """The correction as plain JSON values."""
        self._check_fitted()
        return correction_files.to_record(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a correction from a JSON file; raise if it is damaged."""
        return correction_files.load(cls, path)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_dict` described."""
        return correction_files.from_record(cls, record)

    def _check_fitted(self) -> None:
        if not hasattr(self, "correction_"):
            raise NotFitted("Debiaser", "no correction yet", "call fit() first")

    def _read_rows(
        self,
        X: Any,
        sensitive_features: Any,
        features: Any,
        edge_index: Any = None,
        y: Any = None,
    ) -> _Rows:
        """New rows, of the fitted kind and classes; with ``group_free`` no group is read."""
        self._check_fitted()
        aligned = {"sensitive_features": sensitive_features, "y": y}
        scores = read_scores(X, self.kind_, argument="X", aligned=aligned)
        rows, classes = scores.values.shape
        if classes != len(self.classes_):
            hint = f"give {len(self.classes_)}, as in fit()"
            raise InputError("X", f"{classes} classes", hint)
        if isinstance(self.correction_, GroupFree):
            return _Rows(scores, (), self.correction_.inputs(features, rows, edge_index))
        return _Rows(scores, self._read_groups(scores, sensitive_features))

    def _read_groups(self, scores: Scores, sensitive_features: Any) -> list[Attribute]:
        """Groups of new rows in terms of the fitted ones."""
        if sensitive_features is None:
            hint = "give the groups, or fit with group_free=True"
            raise InputError("sensitive_features", "missing", hint)
        read = attributes(sensitive_features, len(scores.values))
        if len(read) != len(self.groups_):
            hint = f"give {', '.join(name for name, _ in self.groups_)}"
            raise InputError("sensitive_features", plural(len(read), "attribute"), hint)
        return [
            recode(attribute, name, groups)
            for attribute, (name, groups) in zip(read, self.groups_, strict=True)
        ]

    def _apply(self, rows: _Rows) -> CorrectedLogits:
        """Correct scores row by row."""
        logits, device = rows.scores.logits.double().cpu().numpy(), rows.scores.logits.device
        if isinstance(self.correction_, GroupFree):
            assert rows.columns is not None
            blind = torch.from_numpy(self.correction_.apply(logits, rows.columns))
            return CorrectedLogits(blind.to(device), ())
        corrected = self.correction_.apply(logits, memberships_of(rows.groups), seed=self.seed)
        values = torch.from_numpy(corrected.logits).to(device)
        return CorrectedLogits(values, (), self.correction_, corrected.drawn)

    def _effect(self, problem: Problem, applied: CorrectedLogits) -> DebiasResult:
        """Measure the criteria that can be measured."""
        criteria = read_criteria(self.criterion, self.target)
        measures, notes = measures_of(criteria, problem, required=False)
        if self.promise_ is not None:
            notes = (*notes, str(self.promise_))
        applied = replace(applied, measures=measures, notes=notes)
        return summarise(problem, applied, on=self.on, temperature=self.temperature)


def _check_size(logits: Tensor) -> None:
    """Refuse logits whose correction could not be computed or stored."""
    largest, column = logits.abs().max(1)
    wrong = (largest > MAX_FITTED_LOGIT).nonzero().flatten().tolist()
    if wrong:
        number = float(logits[wrong[0], column[wrong[0]]])
        value = f"row {wrong[0]} has {number:g}, beyond ±{MAX_FITTED_LOGIT:g}"
        raise InputError("X", value, "divide all logits by one number")
