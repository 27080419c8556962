import numpy as np
import pytest
import torch
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
from fairmp.graph import Graph
from fairmp.training import estimators
from fairmp.training.blend import Blend
from fairmp.training.estimators import Estimator
from fairmp.training.graph_features import GraphInputs, fingerprint


def problem(classes, seed=0, n=300):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    x[:, 0] = (x[:, 0] > 0).float()  # thresholds between repeated values
    y = (x[:, 0] + x[:, 1] + 0.5 * torch.randn(n, generator=generator)).argsort().argsort()
    y = y * classes // n
    train = torch.rand(n, generator=generator) < 0.6
    edges = torch.randint(n, (2, 4 * n), generator=generator)
    return x, y, train, Graph(torch.cat([edges, edges.flip(0)], 1), n)


CONVERTED = [
    HistGradientBoostingClassifier(max_iter=20, random_state=0),
    RandomForestClassifier(20, random_state=0),
    ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0),
    LogisticRegression(),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", CONVERTED, ids=lambda e: type(e).__name__)
def test_tensors_predict_what_scikit_learn_predicts(estimator, classes):
    x, y, train, _ = problem(classes)
    module = estimators.fit(estimator, x, y, train, classes)
    assert not isinstance(module, Estimator)
    expected = torch.from_numpy(estimator.predict_proba(x.numpy())).float()
    # Logits of a forest are cut off where a probability is below a millionth.
    torch.testing.assert_close(module(x).softmax(1).float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "estimator",
    [
        KNeighborsClassifier(),
        HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]),
        make_pipeline(StandardScaler(), GaussianNB()),
    ],
    ids=["neighbours", "categorical", "pipeline"],
)
def test_other_estimators_are_called_as_they_are(estimator):
    x, y, train, _ = problem(2)
    module = estimators.fit(estimator, x, y, train, 2)
    assert isinstance(module, Estimator)
    expected = torch.from_numpy(estimator.predict_proba(x.numpy()))
    torch.testing.assert_close(module(x).softmax(1), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_serve_where_there_are_no_probabilities(classes):
    x, y, train, _ = problem(classes)
    estimator = RidgeClassifier()
    decided = estimators.fit(estimator, x, y, train, classes)(x).argmax(1)
    np.testing.assert_array_equal(decided.numpy(), estimator.predict(x.numpy()))


@pytest.mark.parametrize("estimator", [*CONVERTED, KNeighborsClassifier(), RidgeClassifier()])
def test_class_without_training_nodes_is_never_predicted(estimator):
    x, y, train, _ = problem(3)
    logits = estimators.fit(estimator, x, y, train & (y != 1), 3)(x)
    assert logits.shape == (len(x), 3)
    assert not (logits.argmax(1) == 1).any()
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_sample_weights_reach_the_estimator(scaled):
    x, y, train, _ = problem(2)
    weight = torch.where(y == 1, 3.0, 1.0)
    given = LogisticRegression(C=100.0)
    given = make_pipeline(StandardScaler(), given) if scaled else given
    found = estimators.fit(given, x, y, train, 2, sample_weight=weight)(x).softmax(1)[:, 1]
    rows = train & (y == 1)
    thrice = torch.cat([x[train], x[rows], x[rows]]), torch.cat([y[train], y[rows], y[rows]])
    oracle = LogisticRegression(C=100.0).fit(*(part.numpy() for part in thrice))
    expected = oracle.predict_proba(x.numpy())[:, 1]
    np.testing.assert_allclose(found.numpy(), expected, atol=0.01)


def test_sample_weights_an_estimator_does_not_take_are_refused():
    x, y, train, _ = problem(2)
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample weights"):
        estimators.fit(KNeighborsClassifier(), x, y, train, 2, sample_weight=torch.ones(len(x)))


def test_blend_averages_logits_of_models_that_read_differently():
    x, y, train, graph = problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    members = []
    for reads in ("features", "neighbourhood", "edges"):
        design = inputs(reads, x, graph)
        name = "logistic" if reads == "edges" else "trees"
        model = estimators.fit(estimators.make(name, reads, 0), design, y, train, 2)
        members.append((name, reads, model))
    alone = [model(inputs(reads, x, graph)) for _, reads, model in members]
    expected = torch.stack([logits.float() for logits in alone]).mean(0)
    torch.testing.assert_close(Blend(inputs, members)(x, graph), expected)
    # A row of the adjacency without self-loops, then the features.
    dense = torch.zeros(len(x), len(x)).index_put(
        (graph.edge_index[1], graph.edge_index[0]), torch.ones(()), accumulate=True
    )
    dense.fill_diagonal_(0)
    rows = torch.from_numpy(inputs("edges", x, graph).toarray()).float()
    torch.testing.assert_close(rows, torch.cat([dense, x], 1))


def test_nothing_depends_on_labels_outside_training():
    x, y, train, graph = problem(2)
    changed = torch.where(train, y, 1 - y)
    results = []
    for labels in (y, changed):
        inputs = GraphInputs(torch.where(train, labels, -1), fingerprint(graph), 2)
        design = inputs("neighbourhood", x, graph)
        model = estimators.fit(
            estimators.make("trees", "neighbourhood", 0), design, labels, train, 2
        )
        results.append(Blend(inputs, [("trees", "neighbourhood", model)])(x, graph))
    assert torch.equal(*results)


def test_another_graph_is_warned_about():
    x, y, train, graph = problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    shuffled = torch.randperm(graph.edge_index.size(1), generator=torch.Generator().manual_seed(0))
    same = Graph(graph.edge_index[:, shuffled], graph.num_nodes)
    assert torch.equal(
        inputs("neighbourhood", x, same), inputs("neighbourhood", x, graph)
    )  # the order of the edges is of no interest
    other = Graph(graph.edge_index[:, 1:], graph.num_nodes)
    with pytest.warns(UserWarning, match="another graph"):
        rows = inputs("neighbourhood", x, other)
    assert (rows[:, -5:-3] == 0.5).all()
    with pytest.warns(UserWarning, match="another graph"):
        assert inputs("edges", x[:10], Graph(torch.zeros(2, 0).long(), 10)).shape == (10, 306)


def test_nodes_joined_to_the_training_graph_know_their_neighbours():
    x, y, train, graph = problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    new, n = 5, len(x)
    # The new nodes come first, and two of them are connected to old ones.
    place = new + torch.randperm(n, generator=torch.Generator().manual_seed(1))
    joined = torch.stack([torch.tensor([0, 0, 1]), place[torch.tensor([3, 4, 9])]])
    edges = torch.cat([place[graph.edge_index], joined, joined.flip(0)], 1)
    larger = Graph(edges, n + new)
    larger.origin = place
    both = torch.zeros(n + new, x.size(1))
    both[place] = x
    untouched = torch.ones(n, dtype=torch.bool)
    near = torch.tensor([3, 4, 9])
    reached = graph.edge_index[1][torch.isin(graph.edge_index[0], near)]
    untouched[near] = untouched[reached] = False
    for reads in ("neighbourhood", "edges"):
        before, after = inputs(reads, x, graph), inputs(reads, both, larger)
        if reads == "edges":
            before, after = (torch.from_numpy(part.toarray()) for part in (before, after))
            assert after[0].nonzero().flatten().tolist() == [3, 4]
            assert after[1].nonzero().flatten().tolist() == [9]
        torch.testing.assert_close(before[untouched], after[place][untouched])
    known = torch.where(train, y, -1)[near[:2]]
    counts = torch.stack([(known == label).sum() for label in (0, 1)])
    shares = inputs("neighbourhood", both, larger)[0, -5:-3]
    torch.testing.assert_close(shares, (counts + 0.5) / (counts.sum() + 1))
