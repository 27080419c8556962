"""What :func:`~fairmp.metrics.evaluate` is given, as codes with names: labels, scores and groups.

Numbers are codes, −1 (or nan) where unknown; text becomes codes in the order of the alphabet, with
the good one of two decisions last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, shortlist
from fairmp.frames import MISSING, as_pandas
from fairmp.groups import SIGNS, recode_signs
from fairmp.metrics import counts
from fairmp.metrics.clusters import Clusters, read_clusters
from fairmp.metrics.counts import boolean_mask, integers, weights

CROSS = " × "  # between the names of crossed groups

# fmt: off
GOOD = frozenset({
    "accept", "accepted", "admit", "admitted", "approve", "approved", "eligible", "good", "grant",
    "granted", "hire", "hired", "offer", "offered", "pass", "passed", "positive", "selected", "yes",
})
BAD = frozenset({
    "bad", "declined", "denied", "deny", "fail", "failed", "ineligible", "negative", "no",
    "refused", "reject", "rejected",
})
# fmt: on
ORDERED = ({"0", "1"}, {"False", "True"}, {"false", "true"})  # the last is the positive one


def guess_positive(classes: Sequence[str]) -> str | None:
    """The good one of two decisions, by a short list of words.

    Example:
        >>> guess_positive(["approved", "rejected"]), guess_positive(["a", "b"])
        ('approved', None)
    """
    if len(classes) != 2:
        return None
    good = [name for name in classes if name.strip().lower() in GOOD]
    not_bad = [name for name in classes if name.strip().lower() not in BAD]
    if len(good) == 1:
        return good[0]
    return not_bad[0] if len(not_bad) == 1 else None


@dataclass(frozen=True)
class Sample:
    """The nodes that are measured."""

    scores: np.ndarray  # n×C; one-hot for decisions
    labels: np.ndarray
    groups: np.ndarray
    weights: np.ndarray
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    are_decisions: bool = False  # without scores there is no AUC and no calibration
    clusters: Clusters | None = None  # of nodes that are resampled together
    note: str | None = None  # which class was taken for the positive one

    def counts(self, weight: np.ndarray | None = None) -> np.ndarray:
        """Nodes, or their weights, by group × label × decision."""
        decisions = self.scores.argmax(1)
        classes, groups = len(self.class_names), len(self.group_names)
        return counts.count(decisions, self.labels, self.groups, classes, groups, weight)

    def cells(self) -> np.ndarray:
        """The cell of each node in the flat table of :meth:`counts`."""
        decisions = self.scores.argmax(1)
        classes, groups = len(self.class_names), len(self.group_names)
        return counts.cells(decisions, self.labels, self.groups, classes, groups)


def read_sample(
    y: Any,
    scores: Any,
    sensitive_features: Any,
    *,
    mask: Any = None,
    sample_weight: Any = None,
    class_names: Sequence[str] | None = None,
    group_names: Sequence[str] | None = None,
    positive: Any = None,
    clusters: Any = None,
) -> Sample:
    """The arguments of :func:`~fairmp.metrics.evaluate`, checked and restricted to the mask."""
    predictions = _read_predictions(scores)
    n = len(predictions.values)
    labels = _read_codes(y, "y", n) if y is not None else _Codes(np.full(n, -1), ())
    coded = _code_classes(labels, predictions, class_names, positive)
    groups, groups_named = read_groups(sensitive_features, n, group_names)
    keep = boolean_mask(mask, n)
    if not np.isfinite(coded.scores[keep]).all():
        raise InputError("scores", "some are nan or infinite", "check that training converged")
    return Sample(
        scores=coded.scores[keep],
        labels=coded.labels[keep],
        groups=groups[keep],
        weights=weights(sample_weight, n)[keep],
        class_names=coded.names,
        group_names=groups_named,
        are_decisions=predictions.kind == "decisions",
        clusters=None if clusters is None else read_clusters(clusters, n, keep),
        note=coded.note,
    )


def read_groups(
    sensitive_features: Any, n: int, names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups as codes (n, −1 unknown) and their names; several attributes are crossed.

    Example:
        >>> codes, names = read_groups({"sex": ["f", "m", "f"], "old": ["no", "no", None]}, 3)
        >>> codes.tolist(), names
        ([0, 1, -1], ('f × no', 'm × no'))
    """
    table = as_pandas(sensitive_features)
    if isinstance(table, Mapping):
        columns = list(table.values())
    elif hasattr(table, "columns"):
        columns = [table[name] for name in table.columns]
    elif isinstance(table, list) and table and all(np.ndim(column) == 1 for column in table):
        columns = list(table)
    else:
        columns = [table]
    if not columns:
        raise InputError("sensitive_features", "no attribute is given", "give one or more")
    attributes = [_read_codes(column, "sensitive_features", n) for column in columns]
    if len(attributes) > 1:
        return _crossed(attributes)
    (attribute,) = attributes
    usual = attribute.names or _digits(attribute.codes)
    if names is None:
        return _with_signs(attribute.codes, usual)
    if attribute.names:
        return _recoded(attribute, tuple(names), "sensitive_features"), tuple(names)
    limit, wanted = len(names), "one name per group"
    return integers(attribute.codes, "sensitive_features", n, limit, wanted), tuple(names)


