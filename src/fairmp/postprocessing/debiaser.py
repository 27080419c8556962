"""A correction that is learned on one table and applied to another."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from fairmp._version import __version__
from fairmp.errors import InputError, check_choice, check_integer, plural, shorten
from fairmp.groups import is_soft
from fairmp.metrics.counts import weights
from fairmp.nn.decisions import On, Ties
from fairmp.outputs import atomic_file
from fairmp.postprocessing import corrections
from fairmp.postprocessing.confidence import Promise, certify_thresholds
from fairmp.postprocessing.correction_schema import check_record, read_record
from fairmp.postprocessing.corrections import CorrectedLogits, Correction, Thresholds
from fairmp.postprocessing.criteria import (
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
    solve,
)

FORMAT = "fairmp correction 2"
CALIBRATED_SLACK = 0.02  # by which labels may miss a target that their calibrated rates meet
ROUTED = {"sensitive_features": True, "features": True}
MAX_REASON = 200  # characters of an error
WRITTEN_BY = "write it with Debiaser.save(), or fairmp debias with {save}"


class NotFitted(InputError, NotFittedError):
    """A correction is used before it is fitted."""


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
            for two classes and any one criterion but equalized odds, by one threshold per group;
            else a small temperature is used.
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
            features: what groups are estimated from (n×d), with ``group_free``; numbers.
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
        problem = read_problem(
            scores,
            attributes_of_all(sensitive_features, len(scores.logits)),
            y,
            class_names=self.class_names,
            sample_weight=sample_weight,
        )
        # In float64, so that the shift of a row does not depend on its precision.
        problem = replace(problem, logits=scores.logits.double())
        settings = Settings(
            on=self.on,
            temperature=self.temperature,
            ties=self.ties,
            seed=self.seed,
            calibrate=self.calibrate,
            for_other_rows=True,
        )
        self.promise_ = None
        self.kind_ = "probabilities" if scores.are_probabilities else "logits"
        self.classes_ = problem.classes
        self.groups_ = [(attribute.name, attribute.groups) for attribute in problem.attributes]
        self.n_features_in_ = 1 if scores.single else len(problem.classes)
        if self.group_free:
            return self._fit_group_free(problem, features, edge_index)
        solution = solve(problem, read_criteria(self.criterion, self.target), settings)
        assert solution.correction is not None
        self.correction_ = solution.correction
        if self.confidence is not None:
            self._certify(problem)
        self.result_ = self._effect(problem)
        if self.promise_ is None:
            self._verify(problem, solution.measures)
        return self

    def _certify(self, problem: Problem) -> None:
        """Replace the thresholds by those whose gap can be promised."""
        (criterion,) = read_criteria(self.criterion, self.target)[:1]
        if not isinstance(self.correction_, Thresholds) or problem.is_weighted:
            value = "a promise is for two classes, one attribute, one criterion and no weights"
            raise InputError("confidence", value, "leave it out")
        (attribute,) = problem.attributes
        logits = problem.logits.cpu().numpy()
        assert self.confidence is not None
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
        self.correction_ = Thresholds(certified.rule.thresholds, certified.rule.tie_rates)
        self.promise_ = certified.promise

    def _fit_group_free(self, problem: Problem, features: Any, edge_index: Any) -> Self:
        """Find the blind rule; groups are read here, and nowhere later."""
        criteria = read_criteria(self.criterion, self.target)
        single = len(criteria) == len(problem.attributes) == 1
        if not single or problem.is_weighted or self.on != "decisions":
            value = "for decisions, one attribute, one criterion and no weights"
            raise InputError("group_free", value, "leave the others out")
        (criterion,), (attribute,) = criteria, problem.attributes
        if is_soft(attribute.sens):
            raise InputError("sensitive_features", "probabilities", "give true groups")
        inputs, sens = read_features(features, len(problem.logits)), attribute.sens.cpu().numpy()
        people = None
        if edge_index is not None:
            people = KnownPeople(inputs, sens, len(attribute.groups))
            inputs = people.columns(edge_index)
        fitted = fit_group_free(
            problem.logits.cpu().numpy(),
            inputs,
            sens,
            problem.y.cpu().numpy(),
            criterion=criterion.name,
            target=criterion.target,
            confidence=self.confidence,
            groups=attribute.groups,
        )
        self.correction_ = replace(fitted.correction, people=people)
        self.promise_ = fitted.promise
        self.result_ = self._effect(problem, inputs)
        measures, _ = measures_of(criteria, problem)
        applied = self._apply(problem.scores, problem.attributes, inputs)
        for text in missed_targets(measures, applied.logits, slack=CALIBRATED_SLACK):
            warnings.warn(text, stacklevel=3)
        return self

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
        scores = self._read_scores(X, {"sensitive_features": sensitive_features})
        logits = self._correct(scores, sensitive_features, features, edge_index)
        return scores.like_original(scores.corrected(logits))

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
        scores = self._read_scores(X, {"sensitive_features": sensitive_features})
        codes = self._correct(scores, sensitive_features, features).argmax(1).cpu().numpy()
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
        scores = self._read_scores(X, {"sensitive_features": sensitive_features, "y": y})
        _, labels = read_labels(y, scores, self.classes_)
        if not bool((labels >= 0).any()):
            raise InputError("y", "no row is labelled", "give the true classes")
        decisions = self._correct(scores, sensitive_features, features).argmax(1)
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
        scores = self._read_scores(X, {"sensitive_features": sensitive_features})
        unread = self.group_free and sensitive_features is None
        groups = [] if unread else self._read_groups(scores, sensitive_features)
        problem = read_problem(
            scores, groups, y, class_names=self.classes_, sample_weight=sample_weight
        )
        return self._effect(problem, self._inputs(scores, features, edge_index))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the correction to a JSON file."""
        record = self.to_dict()
        record["result"] = None if self.result_ is None else self.result_.to_dict()
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
        with atomic_file(Path(path)) as draft:
            draft.write_text(text, encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """The correction as plain JSON values."""
        self._check_fitted()
        return {
            "format": FORMAT,
            "fairmp": __version__,
            "params": self.get_params(),
            "kind": self.kind_,
            "classes": list(self.classes_),
            "attributes": [{"name": name, "groups": list(groups)} for name, groups in self.groups_],
            "correction": self.correction_.to_dict()
            if isinstance(self.correction_, GroupFree)
            else corrections.to_dict(self.correction_),
            "promise": None if self.promise_ is None else self.promise_.to_dict(),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a correction from a JSON file; raise if it is damaged."""
        try:
            return cls.from_dict(read_record(path))
        except OSError as error:
            raise InputError("path", f"{path} cannot be read ({error.strerror})") from None
        except InputError as error:
            raise InputError("path", f"{path}: {error.value}", error.hint) from None
        except ValueError as error:
            value = f"{path}: not a correction ({shorten(str(error), MAX_REASON)})"
            raise InputError("path", value, WRITTEN_BY) from None

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_dict` described."""
        try:
            check_record(record)
            check_choice("format", record["format"], [FORMAT])
            debiaser = cls(**record["params"])
            read_criteria(debiaser.criterion, debiaser.target)
            Settings(debiaser.on, debiaser.temperature, debiaser.ties)
            check_integer("seed", debiaser.seed, "give a whole number", low=0)
            debiaser.kind_ = check_choice("kind", record["kind"], ("logits", "probabilities"))
            debiaser.classes_ = tuple(record["classes"])
            debiaser.groups_ = [
                (attribute["name"], tuple(attribute["groups"]))
                for attribute in record["attributes"]
            ]
            count = sum(len(groups) for _, groups in debiaser.groups_)
            classes = len(debiaser.classes_)
            if debiaser.group_free:
                debiaser.correction_ = GroupFree.from_dict(record["correction"], count, classes)
            else:
                debiaser.correction_ = corrections.from_dict(record["correction"], count, classes)
            promise = record.get("promise")
            debiaser.promise_ = None if promise is None else Promise.from_dict(promise)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            value = f"not a correction ({shorten(str(error), MAX_REASON)})"
            raise InputError("correction", value, WRITTEN_BY) from None
        debiaser.result_ = None
        return debiaser

    def _verify(self, problem: Problem, measures: tuple[Measure, ...]) -> None:
        """Apply the correction to the fitting table as to any other; warn of missed targets."""
        logits = self._apply(problem.scores, problem.attributes).logits
        if self.on == "probabilities":
            missed = missed_probability_targets(measures, logits, self.temperature)
            hint = ""
        elif self.calibrate and problem.has_labels and isinstance(self.correction_, Thresholds):
            # Calibrated rates meet the target, from which those of few labels differ a little.
            missed = missed_targets(measures, logits, slack=CALIBRATED_SLACK)
            hint = "; calibrated rates meet it, calibrate=False closes it on these labels"
        else:
            missed = missed_targets(measures, logits)
            hint = "; ties='random' closes it" if self.ties == "keep" else ""
        for text in missed:
            warnings.warn(text + hint, stacklevel=3)

    def _check_fitted(self) -> None:
        if not hasattr(self, "correction_"):
            raise NotFitted("Debiaser", "no correction yet", "call fit() first")

    def _read_scores(self, X: Any, aligned: Mapping[str, Any]) -> Scores:
        """New scores, of the fitted kind and classes."""
        self._check_fitted()
        scores = read_scores(X, self.kind_, argument="X", aligned=aligned)
        classes = scores.values.shape[1]
        if classes != len(self.classes_):
            hint = f"give {len(self.classes_)}, as in fit()"
            raise InputError("X", f"{classes} classes", hint)
        return scores

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

    def _correct(
        self, scores: Scores, sensitive_features: Any, features: Any, edge_index: Any = None
    ) -> Tensor:
        """The corrected logits of new rows (n×C); groups are not read with ``group_free``."""
        groups = [] if self.group_free else self._read_groups(scores, sensitive_features)
        return self._apply(scores, groups, self._inputs(scores, features, edge_index)).logits

    def _inputs(self, scores: Scores, features: Any, edge_index: Any) -> np.ndarray | None:
        """What groups of new rows are estimated from, if they are."""
        if not isinstance(self.correction_, GroupFree):
            return None
        return self.correction_.inputs(features, len(scores.values), edge_index)

    def _apply(
        self, scores: Scores, groups: Sequence[Attribute], inputs: np.ndarray | None = None
    ) -> CorrectedLogits:
        """Correct scores row by row."""
        logits = scores.logits.double().cpu().numpy()
        if isinstance(self.correction_, GroupFree):
            assert inputs is not None
            blind = torch.from_numpy(self.correction_.apply(logits, inputs))
            return CorrectedLogits(blind.to(scores.logits.device), ())
        membership = memberships_of(groups)
        corrected = self.correction_.apply(logits, membership, seed=self.seed)
        values = torch.from_numpy(corrected.logits).to(scores.logits.device)
        return CorrectedLogits(values, (), self.correction_, corrected.drawn)

    def _effect(self, problem: Problem, inputs: np.ndarray | None = None) -> DebiasResult:
        """Apply the correction and measure the criteria that can be measured."""
        criteria = read_criteria(self.criterion, self.target)
        measures, notes = measures_of(criteria, problem, required=False)
        if self.promise_ is not None:
            notes = (*notes, str(self.promise_))
        applied = self._apply(problem.scores, problem.attributes, inputs)
        applied = replace(applied, measures=measures, notes=notes)
        return summarise(problem, applied, on=self.on, temperature=self.temperature)
