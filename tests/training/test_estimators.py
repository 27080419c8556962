import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fairmp.errors import InputError
from fairmp.training import estimators
from tests.training.problems import problem

OURS = [
    HistGradientBoostingClassifier(max_iter=20, random_state=0),
    RandomForestClassifier(20, random_state=0),
    ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0),
    LogisticRegression(),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


OTHERS = [
    KNeighborsClassifier(),
    HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]),
    make_pipeline(StandardScaler(), GaussianNB()),
]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("classifier", [*OURS, *OTHERS], ids=lambda one: type(one).__name__)
def test_logits_are_log_probabilities(classifier, classes):
    x, y, train, _ = problem(classes)
    module = estimators.fit(classifier, x, y, train, classes)
    expected = torch.from_numpy(classifier.predict_proba(x.numpy()))
    # Logits are cut off where a probability is below a millionth.
    torch.testing.assert_close(module(x).softmax(1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classifier", [*OURS, *OTHERS], ids=lambda one: type(one).__name__)
def test_saved_classifier_predicts_the_same(classifier):
    x, y, train, _ = problem(2)
    module = estimators.fit(classifier, x, y, train, 2)
    content = estimators.to_bytes({3: classifier})
    is_ours = any(classifier is one for one in OURS)
    loaded = estimators.from_bytes(content, "m", trust=not is_ours)
    assert list(loaded) == [3]
    assert torch.equal(estimators.Estimator(loaded[3], 2)(x), module(x))


class Own(ClassifierMixin, BaseEstimator):
    """A user's classifier, of a type that nobody knows."""

    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x):
        return np.full((len(x), len(self.classes_)), 1 / len(self.classes_))


def test_unknown_type_is_loaded_with_trust_alone():
    x, y, _, _ = problem(2)
    content = estimators.to_bytes({0: Own().fit(x.numpy(), y.numpy())})
    with pytest.raises(InputError, match=r"path: .*\.Own.*trust=True"):
        estimators.from_bytes(content, "m", trust=False)
    loaded = estimators.from_bytes(content, "m", trust=True)[0]
    np.testing.assert_array_equal(loaded.classes_, [0, 1])


def test_damaged_classifier_is_an_input_error():
    x, y, train, _ = problem(2)
    content = estimators.to_bytes({0: estimators.fit(GaussianNB(), x, y, train, 2).classifier})
    rng = np.random.default_rng(0)
    for _ in range(30):
        broken = content.clone()
        start = int(rng.integers(len(content)))
        broken[start : start + 9] = int(rng.integers(256))
        for damaged in (broken, content[:start]):
            if torch.equal(damaged, content):
                continue
            try:
                estimators.from_bytes(damaged, "m", trust=True)
            except InputError as error:
                assert error.argument == "path"  # noqa: PT017


def test_classifier_that_cannot_be_saved_is_an_input_error():
    classifier = GaussianNB()
    classifier.priors = (share for share in (0.5, 0.5))  # a generator
    with pytest.raises(InputError, match="backbone"):
        estimators.to_bytes({0: classifier})


@pytest.mark.parametrize("classes", [2, 3])
def test_decision_function_without_probabilities(classes):
    x, y, train, _ = problem(classes)
    classifier = RidgeClassifier()
    decided = estimators.fit(classifier, x, y, train, classes)(x).argmax(1)
    np.testing.assert_array_equal(decided.numpy(), classifier.predict(x.numpy()))


@pytest.mark.parametrize("classifier", [*OURS, KNeighborsClassifier(), RidgeClassifier()])
def test_class_without_training_nodes_is_never_predicted(classifier):
    x, y, train, _ = problem(3)
    logits = estimators.fit(classifier, x, y, train & (y != 1), 3)(x)
    assert logits.shape == (len(x), 3)
    assert not (logits.argmax(1) == 1).any()
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_sample_weights_reach_the_estimator(scaled):
    x, y, train, _ = problem(2)
    weight = torch.where(y == 1, 3.0, 1.0)
    classifier = LogisticRegression(C=100.0)
    classifier = make_pipeline(StandardScaler(), classifier) if scaled else classifier
    proba = estimators.fit(classifier, x, y, train, 2, sample_weight=weight)(x).softmax(1)[:, 1]
    rows = train & (y == 1)
    thrice = torch.cat([x[train], x[rows], x[rows]]), torch.cat([y[train], y[rows], y[rows]])
    oracle = LogisticRegression(C=100.0).fit(*(part.numpy() for part in thrice))
    expected = oracle.predict_proba(x.numpy())[:, 1]
    np.testing.assert_allclose(proba.numpy(), expected, atol=0.01)


def test_sample_weights_an_estimator_does_not_take_are_refused():
    x, y, train, _ = problem(2)
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample weights"):
        estimators.fit(KNeighborsClassifier(), x, y, train, 2, sample_weight=torch.ones(len(x)))


@pytest.mark.parametrize("make", [HistGradientBoostingClassifier, RandomForestClassifier])
def test_equal_classifiers_have_equal_bytes(make) -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = (x[:, 0] > 0).astype(int)
    first, second = (estimators.to_bytes({0: make(random_state=0).fit(x, y)}) for _ in range(2))
    assert torch.equal(first, second)


def test_trees_read_the_columns_that_tell_classes_apart_and_are_saved():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 700)).astype(np.float32)
    x[:, 5] = 1.0  # a constant column is never read, and no warning is raised
    y = torch.from_numpy((x[:, 3] > 0).astype(np.int64))
    classifier = estimators.make("trees", "features", 0, sparse=False, columns=700)
    model = estimators.fit(classifier, torch.from_numpy(x), y, torch.arange(300) < 200, 2)
    chosen = model.classifier.steps[0][1].get_support()
    assert chosen.sum() == estimators.WIDE
    assert chosen[3]
    assert not chosen[5]
    predicted = model(torch.from_numpy(x))
    assert (predicted.argmax(1) == y)[200:].double().mean() > 0.9
    loaded = estimators.from_bytes(estimators.to_bytes({0: model.classifier}), "x", trust=False)
    again = estimators.Estimator(loaded[0], 2)(torch.from_numpy(x))
    assert torch.equal(again, predicted)
