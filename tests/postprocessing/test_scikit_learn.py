"""Debiaser among scikit-learn's estimators: its checks, pipelines and searches."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fairmp import Debiaser, InputError
from fairmp.postprocessing.out_of_fold import OutOfFoldScores

OWN_WORDS = "wrong input is an InputError in our words"
EXPECTED_FAILURES = {
    "check_complex_data": OWN_WORDS,
    "check_estimators_empty_data_messages": OWN_WORDS,
    "check_fit2d_1sample": OWN_WORDS + ": one row is one group",
    "check_fit2d_1feature": OWN_WORDS + ": columns are classes, and one of them is given as (n,)",
    "check_fit2d_predict1d": OWN_WORDS + ": (n,) are probabilities of class 1",
    "check_n_features_in_after_fitting": OWN_WORDS,
}


class WithGroups(Debiaser):
    """Debiaser with groups where scikit-learn's checks give none; their y are other classes."""

    def fit(self, X: Any, y: Any = None, *, sensitive_features: Any = None, **others: Any) -> Self:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of targets missed in tables of ten rows
            return super().fit(X, sensitive_features=_groups(X, sensitive_features))

    def transform(self, X: Any, *, sensitive_features: Any = None, features: Any = None) -> Any:
        return super().transform(X, sensitive_features=_groups(X, sensitive_features))

    def predict(self, X: Any, *, sensitive_features: Any = None, features: Any = None) -> Any:
        return super().predict(X, sensitive_features=_groups(X, sensitive_features))

    def score(self, X: Any, y: Any, **others: Any) -> float:
        return 0.0


def _groups(X: Any, sensitive_features: Any) -> Any:
    """Groups by a column, so that a row has the same in every table."""
    values = np.asarray(X.todense() if hasattr(X, "todense") else X)
    if sensitive_features is not None or values.ndim != 2 or not values.shape[1]:
        return sensitive_features
    column = np.nan_to_num(values[:, 0].astype(float), posinf=0, neginf=0)
    return np.floor(7.3 * column) % 2


@parametrize_with_checks(
    [WithGroups(kind="logits", ties="keep")],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_checks(estimator: Debiaser, check: Any) -> None:
    check(estimator)


Table = tuple[pd.DataFrame, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def people() -> Table:
    """Features, labels and groups of people; men are ahead."""
    generator = np.random.default_rng(0)
    sex = np.where(generator.random(1200) < 0.4, "f", "m")
    x = generator.normal(size=(1200, 4)) + 0.8 * (sex == "m")[:, None]
    y = np.where(x[:, 0] + generator.normal(size=1200) > 0.5, "yes", "no")
    return pd.DataFrame(x, columns=list("abcd")), y, sex


def gap(decisions: np.ndarray, sex: np.ndarray) -> float:
    chosen = decisions == "yes"
    return float(chosen[sex == "m"].mean() - chosen[sex == "f"].mean())


def fair_pipeline(classifier: Any) -> Pipeline:
    return make_pipeline(StandardScaler(), OutOfFoldScores(classifier), Debiaser())


def test_search_over_a_pipeline_holds_the_target(people: Table) -> None:
    x, y, sex = people
    train, test = np.arange(1200) < 800, np.arange(1200) >= 800
    grid = {"outoffoldscores__classifier__C": [0.01, 1.0], "debiaser__target": [0.0, 0.1]}
    search = GridSearchCV(fair_pipeline(LogisticRegression()), grid, cv=3)
    with sklearn.config_context(enable_metadata_routing=True):
        search.fit(x[train], y[train], sensitive_features=sex[train])
        # GridSearchCV.predict takes no metadata.
        decisions = search.best_estimator_.predict(x[test], sensitive_features=sex[test])
        accuracy = search.score(x[test], y[test], sensitive_features=sex[test])
    assert set(decisions) == {"yes", "no"}
    assert accuracy == pytest.approx((decisions == y[test]).mean())
    # A search for accuracy keeps as much of the gap as it may.
    assert search.best_params_["debiaser__target"] == 0.1
    uncorrected = LogisticRegression().fit(x[train], y[train]).predict(x[test])
    assert gap(uncorrected, sex[test]) > 0.25
    assert abs(gap(decisions, sex[test])) < 0.2


def test_pipeline_fits_the_correction_to_out_of_fold_scores(people: Table) -> None:
    x, y, sex = people
    classifier = HistGradientBoostingClassifier(max_iter=20, random_state=0)
    fair = fair_pipeline(classifier)
    with sklearn.config_context(enable_metadata_routing=True):
        fair.fit(x, y, sensitive_features=sex)
        fair_scores = fair.transform(x, sensitive_features=sex)
    scaled = StandardScaler().fit_transform(x)
    scores = cross_val_predict(classifier, scaled, y, method="predict_proba")
    expected = Debiaser().fit(scores, y, sensitive_features=sex)
    assert fair[-1].to_dict() == expected.to_dict()
    scores = classifier.fit(scaled, y).predict_proba(scaled)
    np.testing.assert_allclose(fair_scores, expected.transform(scores, sensitive_features=sex))


@pytest.mark.parametrize("named", [True, False])
def test_predict_is_the_decision_of_transform(people: Table, named: bool) -> None:
    x, y, sex = people
    scores = LogisticRegression().fit(x, y).predict_proba(x)
    labels = y if named else (y == "yes").astype(int)
    corrector = Debiaser(target=0.05).fit(scores, labels, sensitive_features=sex)
    fair = corrector.transform(scores, sensitive_features=sex)
    decisions = corrector.predict(scores, sensitive_features=sex)
    positive = decisions == "yes" if named else decisions == 1
    np.testing.assert_array_equal(positive, fair[:, 1] > 0.5)
    weight = np.linspace(0, 1, len(y))
    accuracy = corrector.score(scores, labels, sensitive_features=sex, sample_weight=weight)
    assert accuracy == pytest.approx(np.average(decisions == labels, weights=weight))
    with pytest.raises(InputError, match="no row is labelled"):
        corrector.score(scores, np.full(len(y), -1), sensitive_features=sex)


def test_group_free_correction_in_a_pipeline_predicts_from_features(people: Table) -> None:
    x, y, sex = people
    fair = make_pipeline(OutOfFoldScores(LogisticRegression()), Debiaser(group_free=True))
    with sklearn.config_context(enable_metadata_routing=True):
        fair.fit(x, y, sensitive_features=sex, features=x)
        assert abs(gap(fair.predict(x, features=x), sex)) < 0.05


def test_groups_are_asked_for(people: Table) -> None:
    x, y, sex = people
    fair = fair_pipeline(LogisticRegression())
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(InputError, match="sensitive_features: missing"):
            fair.fit(x, y)
        fair.fit(x, y, sensitive_features=sex)
        with pytest.raises(InputError, match="sensitive_features: missing"):
            fair.predict(x)
