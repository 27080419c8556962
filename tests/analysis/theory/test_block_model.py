from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare
from torch_geometric.utils import contains_self_loops, is_undirected

from fairmp.analysis.theory import connection_probabilities
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.measurement import measured_moments
from fairmp.errors import InputError


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 60), st.floats(0.01, 0.3), st.floats(0, 1), st.integers(0, 10_000))
def test_graph_has_the_attributes_of_a_data_set(n: int, rho: float, eps: float, seed: int) -> None:
    data = block_graph(n, rho, eps, 0.5, seed=seed)
    data.validate()
    assert data.x.dtype == torch.float32
    assert data.x.shape == (n, 2)
    assert data.edge_index.dtype == data.y.dtype == data.sens.dtype == torch.int64
    assert data.is_coalesced()
    assert is_undirected(data.edge_index, num_nodes=n)
    assert not contains_self_loops(data.edge_index)
    assert (data.y == -1).all()
    assert int(data.sens.sum()) == round(n / 2)
    masks = data.train_mask.int() + data.val_mask.int() + data.test_mask.int()
    assert (masks == 1).all()
    assert len(data.feature_names) == 2
    assert len(data.group_names) == 2


def test_every_pair_is_an_edge_with_its_probability() -> None:
    n, rho, eps, c, draws = 7, 0.4, 0.7, 0.43, 2000
    p, q = connection_probabilities(n, rho, eps, c)
    counts = torch.zeros(n, n)
    joint = torch.zeros(2)
    for seed in range(draws):
        row, col = block_graph(n, rho, eps, c, seed=seed).edge_index
        counts[row, col] += 1
        dense = torch.zeros(n, n)
        dense[row, col] = 1
        joint += torch.tensor([dense[0, 1] * dense[0, 2], dense[0, 1] * dense[0, 6]])
    in_first_group = torch.arange(n) < 4
    expected = torch.where(
        in_first_group[:, None] == in_first_group[None], float(p), float(q)
    ).fill_diagonal_(0)
    error = (counts / draws - expected).abs() / (expected * (1 - expected) / draws + 1e-9).sqrt()
    assert error.max() < 4.5
    # Pairs that share a node are independent, inside a group and across.
    for together, chance in zip(joint / draws, (p * p, p * q), strict=True):
        assert abs(float(together) - chance) < 4.5 * np.sqrt(chance * (1 - chance) / draws)


def test_number_of_edges_is_binomial() -> None:
    n, rho, eps, draws = 20, 0.3, 0.5, 1000
    _, q = connection_probabilities(n, rho, eps, 0.5)
    between = np.empty(draws, dtype=int)
    for seed in range(draws):
        data = block_graph(n, rho, eps, 0.5, seed=seed)
        between[seed] = int((data.sens[data.edge_index].diff(dim=0) != 0).sum()) // 2
    low, high = binom.ppf([0.02, 0.98], 100, q).astype(int)
    observed = np.bincount(np.clip(between, low, high) - low, minlength=high - low + 1)
    law = binom.pmf(np.arange(low, high + 1), 100, q)
    law[0], law[-1] = binom.cdf(low, 100, q), binom.sf(high - 1, 100, q)
    assert chisquare(observed, law / law.sum() * draws).pvalue > 1e-4


def test_features_have_the_given_moments() -> None:
    means = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]])
    root = np.random.default_rng(0).standard_normal((2, 3, 3))
    covariances = root @ root.swapaxes(1, 2) + 0.1 * np.eye(3)
    data = block_graph(200_000, 1e-6, 0.5, 0.3, means=means, covariances=covariances)
    moments = measured_moments(data.x, data.sens)
    np.testing.assert_allclose(moments.means, means, atol=0.05)
    np.testing.assert_allclose(moments.covariances, covariances, atol=0.12)
    np.testing.assert_allclose(moments.shares, [0.7, 0.3])
    shared = block_graph(200_000, 1e-6, 0.5, 0.3, means=means, covariances=covariances[0])
    for covariance in measured_moments(shared.x, shared.sens).covariances:
        np.testing.assert_allclose(covariance, covariances[0], atol=0.12)


def test_seeds_repeat_and_features_do_not_follow_the_edges() -> None:
    one, same, other = (block_graph(500, 0.02, 0.8, 0.5, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.edge_index, same.edge_index)
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)
    denser = block_graph(500, 0.04, 0.8, 0.5, seed=3)
    assert torch.equal(one.x, denser.x)
    assert denser.num_edges > one.num_edges


def test_million_edges_are_drawn_without_pairwise_work() -> None:
    # All pairs of these nodes would be 2·10¹⁰ numbers.
    data = block_graph(200_000, 5e-5, 0.9, 0.2, seed=0)
    assert data.num_edges / 2 == pytest.approx(1e6, rel=0.01)
    source, target = data.sens[data.edge_index]
    assert float((source == target).float().mean()) == pytest.approx(0.9, abs=0.002)


def test_extremes_are_complete_and_bipartite() -> None:
    complete = block_graph(10, 0.5, 1.0, 0.5)
    assert complete.num_edges == 2 * 2 * 10
    bipartite = block_graph(10, 0.5, 0.0, 0.5)
    assert bipartite.num_edges == 2 * 25
    assert (bipartite.sens[bipartite.edge_index].diff(dim=0) != 0).all()


def test_labels_follow_the_direction() -> None:
    data = block_graph(1000, 0.01, 0.5, 0.5, label_direction=[1.0, 0.0])
    assert int(data.y.sum()) == 500
    assert data.x[data.y == 1, 0].min() >= data.x[data.y == 0, 0].max()
    assert data.class_names == ["below", "above"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 1.0}, r"c: 1 is outside \(0, 1\)"),
        ({"eps": -0.2}, r"eps: -0.2 is outside \[0, 1\]"),
        ({"rho": 0.9}, r"rho: 0.9 with eps=0.8 and c=0.5 makes p = 1.44, above 1"),
        ({"rho": 0.6, "eps": 0.1}, r"makes q = 1.08, above 1; the largest density here is 0.5556"),
        ({"c": 0.001, "rho": 0.005}, r"c: 0.001 of 100 nodes leaves a group empty"),
        ({"seed": -1}, r"seed: -1"),
        ({"covariances": [[1, 2], [2, 1]]}, r"covariances: smallest eigenvalue -1 is not positive"),
        ({"covariances": np.eye(3)}, r"means: shape \(2, 2\) with covariances of shape \(3, 3\)"),
        ({"means": np.eye(3)}, r"means: shape \(3, 3\)"),
        ({"label_direction": [1.0]}, r"label_direction: shape \(1,\) for 2 features"),
    ],
)
def test_impossible_parameters_name_the_limit_they_break(options: dict, message: str) -> None:
    arguments = {"n": 100, "rho": 0.1, "eps": 0.8, "c": 0.5} | options
    with pytest.raises(InputError, match=message):
        block_graph(**arguments)