def _with_signs(codes: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Groups of a whole table, in which −1 and 1 alone are two groups."""
    before = torch.from_numpy(codes)
    after = recode_signs(before, "sensitive_features")
    return (codes, names) if after is before else (after.numpy(), SIGNS)


@dataclass(frozen=True)
class _Codes:
    """Codes (−1 unknown) and the texts they stand for; no texts for numbers."""

    codes: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Predictions:
    """Scores as they were given."""

    values: np.ndarray  # n×C, n probabilities of class 1, or n decisions
    kind: str  # "scores", "probabilities" or "decisions"
    names: tuple[str, ...] = ()  # of the columns, or of decisions that are text


@dataclass(frozen=True)
class _Classes:
    """Labels and scores by class."""

    labels: np.ndarray
    scores: np.ndarray  # n×C
    names: tuple[str, ...]
    note: str | None = None


def _as_numpy(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(as_pandas(values))


def _read_codes(values: Any, argument: str, n: int | None) -> _Codes:
    """One value per node: numbers, or text of which some mean unknown."""
    array = _as_numpy(values)
    if array.ndim != 1 or (n is not None and len(array) != n):
        hint = "give one value per node" if n is None else f"give one value for each of {n} nodes"
        raise InputError(argument, f"shape {array.shape}", hint)
    if array.dtype.kind not in "biuf":
        texts = [str(value).strip() for value in array.tolist()]
        if any(isinstance(value, str) for value in array.tolist()):
            names = tuple(sorted(set(texts) - set(MISSING)))
            places = {name: code for code, name in enumerate(names)}
            return _Codes(np.array([places.get(text, -1) for text in texts], dtype=int), names)
        try:  # numbers beside missing values
            array = np.array([np.nan if text in MISSING else float(text) for text in texts])
        except ValueError:
            value = f"{type(array.tolist()[0]).__name__} values"
            raise InputError(argument, value, "give text or numbers") from None
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), -1, array)
    return _Codes(integers(array, argument, n), ())


def _read_predictions(scores: Any) -> _Predictions:
    table = as_pandas(scores)
    array = _as_numpy(table)
    hint = "give n×C scores, n probabilities of class 1, or n decisions"
    if array.ndim == 2 and array.shape[1] >= 2 and array.dtype.kind in "biuf":
        names = tuple(map(str, getattr(table, "columns", ())))
        return _Predictions(array.astype(float), "scores", names)
    if array.ndim != 1:
        raise InputError("scores", f"shape {array.shape} is not n×C", hint)
    if array.dtype.kind == "f" and not (array == np.trunc(array)).all():
        wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
        if len(wrong):
            value = f"{array[wrong[0]]:g} in row {wrong[0]} is not a probability"
            raise InputError("scores", value, hint)
        return _Predictions(array.astype(float), "probabilities")
    decisions = _read_codes(array, "scores", None)
    if (decisions.codes < 0).any():
        raise InputError("scores", "some decisions are missing or −1", "leave these nodes out")
    return _Predictions(decisions.codes, "decisions", decisions.names)


def _code_classes(
    labels: _Codes, predictions: _Predictions, class_names: Sequence[str] | None, positive: Any
) -> _Classes:
    """Bring labels and predictions to the same classes, with the positive one of two last."""
    if class_names is None and labels.names and predictions.kind == "decisions":
        predictions = _as_probabilities(predictions)
    names = _class_names(labels, predictions, class_names)
    y = _recoded(labels, names, "y") if labels.names else labels.codes
    by_name = predictions.kind == "decisions" and predictions.names
    if by_name:
        decided = _recoded(_Codes(predictions.values, predictions.names), names, "scores")
        predictions = replace(predictions, values=decided)
    texts = bool(labels.names or by_name)
    if not texts:
        integers(y, "y", len(y), len(names), "one column of scores per class")
    if positive is not None:
        return _with_positive(y, predictions, names, str(positive))
    note = None
    if texts and class_names is None and len(names) == 2:
        chosen = guess_positive(names)
        if chosen is not None:
            note = f"the positive class is {chosen!r}, guessed; name another with 'positive'"
            return replace(_with_positive(y, predictions, names, chosen), note=note)
        if predictions.kind != "scores" and set(names) not in ORDERED:
            value = f"not given for the classes {names[0]!r} and {names[1]!r}"
            raise InputError("positive", value, "name the good decision")
    return _Classes(y, _matrix(predictions, len(names)), names, note)


def _as_probabilities(predictions: _Predictions) -> _Predictions:
    """Decisions 0 and 1 beside labels that are text: class 1 is the positive one."""
    if predictions.names or predictions.values.max(initial=0) > 1:
        return predictions
    return _Predictions(predictions.values.astype(float), "probabilities")


def _class_names(
    labels: _Codes, predictions: _Predictions, class_names: Sequence[str] | None
) -> tuple[str, ...]:
    """The classes in the order of the columns of scores."""
    classes = predictions.values.shape[1] if predictions.kind == "scores" else None
    if class_names is not None:
        names = tuple(map(str, class_names))
        if classes not in (None, len(names)):
            value = f"{len(names)} names for {classes} columns of scores"
            raise InputError("class_names", value, "give one per column")
        return names
    texts = set(labels.names) | (
        set(predictions.names) if predictions.kind == "decisions" else set()
    )
    if not texts:
        if predictions.kind == "decisions":
            return _digits(np.append(np.concatenate([labels.codes, predictions.values]), 1))
        return predictions.names or tuple(map(str, range(classes or 2)))
    if predictions.kind == "scores" and texts <= set(predictions.names):
        return predictions.names
    names = tuple(sorted(texts))
    if len(names) == 1 and classes is None:
        return ("", *names)
    if classes is None and predictions.kind == "probabilities":
        classes = 2
    if classes not in (None, len(names)):
        value = f"{len(names)} classes ({shortlist(names)}) for {classes} of the scores"
        raise InputError("y", value, "give {class_names}, one for each class")
    return names


def _with_positive(
    y: np.ndarray, predictions: _Predictions, names: tuple[str, ...], positive: str
) -> _Classes:
    """Two classes, the positive one last; all others are the first."""
    if positive not in names:
        raise InputError(
            "positive", f"{positive!r} is not a class", f"there are {shortlist(names)}"
        )
    code = names.index(positive)
    labels = np.where(y < 0, -1, (y == code).astype(int))
    others = [name for name in names if name != positive]
    pair = (others[0] if len(others) == 1 else f"not {positive}", positive)
    if predictions.kind == "decisions":
        return _Classes(labels, np.eye(2)[(predictions.values == code).astype(int)], pair)
    if predictions.kind == "probabilities":
        return _Classes(labels, _matrix(predictions, 2), pair)
    if len(names) != 2:
        value = f"{positive!r} of {len(names)} classes"
        raise InputError("positive", value, "it is for two classes: give its decisions")
    return _Classes(labels, predictions.values[:, [1 - code, code]], pair)


def _matrix(predictions: _Predictions, classes: int) -> np.ndarray:
    """Scores by class (n×C); one-hot for decisions."""
    if predictions.kind == "scores":
        return predictions.values
    if predictions.kind == "probabilities":
        return np.stack([1 - predictions.values, predictions.values], 1)
    integers(predictions.values, "scores", None, classes, "one name per class")
    return np.asarray(np.eye(classes)[predictions.values])


def _recoded(values: _Codes, names: tuple[str, ...], argument: str) -> np.ndarray:
    """Codes by other names; −1 stays."""
    stray = next((name for name in values.names if name not in names), None)
    if stray is not None:
        raise InputError(argument, f"{stray!r} is not named", f"there are {shortlist(names)}")
    places = np.array([*(names.index(name) for name in values.names), -1])
    return np.asarray(places[values.codes])


def _crossed(attributes: Sequence[_Codes]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Intersections of several attributes, of those that nodes have."""
    table = np.stack([attribute.codes for attribute in attributes], 1)
    known_rows = (table >= 0).all(1)
    combinations, place = np.unique(table[known_rows], axis=0, return_inverse=True)
    codes = np.full(len(table), -1)
    codes[known_rows] = place.reshape(-1)
    titles = [attribute.names or _digits(attribute.codes) for attribute in attributes]
    names = [
        CROSS.join(title[code] for title, code in zip(titles, row, strict=True))
        for row in combinations.tolist()
    ]
    return codes, tuple(names)


def _digits(codes: np.ndarray) -> tuple[str, ...]:
    return tuple(map(str, range(int(codes.max(initial=-1)) + 1)))
