from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from fairmp import Debiaser, InputError
from fairmp.postprocessing.neighbours import KnownPeople, num_columns


def sorted_network(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Groups, and edges of both directions that join the same group in nine of ten cases."""
    rng = np.random.default_rng(seed)
    group = rng.integers(2, size=n)
    source, target = rng.integers(n, size=(2, 8 * n))
    kept = (group[source] == group[target]) | (rng.random(8 * n) < 0.1)
    edges = np.stack([source[kept], target[kept]])
    return group, np.hstack([edges, edges[::-1]])


def test_columns_equal_those_of_networkx() -> None:
    rng = np.random.default_rng(0)
    group, edges = sorted_network(40)
    group[::7] = -1
    features = rng.normal(size=(40, 3))
    people = KnownPeople(features, group, 2)
    columns = people.columns(edges)
    assert columns.shape == (40, num_columns(3, 2))
    graph = nx.Graph(edges.T.tolist())
    overall = np.array([(group == g).sum() for g in (0, 1)]) / (group >= 0).sum()
    for node in range(40):
        near = [k for k in graph.neighbors(node) if k != node] if node in graph else []
        mean = features[near].mean(0) if near else features.mean(0)
        counts = np.array([(group[near] == g).sum() for g in (0, 1)])
        shares = np.log((counts + overall) / (counts.sum() + 1) / overall)
        expected = [*features[node], *mean, np.log1p(len(near)), *shares, np.log1p(counts.sum())]
        np.testing.assert_allclose(columns[node], expected, atol=1e-12)


def test_own_group_changes_no_own_column() -> None:
    group, edges = sorted_network(60)
    before = KnownPeople(np.zeros((60, 1)), group, 2).columns(edges)
    for node in (0, 7):
        # The overall share stays if another person, who has no friends, is of that group.
        other = np.append(group, group[node])
        other[node] = -1
        after = KnownPeople(np.zeros((61, 1)), other, 2).columns(edges)
        np.testing.assert_allclose(after[node], before[node])
        friends = edges[0, (edges[1] == node) & (edges[0] != node)]
        assert (after[friends] != before[friends]).any(1).all()


def test_new_people_are_estimated_by_their_friends(tmp_path: Path) -> None:
    group, edges = sorted_network(3000)
    rng = np.random.default_rng(1)
    features = rng.normal(size=(3000, 1))  # tell nothing
    p = 1 / (1 + np.exp(-rng.normal(size=3000) - 1.5 * (2 * group - 1)))
    fitted = 2000
    inside = (edges < fitted).all(0)
    corrector = Debiaser(group_free=True, target=0.02)
    corrector.fit(
        p[:fitted],
        sensitive_features=group[:fitted],
        features=features[:fitted],
        edge_index=edges[:, inside],
    )
    corrector.save(tmp_path / "c.json")
    again = Debiaser.load(tmp_path / "c.json")
    # New people know fitting people and each other; their numbers follow those of the fit.
    new = edges[:, edges[1] >= fitted]
    fair = again.transform(p[fitted:], features=features[fitted:], edge_index=new)
    others = group[fitted:]

    def gap(scores: np.ndarray) -> float:
        return abs(float((scores[others == 1] > 0.5).mean() - (scores[others == 0] > 0.5).mean()))

    assert gap(p[fitted:]) > 0.5
    assert gap(fair) < 0.1
    np.testing.assert_array_equal(
        fair, corrector.transform(p[fitted:], features=features[fitted:], edge_index=new)
    )
    alone = again.transform(p[fitted:], features=features[fitted:])
    assert gap(alone) > 0.3  # nobody is known who could tell


def test_wrong_graphs_are_named() -> None:
    group, edges = sorted_network(200)
    p, features = np.linspace(0.1, 0.9, 200), np.ones((200, 1)) * group[:, None]
    with pytest.raises(InputError, match="edge_index"):
        Debiaser().fit(p, sensitive_features=group, edge_index=edges)
    corrector = Debiaser(group_free=True, target=1.0)
    for wrong in (edges[0], edges.astype(float), edges + 100):
        with pytest.raises(InputError, match="edge_index"):
            corrector.fit(p, sensitive_features=group, features=features, edge_index=wrong)
    corrector.fit(p, sensitive_features=group, features=features)
    with pytest.raises(InputError, match="reads no neighbours"):
        corrector.transform(p, features=features, edge_index=edges)
    record = corrector.fit(
        p, sensitive_features=group, features=features, edge_index=edges
    ).to_dict()
    for name, damage in (("group", [9] * 200), ("ids", ["a"] * 200), ("features", [[1.0, 2.0]])):
        people = {**record["correction"]["people"], name: damage}
        damaged = {**record, "correction": {**record["correction"], "people": people}}
        with pytest.raises(InputError, match="not a correction"):
            Debiaser.from_dict(damaged)
