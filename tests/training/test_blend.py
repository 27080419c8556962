import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB

from fairmp.training import blend, estimators
from fairmp.training.blend import Blend, Member
from fairmp.training.graph_features import GraphInputs, fingerprint
from tests.training.problems import problem


def test_blend_averages_logits_of_different_views():
    x, y, train, graph = problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    members = []
    for view in ("features", "neighbourhood", "edges"):
        design = inputs(view, x, graph)
        name = "logistic" if view == "edges" else "trees"
        classifier = estimators.make(name, view, 0, sparse=False)
        members.append(Member(name, view, estimators.fit(classifier, design, y, train, 2)))
    alone = [member.model(inputs(member.view, x, graph)) for member in members]
    expected = torch.stack([logits.float() for logits in alone]).mean(0)
    torch.testing.assert_close(Blend(inputs, members)(x, graph), expected)
    # A row of the adjacency without self-loops, then the features.
    dense = torch.zeros(len(x), len(x)).index_put(
        (graph.edge_index[1], graph.edge_index[0]), torch.ones(()), accumulate=True
    )
    dense.fill_diagonal_(0)
    rows = torch.from_numpy(inputs("edges", x, graph).toarray()).float()
    torch.testing.assert_close(rows, torch.cat([dense, x], 1))


def test_labels_outside_training_change_nothing():
    x, y, train, graph = problem(2)
    changed = torch.where(train, y, 1 - y)
    results = []
    for labels in (y, changed):
        inputs = GraphInputs(torch.where(train, labels, -1), fingerprint(graph), 2)
        design = inputs("neighbourhood", x, graph)
        classifier = estimators.make("trees", "neighbourhood", 0, sparse=False)
        model = estimators.fit(classifier, design, labels, train, 2)
        results.append(Blend(inputs, [Member("trees", "neighbourhood", model)])(x, graph))
    assert torch.equal(*results)


def blended():
    x, y, train, graph = problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    model = estimators.fit(GaussianNB(), x, y, train, 2)
    return Blend(inputs, [Member("GaussianNB", "features", model)])


def rebuilt(original, **changes):
    arguments = {
        "description": original.describe(),
        "state": original.state_dict(),
        "features": 6,
        "num_classes": 2,
        "classifiers": original.classifiers,
    }
    return blend.rebuild(**(arguments | changes), build=lambda name, width: torch.nn.Identity())


def test_rebuilt_blend_predicts_the_same():
    x, _, _, graph = problem(2)
    original = blended()
    assert torch.equal(rebuilt(original)(x, graph), original(x, graph))


def test_rebuild_refuses_other_sizes():
    original = blended()
    other = GaussianNB().fit(np.random.default_rng(0).normal(size=(20, 6)), [0, 2] * 10)
    for changes in (
        {"features": 7},
        {"classifiers": {0: other}},
        {"num_classes": 1},
        {"description": {"members": [["GaussianNB", "dreams", "estimator"]]}},
    ):
        with pytest.raises(ValueError, match=r"."):
            rebuilt(original, **changes)
