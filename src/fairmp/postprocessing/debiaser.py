"""A correction that is learned on one table and applied to another."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor

from fairmp._version import __version__
from fairmp.errors import InputError, check_choice, check_integer, check_number, shortlist
from fairmp.groups import is_soft
from fairmp.metrics.evaluation import canonical
from fairmp.outputs import atomic_file
from fairmp.postprocessing import criteria, odds
from fairmp.postprocessing.criteria import Solution, read_problem
from fairmp.postprocessing.predictions import Attribute, Predictions, attributes, read
from fairmp.postprocessing.result import DebiasResult
from fairmp.postprocessing.solver import solve, summarise
from fairmp.postprocessing.thresholds import GroupThresholds

FORMAT = "fairmp correction 1"
WRITTEN_BY = "write it with Debiaser.save() or fairmp debias --save"
SMALL_TEMPERATURE = 0.05  # stands for decisions where these have no exact solution
SHAPES = {  # arrays of each type of correction, as axes: group, class, class
    "shift": {"shift": "gc"},
    "affine": {"weights": "gcc", "slopes": "g"},
    "transition": {"transitions": "gcc"},
    "threshold": {"thresholds": "g", "tie_rates": "g"},
}


class Debiaser(TransformerMixin, BaseEstimator):
    r"""Learn a correction by group on one table and apply it to another, row by row.

    A scikit-learn transformer: :meth:`fit` finds the correction that :func:`fairmp.debias` would
    make, :meth:`transform` applies it to any rows, one at a time. On new rows the gap is the target
    plus sampling error: ``result_.expected_gap(m)`` is the gap to expect on m new people.

    Args:
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (the same as
            ``"true_positive_rate_parity"``), ``"equalized_odds"``, or a list of these.
        target: the largest gap accepted, 0.02 for two points.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``, decided by the table it is fitted on.
        decisions: close the gap of decisions instead of probabilities. Exact for two classes and
            demographic parity or equal opportunity, by one threshold per group; else by a small
            temperature.
        ties: ``"random"``: rows with equal scores at a threshold are split at random; ``"keep"``:
            they get the same decision.
        seed: of the random choice among ties.
        temperature: τ of the probabilities whose gap is closed.
        calibrate: with ``decisions`` and labels, find thresholds for calibrated probabilities of
            the labels, which varies less from sample to sample than the labels themselves; False
            closes the gap on the labelled rows of the fitting table exactly.
        class_names: names of the classes, for text labels.

    Attributes:
        result_: a :class:`~fairmp.postprocessing.result.DebiasResult` on the fitting table;
            ``None`` for a loaded correction.
        groups_: names of the groups of each attribute.
        kind_: ``"logits"`` or ``"probabilities"``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sex = np.where(rng.random(4000) < 0.5, "f", "m")
        >>> p = 1 / (1 + np.exp(-rng.normal(size=4000) - (sex == "m")))
        >>> corrector = Debiaser(target=0.0).fit(p[:2000], sensitive_features=sex[:2000])
        >>> fair, others = corrector.transform(p[2000:], sensitive_features=sex[2000:]), sex[2000:]
        >>> [round(float(q[others == "m"].mean() - q[others == "f"].mean()), 2)
        ...  for q in (p[2000:], fair)]
        [0.2, 0.0]
    """

    result_: DebiasResult | None

    def __init__(
        self,
        criterion: str | Sequence[str] = "demographic_parity",
        target: float | Sequence[float] = 0.0,
        *,
        kind: str = "auto",
        decisions: bool = False,
        ties: Literal["random", "keep"] = "random",
        seed: int = 0,
        temperature: float = 1.0,
        calibrate: bool = True,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.criterion, self.target, self.class_names = criterion, target, class_names
        self.kind, self.temperature, self.calibrate = kind, temperature, calibrate
        self.decisions, self.ties, self.seed = decisions, ties, seed

    def fit(
        self,
        predictions: Any,
        y: Any = None,
        *,
        sensitive_features: Any,
        labels: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Find the correction.

        Args:
            predictions: n×C logits or probabilities, or n probabilities of class 1.
            y: true classes, for criteria on labels; the same as ``labels``.
            sensitive_features: groups, or several attributes; see :func:`fairmp.debias`.
            labels: true classes (n): numbers (−1 unknown) or names (empty unknown).
            sample_weight: weight of each row (n).
        """
        labels = y if labels is None else labels
        check_choice("ties", self.ties, ("random", "keep"))
        others = {"labels": labels, "sample_weight": sample_weight}
        given = read(predictions, self.kind, sensitive_features=sensitive_features, **others)
        self.kind_ = "probabilities" if given.probabilities else "logits"
        names, n = self._names(), len(given.logits)
        exact = names == ["demographic_parity"] or (
            names == ["equal_opportunity"] and given.values.size(1) == 2
        )
        temperature: Any = self.temperature
        if self.decisions:
            temperature = "decisions" if exact else SMALL_TEMPERATURE
        own = attributes(sensitive_features, n)
        problem = read_problem(given, own, labels, self.class_names, sample_weight)
        # In float64, so that the shift of a row does not depend on its precision.
        problem = replace(problem, logits=given.logits.double())
        wanted = criteria.read(names, self.target, n)
        how: Any = {"ties": self.ties, "seed": self.seed, "calibrate": self.calibrate}
        solution = solve(problem, wanted, temperature, **how)
        self.classes_, self.temperature_ = solution.classes, solution.temperature
        self.groups_ = [(one.name, one.groups) for one in solution.attributes]
        rule, arrays = solution.rule, solution.weights
        if rule is not None:
            kind, arrays = "threshold", (rule.thresholds_.numpy(), rule.tie_rates_.numpy())
        elif arrays:
            kind = "transition" if len(arrays) == 1 else "affine"
        else:
            membership = _membership(solution.attributes)
            moved = solution.logits.double() - given.logits.double()
            inverse = torch.linalg.pinv(membership.T @ membership, hermitian=True)
            kind, arrays = "shift", ((inverse @ (membership.T @ moved)).cpu().numpy(),)
        self.correction_: dict[str, Any] = {"type": kind}
        self.correction_ |= dict(zip(SHAPES[kind], arrays, strict=True))
        self.result_ = summarise(self._corrected(solution))
        for text in solution.missed:
            warnings.warn(text + "; ties='random' closes it" * (self.ties == "keep"), stacklevel=2)
        return self

    def transform(self, predictions: Any, *, sensitive_features: Any) -> Any:
        """Correct predictions row by row; logits for logits, in the type that was given.

        Rows of unknown group, or of a group not seen in :meth:`fit` (with a warning), are kept.
        """
        given, own = self._read(predictions, sensitive_features)
        return given.like(given.corrected(self._apply(given, own)[0]))

    def fit_transform(
        self, predictions: Any, y: Any = None, *, sensitive_features: Any, **rest: Any
    ) -> Any:
        """Fit, and correct the same predictions."""
        self.fit(predictions, y, sensitive_features=sensitive_features, **rest)
        return self.transform(predictions, sensitive_features=sensitive_features)

    def evaluate(
        self,
        predictions: Any,
        *,
        sensitive_features: Any,
        labels: Any = None,
        sample_weight: Any = None,
    ) -> DebiasResult:
        """Correct predictions and measure the effect on them."""
        given, own = self._read(predictions, sensitive_features)
        problem = read_problem(given, own, labels, self.classes_, sample_weight)
        return summarise(self._corrected(replace(problem, temperature=self.temperature_)))

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
            "params": {**self.get_params(), "criterion": self._names()},
            "kind": self.kind_,
            "classes": list(self.classes_),
            "attributes": [{"name": name, "groups": list(groups)} for name, groups in self.groups_],
            "temperature": self.temperature_,
            "correction": {
                key: value.tolist() if isinstance(value, np.ndarray) else value
                for key, value in self.correction_.items()
            },
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a correction from a JSON file; raise if it is damaged."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(str(path), f"cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise InputError(str(path), f"not a correction ({error})", WRITTEN_BY) from None
        return cls.from_dict(record, str(path))

    @classmethod
    def from_dict(cls, record: Any, source: str = "correction") -> Self:
        """Rebuild what :meth:`to_dict` described; ``source`` names it in an error."""
        try:
            check_choice("format", record["format"], [FORMAT])
            found = cls(**record["params"])
            criteria.read(found._names(), found.target, 0)
            check_integer("seed", found.seed, "", low=0)
            found.kind_ = check_choice("kind", record["kind"], ("logits", "probabilities"))
            found.classes_ = tuple(map(str, record["classes"]))
            pairs = ((one["name"], one["groups"]) for one in record["attributes"])
            found.groups_ = [(str(name), tuple(map(str, groups))) for name, groups in pairs]
            if any(len(set(groups)) < len(groups) for _, groups in found.groups_):
                raise ValueError("a group is named twice")
            given, tau = record["correction"], record["temperature"]
            found.temperature_ = check_number("temperature", tau, "", low=0, above=True)
            sizes = {"g": sum(len(groups) for _, groups in found.groups_), "c": len(found.classes_)}
            found.correction_ = {"type": check_choice("type", given["type"], SHAPES)}
            for key, axes in SHAPES[given["type"]].items():
                array = np.array(given[key], dtype=np.float64)
                shape = tuple(sizes[axis] for axis in axes)
                if array.shape != shape or not np.isfinite(array).all():
                    raise ValueError(f"{key} is not {shape} finite numbers")
                if key == "tie_rates" and not ((array >= 0) & (array <= 1)).all():
                    raise ValueError(f"{key} are not in [0, 1]")
                found.correction_[key] = array
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(source, f"not a correction ({error})", WRITTEN_BY) from None
        found.result_ = None
        return found

    def _names(self) -> list[str]:
        given = [self.criterion] if isinstance(self.criterion, str) else list(self.criterion)
        if not all(isinstance(name, str) for name in given):
            hint = f"give one of {', '.join(criteria.NAMES)}"
            raise InputError("criterion", "a matrix applies to one table alone", hint)
        return [canonical(name) for name in given]

    def _check_fitted(self) -> None:
        if not hasattr(self, "correction_"):
            raise InputError("Debiaser", "no correction yet", "call fit() first")

    def _read(self, predictions: Any, sens: Any) -> tuple[Predictions, tuple[Attribute, ...]]:
        """New predictions, and their groups in terms of the fitted ones."""
        self._check_fitted()
        given = read(predictions, self.kind_, sensitive_features=sens)
        n, classes = given.values.shape
        if classes != len(self.classes_):
            hint = f"give {len(self.classes_)}, as in fit()"
            raise InputError("predictions", f"{classes} classes", hint)
        own = attributes(sens, n)
        if len(own) != len(self.groups_):
            hint = f"give {', '.join(name for name, _ in self.groups_)}"
            raise InputError("sensitive_features", f"{len(own)} attributes", hint)
        found = []
        for one, (name, groups) in zip(own, self.groups_, strict=True):
            codes = one.sens
            if is_soft(codes) and codes.size(1) != len(groups):
                value, hint = f"{codes.size(1)} probabilities", f"give one for each of {groups}"
                raise InputError("sensitive_features", value, hint)
            if not is_soft(codes):
                places = [groups.index(group) if group in groups else -1 for group in one.groups]
                codes = torch.tensor([*places, -1])[one.sens]
                unseen = one.sens[(codes < 0) & (one.sens >= 0)].tolist()
                if unseen:
                    strangers = shortlist(sorted({one.groups[code] for code in unseen}), 5)
                    text = f"{len(unseen)} rows of groups not seen in fit ({strangers})"
                    warnings.warn(f"{name}: {text} are left alone", stacklevel=3)
            found.append(Attribute(name, groups, codes.to(given.values.device)))
        return given, tuple(found)

    def _apply(self, given: Predictions, own: Sequence[Attribute]) -> tuple[Tensor, int]:
        """Corrected logits, and the number of rows whose decision was drawn."""
        z, correction, membership = given.logits.double(), self.correction_, _membership(own)
        known = membership.sum(1, keepdim=True) > 0
        if correction["type"] == "shift":
            shift = membership @ torch.from_numpy(correction["shift"]).to(z.device)
            return torch.where(known, z + shift, z), 0
        if correction["type"] == "threshold":
            rule = GroupThresholds(seed=self.seed, kind="logits")
            rule.thresholds_ = torch.from_numpy(correction["thresholds"])
            rule.tie_rates_ = torch.from_numpy(correction["tie_rates"])
            return rule.correct(z, torch.where(known[:, 0], membership.argmax(1), -1))
        arrays = (correction[key] for key in SHAPES[correction["type"]])
        parts = (z / self.temperature_, z.softmax(1), membership)
        corrected = odds.apply(tuple(arrays), *(part.cpu().numpy() for part in parts))
        return torch.where(known, self.temperature_ * torch.from_numpy(corrected).to(z), z), 0

    def _corrected(self, solution: Solution) -> Solution:
        """The problem of a solution, with this correction and the criteria of this object."""
        logits, drawn = self._apply(solution.given, solution.attributes)
        wanted = criteria.read(self._names(), self.target, len(logits))
        found, notes = criteria.measures(wanted, solution, strict=False)
        return replace(
            solution, logits=logits, drawn=drawn, measures=tuple(found), warnings=tuple(notes),
            temperature=1.0 if self.decisions else solution.temperature,
        )  # fmt: skip


def _membership(own: Sequence[Attribute]) -> Tensor:
    return torch.cat([one.membership for one in own], 1)
