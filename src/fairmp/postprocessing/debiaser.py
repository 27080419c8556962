"""A correction that is learned on one table and applied to another."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator, TransformerMixin

from fairmp._version import __version__
from fairmp.errors import InputError, check_choice, check_integer, plural, shortlist
from fairmp.groups import is_soft
from fairmp.nn.decisions import On, Ties
from fairmp.outputs import atomic_file
from fairmp.postprocessing import corrections
from fairmp.postprocessing.corrections import CorrectedLogits, Correction, Thresholds
from fairmp.postprocessing.criteria import Problem, measures_of, read_criteria, read_problem
from fairmp.postprocessing.effects import summarise
from fairmp.postprocessing.predictions import Attribute, Scores, attributes, read_scores
from fairmp.postprocessing.result import DebiasResult
from fairmp.postprocessing.solver import Settings, memberships_of, missed_targets, solve

FORMAT = "fairmp correction 2"
WRITTEN_BY = "write it with Debiaser.save(), or fairmp debias with {save}"


class Debiaser(TransformerMixin, BaseEstimator):
    r"""Learn a correction by group on one table and apply it to another, row by row.

    A scikit-learn transformer: :meth:`fit` finds the correction that :func:`fairmp.debias` would
    make, :meth:`transform` applies it to any rows, one at a time. On new rows the gap is the target
    plus sampling error: ``result_.expected_gap(m)`` is the gap to expect on m new people.

    Args:
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (the same as
            ``"true_positive_rate_parity"``), ``"equalized_odds"``, or a list of these.
        target: the largest gap accepted, 0.02 for two points.
        on: close the gap of ``"decisions"`` or of ``"probabilities"``. That of decisions is exact
            for two classes and demographic parity or equal opportunity, by one threshold per group;
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

    Attributes:
        result_: a :class:`~fairmp.postprocessing.result.DebiasResult` on the fitting table;
            ``None`` for a loaded correction.
        correction_: what :meth:`transform` applies (:mod:`fairmp.postprocessing.corrections`).
        groups_: names of the groups of each attribute.
        classes_: names of the classes.
        kind_: ``"logits"`` or ``"probabilities"``.

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
    correction_: Correction
    groups_: list[tuple[str, tuple[str, ...]]]
    classes_: tuple[str, ...]
    kind_: str

    def __init__(
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
    ) -> None:
        self.criterion, self.target, self.on = criterion, target, on
        self.kind, self.ties, self.seed = kind, ties, seed
        self.temperature, self.calibrate, self.class_names = temperature, calibrate, class_names

    def fit(
        self, X: Any, y: Any = None, *, sensitive_features: Any, sample_weight: Any = None
    ) -> Self:
        """Find the correction.

        Args:
            X: n×C logits or probabilities, or n probabilities of class 1.
            y: true classes (n): numbers (−1 unknown) or names (empty unknown); needed for criteria
                on labels.
            sensitive_features: groups, or several attributes; see :func:`fairmp.debias`.
            sample_weight: weight of each row (n).
        """
        aligned = {
            "sensitive_features": sensitive_features,
            "y": y,
            "sample_weight": sample_weight,
        }
        scores = read_scores(X, self.kind, argument="X", aligned=aligned)
        problem = read_problem(
            scores,
            attributes(sensitive_features, len(scores.logits)),
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
        solution = solve(problem, read_criteria(self.criterion, self.target), settings)
        assert solution.correction is not None
        self.correction_ = solution.correction
        self.kind_ = "probabilities" if scores.are_probabilities else "logits"
        self.classes_ = problem.classes
        self.groups_ = [(attribute.name, attribute.groups) for attribute in problem.attributes]
        self.result_ = self._effect(problem)
        missed = solution.missed
        calibrated = self.calibrate and y is not None and isinstance(self.correction_, Thresholds)
        if self.on == "decisions" and not calibrated:
            # Decisions of a batch that were changed one by one are not part of the correction.
            applied = self._apply(scores, problem.attributes)
            missed = missed_targets(solution.measures, applied.logits)
        for text in missed:
            hint = "; ties='random' closes it" if self.ties == "keep" else ""
            warnings.warn(text + hint, stacklevel=2)
        return self

    def transform(self, X: Any, *, sensitive_features: Any) -> Any:
        """Correct scores row by row; logits for logits, in the type that was given.

        Rows of unknown group, or of a group not seen in :meth:`fit` (with a warning), are kept.
        """
        scores, groups = self._read(X, sensitive_features)
        return scores.like_original(scores.corrected(self._apply(scores, groups).logits))

    def fit_transform(
        self, X: Any, y: Any = None, *, sensitive_features: Any, sample_weight: Any = None
    ) -> Any:
        """Fit, and correct the same scores."""
        self.fit(X, y, sensitive_features=sensitive_features, sample_weight=sample_weight)
        return self.transform(X, sensitive_features=sensitive_features)

    def evaluate(
        self, X: Any, y: Any = None, *, sensitive_features: Any, sample_weight: Any = None
    ) -> DebiasResult:
        """Correct scores and measure the effect on them."""
        scores, groups = self._read(X, sensitive_features)
        problem = read_problem(
            scores, groups, y, class_names=self.classes_, sample_weight=sample_weight
        )
        return self._effect(problem)

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
            "correction": corrections.to_dict(self.correction_),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a correction from a JSON file; raise if it is damaged."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError("path", f"{path} cannot be read ({error.strerror})") from None
        except InputError as error:
            raise InputError("path", f"{path}: {error.value}", error.hint) from None
        except ValueError as error:
            raise InputError("path", f"{path}: not a correction ({error})", WRITTEN_BY) from None

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_dict` described."""
        try:
            check_choice("format", record["format"], [FORMAT])
            debiaser = cls(**record["params"])
            read_criteria(debiaser.criterion, debiaser.target)
            Settings(debiaser.on, debiaser.temperature, debiaser.ties)
            check_integer("seed", debiaser.seed, "give a whole number", low=0)
            debiaser.kind_ = check_choice("kind", record["kind"], ("logits", "probabilities"))
            debiaser.classes_ = tuple(map(str, record["classes"]))
            debiaser.groups_ = [
                (str(attribute["name"]), tuple(map(str, attribute["groups"])))
                for attribute in record["attributes"]
            ]
            if any(len(set(groups)) < len(groups) for _, groups in debiaser.groups_):
                raise ValueError("a group is named twice")
            count = sum(len(groups) for _, groups in debiaser.groups_)
            debiaser.correction_ = corrections.from_dict(
                record["correction"], count, len(debiaser.classes_)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError("correction", f"not a correction ({error})", WRITTEN_BY) from None
        debiaser.result_ = None
        return debiaser

    def _check_fitted(self) -> None:
        if not hasattr(self, "correction_"):
            raise InputError("Debiaser", "no correction yet", "call fit() first")

    def _read(self, X: Any, sensitive_features: Any) -> tuple[Scores, list[Attribute]]:
        """New scores, and their groups in terms of the fitted ones."""
        self._check_fitted()
        aligned = {"sensitive_features": sensitive_features}
        scores = read_scores(X, self.kind_, argument="X", aligned=aligned)
        n, classes = scores.values.shape
        if classes != len(self.classes_):
            hint = f"give {len(self.classes_)}, as in fit()"
            raise InputError("X", f"{classes} classes", hint)
        read = attributes(sensitive_features, n)
        if len(read) != len(self.groups_):
            hint = f"give {', '.join(name for name, _ in self.groups_)}"
            raise InputError("sensitive_features", plural(len(read), "attribute"), hint)
        return scores, [
            _fitted_attribute(attribute, name, groups)
            for attribute, (name, groups) in zip(read, self.groups_, strict=True)
        ]

    def _apply(self, scores: Scores, groups: Sequence[Attribute]) -> CorrectedLogits:
        """Correct scores row by row."""
        logits, membership = scores.logits.double().cpu().numpy(), memberships_of(groups)
        corrected = self.correction_.apply(logits, membership.cpu().numpy(), seed=self.seed)
        values = torch.from_numpy(corrected.logits).to(scores.logits.device)
        return CorrectedLogits(values, (), self.correction_, corrected.drawn)

    def _effect(self, problem: Problem) -> DebiasResult:
        """Apply the correction and measure the criteria that can be measured."""
        criteria = read_criteria(self.criterion, self.target)
        measures, notes = measures_of(criteria, problem, required=False)
        applied = self._apply(problem.scores, problem.attributes)
        applied = replace(applied, measures=measures, notes=notes)
        return summarise(problem, applied, on=self.on, temperature=self.temperature)


def _fitted_attribute(attribute: Attribute, name: str, groups: tuple[str, ...]) -> Attribute:
    """An attribute of new rows, coded by the groups of the fit; others are unknown."""
    sens = attribute.sens
    if is_soft(sens):
        if sens.size(1) != len(groups):
            hint = f"give one for each of {', '.join(groups)}"
            raise InputError("sensitive_features", f"{sens.size(1)} probabilities", hint)
        return Attribute(name, groups, sens)
    places = [groups.index(group) if group in groups else -1 for group in attribute.groups]
    codes = torch.tensor([*places, -1])[sens.cpu()]  # the last is for the code −1
    unseen = sens.cpu()[(codes < 0) & (sens.cpu() >= 0)].tolist()
    if unseen:
        names = shortlist(sorted({attribute.groups[code] for code in unseen}), 5)
        rows = plural(len(unseen), "row")
        text = f"{name}: {rows} of groups not seen in fit ({names}) left alone"
        warnings.warn(text, stacklevel=4)
    return Attribute(name, groups, codes)
