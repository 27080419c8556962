"""Corrections that read nobody's group: estimate it from features, and apply the blind rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax, softmax

from fairmp.errors import InputError
from fairmp.metrics.calibration import calibrate
from fairmp.postprocessing.blind import BlindRule, Floats, Integers, find_blind_rule
from fairmp.postprocessing.blind_confidence import certify_blind_rule
from fairmp.postprocessing.confidence import Promise
from fairmp.postprocessing.corrections import numbers_from
from fairmp.postprocessing.neighbours import KnownPeople, num_columns
from fairmp.postprocessing.predictions import in_order_of, read_features
from fairmp.schema import conform

FOLDS = 5
PENALTY = 1.0  # of the squared coefficients
MIN_PROBABILITY = 1e-12


@dataclass(frozen=True)
class GroupModel:
    """Probabilities of groups from features: a multinomial logistic regression (d features)."""

    mean: Floats  # of the features (d)
    scale: Floats  # d
    coefficients: Floats  # G×d
    intercepts: Floats  # G

    def predict(self, features: Floats) -> Floats:
        """Probabilities of the groups (n×G)."""
        standardised = (features - self.mean) / self.scale
        return np.asarray(softmax(standardised @ self.coefficients.T + self.intercepts, axis=1))

    @classmethod
    def fit(cls, features: Floats, group: Integers, groups: int) -> GroupModel:
        """Fit to nodes of known group."""
        from sklearn.linear_model import LogisticRegression

        mean, scale = features.mean(0), features.std(0)
        scale = np.where(scale > 0, scale, 1.0)
        model = LogisticRegression(C=1 / PENALTY, max_iter=1000)
        model.fit((features - mean) / scale, group)
        slopes, starts = model.coef_, model.intercept_
        if groups == 2:  # scikit-learn keeps those of the second alone
            slopes, starts = np.vstack([-slopes, slopes]) / 2, np.append(-starts, starts) / 2
        return cls(mean, scale, slopes, starts)


def group_probabilities(
    features: Floats, group: Integers, groups: int
) -> tuple[GroupModel, Floats]:
    """A model of the groups, and probabilities that a node's own group does not enter (n×G).

    Those of nodes of known group (not −1) are predicted by models of the other folds.
    """
    known_nodes = np.flatnonzero(group >= 0)
    counts = np.bincount(group[known_nodes], minlength=groups)
    if counts.min() < FOLDS:
        value = f"{counts.min()} rows of group {counts.argmin()}"
        hint = f"give at least {FOLDS} of each, to estimate groups from features"
        raise InputError("sensitive_features", value, hint)
    model = GroupModel.fit(features[known_nodes], group[known_nodes], groups)
    probabilities = model.predict(features)
    # Folds with the same share of each group.
    order = np.random.default_rng(0).permutation(known_nodes)
    order = order[np.argsort(group[order], kind="stable")]
    fold = np.arange(len(order)) % FOLDS
    for k in range(FOLDS):
        fitted, held_out = order[fold != k], order[fold == k]
        part = GroupModel.fit(features[fitted], group[fitted], groups)
        probabilities[held_out] = part.predict(features[held_out])
    return model, probabilities


@dataclass(frozen=True)
class GroupFree:
    """Calibrated scores, a model of the groups, and the blind rule; applies to any row."""

    kind: ClassVar[str] = "group_free"
    temperature: float  # of the calibrated scores
    bias: Floats  # of each class (C)
    model: GroupModel
    rule: BlindRule
    people: KnownPeople | None = None  # whose features and groups new people's columns read
    feature_names: tuple[str, ...] = ()  # of the columns of a table; none of an array

    def apply(self, logits: Floats, features: Floats) -> Floats:
        """Logits whose largest entries are the decisions (n×C)."""
        p = softmax(log_softmax(logits, axis=1) / self.temperature + self.bias, axis=1)
        a = _by_label(self.model, features, self.rule)
        return np.asarray(np.log(np.maximum(self.rule.apply(p, a), MIN_PROBABILITY)))

    def inputs(self, features: Any, rows: int, edge_index: Any = None) -> Floats:
        """What the model reads of new people: their features, and columns of their neighbours."""
        features = in_order_of(self.feature_names, features)
        if self.people is None:
            if edge_index is not None:
                hint = "fit with a graph, or leave it out"
                raise InputError("edge_index", "the correction reads no neighbours", hint)
            return read_features(features, rows, self.num_columns)
        values = read_features(features, rows, self.people.features.shape[1])
        return self.people.columns_of_new(values, edge_index)

    @property
    def num_columns(self) -> int:
        """Columns of a row, without its label."""
        labels = self.rule.multipliers.shape[2] if _needs_label(self.rule.criterion) else 0
        return len(self.model.mean) - labels

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        model = {name: getattr(self.model, name).tolist() for name in MODEL_AXES}
        return {
            "type": self.kind,
            "temperature": self.temperature,
            "bias": self.bias.tolist(),
            "model": model,
            "rule": self.rule.to_dict(),
            "people": None if self.people is None else self.people.to_dict(),
            "feature_names": list(self.feature_names),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], groups: int, classes: int) -> GroupFree:
        """Rebuild what :meth:`to_dict` described; raise ``ValueError`` where it is damaged."""
        sizes = {"g": groups, "d": len(record["model"]["mean"])}
        arrays = {
            name: numbers_from(record["model"], name, tuple(sizes[axis] for axis in axes))
            for name, axes in MODEL_AXES.items()
        }
        bias = numbers_from(record, "bias", (classes,))
        temperature = float(numbers_from(record, "temperature", ()))
        if not (temperature > 0 and (arrays["scale"] > 0).all()):
            raise ValueError("temperature and scale are not above 0")
        rule = BlindRule.from_dict(record["rule"], groups, classes)
        people = record.get("people")
        people = None if people is None else KnownPeople.from_dict(people, groups)
        names = tuple(conform(record.get("feature_names", []), list[str], "feature_names"))
        correction = cls(temperature, bias, GroupModel(**arrays), rule, people, names)
        columns = correction.num_columns if people is None else people.features.shape[1]
        if names and len(names) != columns:
            raise ValueError(f"{len(names)} names of {columns} features")
        if people is not None:
            columns = num_columns(people.features.shape[1], groups)
            if correction.num_columns != columns:
                raise ValueError(f"the model does not read {columns} columns")
        return correction


MODEL_AXES = {"mean": "d", "scale": "d", "coefficients": "gd", "intercepts": "g"}


@dataclass(frozen=True)
class GroupFreeFit:
    """A correction, and the promise if one was asked for."""

    correction: GroupFree
    promise: Promise | None = None


def fit_group_free(
    logits: Floats,
    features: Floats,
    group: Integers,
    y: Integers,
    *,
    criterion: str,
    target: float,
    confidence: float | None,
    groups: tuple[str, ...],
) -> GroupFreeFit:
    """Find a correction that reads features in place of groups.

    Args:
        logits: n×C, of a model that was fitted on other rows.
        features: what groups are estimated from (n×d).
        group: true groups (n), −1 where unknown.
        y: true classes (n), −1 where unknown; scores are calibrated on these.
        criterion: see :func:`~fairmp.postprocessing.blind.find_blind_rule`.
        target: the largest gap accepted.
        confidence: of a promise about new people; ``None`` for none.
        groups: names of the groups.
    """
    z, classes = log_softmax(logits, axis=1), logits.shape[1]
    temperature, bias = 1.0, np.zeros(classes)
    if (y >= 0).any():
        temperature, bias = calibrate(z[y >= 0], y[y >= 0])
    p = softmax(z / temperature + bias, axis=1)
    if _needs_label(criterion):
        labelled = _with_label(features, np.maximum(y, 0), classes)
        labelled_group = np.where(y >= 0, group, -1)
        model, given_label = group_probabilities(labelled, labelled_group, len(groups))
        a = np.repeat(given_label[:, None], classes, axis=1)
        for label in range(classes):
            others = y != label
            a[others, label] = model.predict(_with_label(features, label, classes)[others])
    else:
        model, a = group_probabilities(features, group, len(groups))
    if confidence is None:
        rule = find_blind_rule(p, a, group, y, criterion=criterion, target=target).rule
        return GroupFreeFit(GroupFree(temperature, bias, model, rule))
    certified = certify_blind_rule(
        p, a, group, y, target=target, confidence=confidence, criterion=criterion, groups=groups
    )
    correction = GroupFree(temperature, bias, model, certified.rule)
    return GroupFreeFit(correction, certified.promise)


def _needs_label(criterion: str) -> bool:
    """Whether groups are estimated given the label."""
    return criterion != "demographic_parity"


def _by_label(model: GroupModel, features: Floats, rule: BlindRule) -> Floats:
    """Probabilities of groups (n×G), or given each label (n×C×G)."""
    if not _needs_label(rule.criterion):
        return model.predict(features)
    classes = rule.multipliers.shape[2]
    labelled = (_with_label(features, label, classes) for label in range(classes))
    return np.stack([model.predict(columns) for columns in labelled], 1)


def _with_label(features: Floats, label: Integers | int, classes: int) -> Floats:
    """Features, and a column per class that is 1 for the label."""
    return np.hstack([features, np.eye(classes)[np.broadcast_to(label, len(features))]])
