"""Fitted scikit-learn classifiers in a form that predicts one row quickly.

scikit-learn checks its input at every call and loops over trees in Python: a millisecond for
boosted trees and eight for a forest, where the trees themselves take microseconds. Linear models
are reduced to their coefficients, trees are read by treelite where that is installed
(``fairmp[service]``), and any other classifier stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, softmax
from torch import Tensor

from fairmp.training.estimators import Classifier, Estimator, as_array

SAMPLE_ROWS = 8  # on which trees are compared with scikit-learn's
TOLERANCE = 1e-9


class CompactEstimator(Estimator):
    """A classifier that predicts as another does, and is given the rows that one reads."""

    def __init__(self, original: Estimator, compact: Linear | Trees) -> None:
        super().__init__(cast(Classifier, compact), original.num_classes)
        self.original = original.classifier

    def rows(self, rows: Tensor | sp.csr_array) -> np.ndarray | sp.csr_array:
        """Rows as the original takes them."""
        return as_array(rows, self.original)


def compact(estimator: Estimator) -> Estimator:
    """The classifier in its compact form, if it has one."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_selection import SelectKBest
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    classifier = estimator.classifier
    steps = [step for _, step in getattr(classifier, "steps", [("", classifier)])]
    kinds = [type(step) for step in steps]
    if kinds in ([LogisticRegression], [StandardScaler, LogisticRegression]):
        return CompactEstimator(estimator, Linear.of(steps))
    is_forest = kinds == [RandomForestClassifier]
    is_boosted = kinds[-1] is HistGradientBoostingClassifier and kinds[:-1] in ([], [SelectKBest])
    if not (is_forest or is_boosted) or find_spec("treelite") is None:
        return estimator
    columns = steps[0].get_support(indices=True) if kinds[0] is SelectKBest else None
    try:
        trees = Trees(steps[-1], columns, is_boosted=is_boosted)
    except Exception:  # a version of scikit-learn that treelite does not know
        return estimator
    return CompactEstimator(estimator, trees) if _agree(trees, classifier) else estimator


def _agree(trees: Trees, classifier: Any) -> bool:
    """Whether trees were read as scikit-learn reads them."""
    rows = np.random.default_rng(0).normal(size=(SAMPLE_ROWS, classifier.n_features_in_))
    rows = rows.astype(np.float32)
    expected = classifier.predict_proba(rows)
    return np.allclose(trees.predict_proba(rows), expected, rtol=0, atol=TOLERANCE)


@dataclass(frozen=True)
class Linear:
    """A logistic regression, with the scaling before it."""

    classes_: np.ndarray
    coefficients: np.ndarray  # columns × 1, or × classes
    intercept: np.ndarray

    @classmethod
    def of(cls, steps: list[Any]) -> Linear:
        """Read a logistic regression, after a scaler or alone."""
        *scalers, model = steps
        coefficients, intercept = model.coef_.T.astype(np.float64), model.intercept_
        for scaler in scalers:
            coefficients = coefficients / scaler.scale_[:, None]
            if scaler.mean_ is not None and scaler.with_mean:
                intercept = intercept - scaler.mean_ @ coefficients
        return cls(model.classes_, np.ascontiguousarray(coefficients), intercept)

    def predict_proba(self, rows: np.ndarray | sp.csr_array) -> np.ndarray:
        """Probabilities of the classes."""
        return _probabilities(rows @ self.coefficients + self.intercept)


class Trees:
    """Boosted trees or a random forest, read by treelite."""

    def __init__(self, model: Any, columns: np.ndarray | None, *, is_boosted: bool) -> None:
        import treelite

        self.model, self.columns, self.is_boosted = model, columns, is_boosted
        self.classes_ = model.classes_
        self._trees = treelite.sklearn.import_model(model)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles read the trees again."""
        return _trees, (self.model, self.columns, self.is_boosted)

    def predict_proba(self, rows: np.ndarray | sp.csr_array) -> np.ndarray:
        """Probabilities of the classes."""
        import treelite

        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        dense = dense if self.columns is None else dense[:, self.columns]
        dense = np.ascontiguousarray(dense, dtype=np.float64)
        # The margins of boosted trees: treelite rounds their softmax to single precision.
        scores = treelite.gtil.predict(self._trees, dense, pred_margin=self.is_boosted, nthread=1)
        scores = scores.reshape(len(dense), -1)
        return _probabilities(scores) if self.is_boosted else np.asarray(scores)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Probabilities of the classes from one score of two classes, or one of each."""
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    return np.asarray(softmax(scores, axis=1))


def _trees(model: Classifier, columns: np.ndarray | None, is_boosted: bool) -> Trees:
    return Trees(model, columns, is_boosted=is_boosted)
