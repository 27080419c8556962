"""Scores of a classifier inside a scikit-learn pipeline, made out of fold."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.model_selection import cross_val_predict


class OutOfFoldScores(TransformerMixin, BaseEstimator):
    """Turn features into a classifier's probabilities, for a correction that follows.

    A classifier is too sure of the rows it was fitted on, and a correction that is found on such
    scores misses its target on others. So in :meth:`fit_transform`, which pipelines call in
    training, each row is scored by a model that was fitted without it; :meth:`transform` uses
    one that was fitted on all rows.

    Args:
        classifier: Any scikit-learn classifier with ``predict_proba``.
        cv: Number of folds, or a splitter of scikit-learn.

    Attributes:
        classifier_: The classifier, fitted on all rows.

    Example:
        >>> import sklearn
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from fairmp import Debiaser
        >>> rng = np.random.default_rng(0)
        >>> sex = np.where(rng.random(2000) < 0.5, "f", "m")
        >>> x = rng.normal(size=(2000, 3)) + (sex == "m")[:, None]
        >>> y = (x[:, 0] + rng.normal(size=2000) > 0.5).astype(int)
        >>> fair = make_pipeline(OutOfFoldScores(LogisticRegression()), Debiaser(target=0.02))
        >>> with sklearn.config_context(enable_metadata_routing=True):
        ...     fair = fair.fit(x, y, sensitive_features=sex)
        ...     decisions = fair.predict(x, sensitive_features=sex)
        >>> print(f"{decisions[sex == 'm'].mean() - decisions[sex == 'f'].mean():.2f}")
        0.02
    """

    classifier_: ClassifierMixin

    def __init__(self, classifier: ClassifierMixin, cv: Any = 5) -> None:
        self.classifier, self.cv = classifier, cv

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier on all rows."""
        self.classifier_ = clone(self.classifier).fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any) -> np.ndarray:
        """Fit, and score each row by a classifier that was fitted without it (n×C)."""
        scores = cross_val_predict(self.classifier, X, y, cv=self.cv, method="predict_proba")
        self.fit(X, y)
        return np.asarray(scores)

    def transform(self, X: Any) -> np.ndarray:
        """The probabilities of the classes (n×C)."""
        return np.asarray(self.classifier_.predict_proba(X))
