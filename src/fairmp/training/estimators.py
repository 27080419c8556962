"""scikit-learn classifiers as transforms: fitted on the training nodes, and kept as tensors.

Logistic regressions, random forests and boosted trees become modules that hold their coefficients
or trees. They predict what scikit-learn predicts, on any device, and are saved with the other
weights, without pickle. Any other classifier is called as it is (:class:`Estimator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairmp.errors import InputError, check_choice
from fairmp.graph import to_scipy
from fairmp.nn.models import ESTIMATORS
from fairmp.training.graph_features import Reads

MIN_PROBABILITY = 1e-6
NEVER = float(np.log(MIN_PROBABILITY))  # logit of a class that no training node has
TREE_TENSORS = ("feature", "threshold", "left", "right", "value", "baseline")
ENTRIES = 1 << 22  # of a matrix nodes × trees, walked at once


def make(backbone: Any, reads: Reads, seed: int, *, sparse: bool = False) -> Any:
    """Return an unfitted classifier: a copy of the one given, or a named one with our settings."""
    from sklearn.base import clone
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not isinstance(backbone, str):
        return clone(backbone)
    check_choice("backbone", backbone, ESTIMATORS)
    if backbone == "logistic":
        if reads == "edges":
            return LogisticRegression(C=0.02, max_iter=1000)
        scaler = StandardScaler(with_mean=not sparse)
        return make_pipeline(scaler, LogisticRegression(C=0.1, max_iter=1000))
    if backbone == "forest":
        return RandomForestClassifier(200, min_samples_leaf=5, random_state=seed)
    return HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_iter=150,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )


class Linear(nn.Module):
    """A logistic regression: XWᵀ + b, and AVᵀ more if it reads the edges."""

    kind = "linear"
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, design: Tensor | sp.csr_array) -> Tensor:
        """Return logits."""
        if isinstance(design, Tensor):
            return design.to(self.weight.dtype) @ self.weight.T.contiguous() + self.bias
        product = torch.from_numpy(design @ self.weight.T.cpu().double().numpy())
        return product.to(self.weight) + self.bias


class TreeEnsemble(nn.Module):
    """Decision trees whose values are added, or averaged if they are probabilities.

    Node k of a tree sends a row to ``left`` if its entry in column ``feature`` is at most
    ``threshold``, else to ``right``; a leaf sends it to itself. All are T×N, for T trees of at most
    N nodes; ``value`` is T×N×C.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    baseline: Tensor

    def __init__(self, *, averaged: bool, **tensors: Tensor) -> None:
        super().__init__()
        self.averaged, self.kind = averaged, "forest" if averaged else "boosted"
        for name in TREE_TENSORS:
            self.register_buffer(name, tensors[name])
        self.depth = _depth(tensors["left"].cpu().numpy(), tensors["right"].cpu().numpy())

    def forward(self, design: Tensor) -> Tensor:
        """Return logits."""
        if design.is_sparse:  # as many columns as the trees read
            used, place = self.feature.unique(return_inverse=True)
            x, features = design.index_select(1, used.long()).to_dense().float(), place
        else:
            x, features = design.float(), self.feature.long()
        trees, total = self.feature.size(0), self.baseline.repeat(x.size(0), 1)
        size = max(1, ENTRIES // max(x.size(0), 1))
        for start in range(0, trees, size):
            part = slice(start, start + size)
            left, right = self.left[part].long(), self.right[part].long()
            feature, threshold = features[part], self.threshold[part].float()
            at = torch.zeros(left.size(0), x.size(0), dtype=torch.int64, device=x.device)
            for _ in range(self.depth):
                found = x.T.gather(0, feature.gather(1, at))
                goes_left = found <= threshold.gather(1, at)
                at = torch.where(goes_left, left.gather(1, at), right.gather(1, at))
            rows = torch.arange(left.size(0), device=x.device).unsqueeze(1)
            total = total + self.value[part][rows, at].sum(0)
        if self.averaged:
            return (total / trees).clamp_min(MIN_PROBABILITY).log()
        return total


def _depth(left: np.ndarray, right: np.ndarray) -> int:
    """Number of steps to the deepest leaf; raise ``ValueError`` if these are no trees (T×N)."""
    own = np.arange(left.shape[1])
    leaf, inner = (left == own) & (right == own), (left > own) & (right > own)
    if not (leaf | inner).all() or max(left.max(), right.max()) >= left.shape[1]:
        raise ValueError("a tree refers to nodes it does not have")
    depth, trees = np.zeros(left.shape, dtype=np.int64), np.arange(len(left))
    for k in own:  # children come after their parents
        for child in (left[:, k], right[:, k]):
            depth[trees, child] = np.where(inner[:, k], depth[:, k] + 1, depth[trees, child])
    return int(depth.max())


class Estimator(nn.Module):
    """A fitted scikit-learn classifier of another kind, called as it is."""

    kind = "estimator"

    def __init__(self, estimator: Any, num_classes: int) -> None:
        super().__init__()
        self.estimator, self.num_classes = estimator, num_classes

    def forward(self, design: Tensor | sp.csr_array) -> Tensor:
        """Return the logarithm of the probabilities, or the scores if it has none."""
        x = as_array(design, self.estimator)
        if hasattr(self.estimator, "predict_proba"):
            scores = np.log(np.maximum(self.estimator.predict_proba(x), MIN_PROBABILITY))
        else:
            scores = np.asarray(self.estimator.decision_function(x))
            scores = scores if scores.ndim == 2 else np.stack([-scores / 2, scores / 2], 1)
        # A class that no training node has is never predicted.
        result = np.full((len(scores), self.num_classes), scores.min(initial=0) + NEVER)
        result[:, self.estimator.classes_] = scores
        return torch.from_numpy(result)


def as_array(design: Tensor | sp.csr_array, estimator: Any) -> np.ndarray | sp.csr_array:
    """Rows as a classifier takes them: sparse ones stay sparse if it can read them."""
    from sklearn.utils import get_tags

    if not isinstance(design, Tensor):
        return design
    if design.is_sparse and get_tags(estimator).input_tags.sparse:
        return to_scipy(design)
    found: np.ndarray = design.to_dense().cpu().numpy()
    return found


def fit(
    estimator: Any,
    design: Tensor | sp.csr_array,
    y: Tensor,
    train: Tensor,
    num_classes: int,
    sample_weight: Tensor | None = None,
) -> nn.Module:
    """Fit a classifier on the training rows, and return it as a module."""
    from sklearn.utils.validation import has_fit_parameter

    rows = train.cpu().numpy()
    x = as_array(design.float() if isinstance(design, Tensor) else design, estimator)
    weights = {}
    if sample_weight is not None:
        step, last = getattr(estimator, "steps", [("", estimator)])[-1]
        if not has_fit_parameter(last, "sample_weight"):
            value = f"{type(last).__name__} takes no sample weights"
            raise InputError("sample_weight", value, "leave them out, or choose another backbone")
        argument = f"{step}__sample_weight" if step else "sample_weight"
        weights[argument] = sample_weight.cpu().double().numpy()[rows]
    estimator.fit(x[rows], y.cpu().numpy()[rows], **weights)
    return _as_tensors(estimator, num_classes)


def _as_tensors(estimator: Any, num_classes: int) -> nn.Module:
    """Convert a fitted classifier to tensors, if its predictions can be computed from them here."""
    steps = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    if len(estimator.classes_) > 1:
        match [type(step).__name__ for step in steps]:
            case ["LogisticRegression"] | ["StandardScaler", "LogisticRegression"]:
                return _linear(*steps, num_classes=num_classes)
            case ["RandomForestClassifier" | "ExtraTreesClassifier"]:
                return _forest(steps[0], num_classes)
            case ["HistGradientBoostingClassifier"] if steps[0].is_categorical_ is None:
                return _boosted(steps[0], num_classes)
    return Estimator(estimator, num_classes)


def _linear(*steps: Any, num_classes: int) -> Linear:
    *scalers, estimator = steps
    weight, bias = (part.astype(np.float64) for part in (estimator.coef_, estimator.intercept_))
    for scaler in scalers:
        weight = weight / scaler.scale_
        bias = bias - (weight * scaler.mean_ * scaler.with_mean).sum(1)
    if len(estimator.classes_) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    full = torch.zeros(num_classes, weight.shape[1], dtype=torch.float64)
    shift = torch.full((num_classes,), NEVER, dtype=torch.float64)
    place = torch.as_tensor(estimator.classes_, dtype=torch.int64)
    full[place], shift[place] = torch.from_numpy(weight), torch.from_numpy(bias)
    return Linear(full, shift)


def _forest(estimator: Any, num_classes: int) -> TreeEnsemble:
    parts = []
    for tree in (one.tree_ for one in estimator.estimators_):
        shares = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
        ends = tree.children_left, tree.children_right
        parts.append((tree.feature, tree.threshold, *ends, shares))
    return _stack(parts, estimator.classes_, num_classes, np.zeros(len(estimator.classes_)), True)


def _boosted(estimator: Any, num_classes: int) -> TreeEnsemble:
    classes, parts = len(estimator.classes_), []
    # The one score of two classes is their difference; each of more classes has its own.
    scores = np.array([[-0.5, 0.5]]) if classes == 2 else np.eye(classes)
    for stage in estimator._predictors:
        for score, predictor in zip(scores, stage, strict=True):
            nodes = predictor.nodes
            inner = nodes["is_leaf"] == 0
            ends = [np.where(inner, nodes[side].astype(int), -1) for side in ("left", "right")]
            threshold = np.where(inner, nodes["num_threshold"], 0.0)
            value = np.outer(np.where(inner, 0.0, nodes["value"]), score)
            parts.append((nodes["feature_idx"].astype(int), threshold, *ends, value))
    start = np.asarray(estimator._baseline_prediction, dtype=float).ravel() @ scores
    return _stack(parts, estimator.classes_, num_classes, start, False)


def _stack(
    parts: Sequence[tuple[np.ndarray, ...]],
    classes: np.ndarray,
    num_classes: int,
    baseline: np.ndarray,
    averaged: bool,
) -> TreeEnsemble:
    """Pad the arrays of all trees to one size; leaves, −1 so far, point to themselves."""
    column, limit, *sides, leaf = (
        pad_sequence([*map(torch.tensor, arrays)], batch_first=True, padding_value=-1)
        for arrays in zip(*parts, strict=True)
    )
    inner, own = sides[0] >= 0, torch.arange(column.size(1))
    left, right = (torch.where(inner, side, own).int() for side in sides)
    # For x in float32, x ≤ t is x ≤ (t rounded down to float32).
    limit = limit.clamp(-3e38, 3e38)
    below = torch.nextafter(limit.float(), torch.tensor(-torch.inf))
    threshold = torch.where(limit.float() > limit, below, limit.float())
    value = torch.zeros(*column.shape, num_classes)
    value[..., classes] = leaf.float()
    start = torch.full((num_classes,), 0.0 if averaged else NEVER)
    start[classes] = torch.tensor(baseline).float()
    tensors = torch.where(inner, column, 0).int(), threshold, left, right, value, start
    named = dict(zip(TREE_TENSORS, tensors, strict=True))
    return TreeEnsemble(**named, averaged=averaged)
