from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, homophily, is_undirected

from fairmp.datasets import social_network
from fairmp.datasets.synthetic import distinct_pairs
from fairmp.errors import InputError


def check_simple(data) -> None:
    edge_index = data.edge_index
    assert edge_index.dtype == torch.int64
    assert is_undirected(edge_index)
    assert torch.equal(edge_index, coalesce(edge_index))
    assert (edge_index[0] != edge_index[1]).all()
    assert edge_index.min() >= 0
    assert edge_index.max() < data.num_nodes


def test_social_network_has_the_figures_asked_for():
    data = social_network(
        10_000,
        average_degree=15,
        sens_homophily=0.85,
        label_homophily=0.7,
        group_ratio=0.3,
        base_rate=0.4,
        base_rate_gap=0.3,
    )
    check_simple(data)
    assert data.num_edges == 10_000 * 15
    assert homophily(data.edge_index, data.sens, method="edge") == pytest.approx(0.85, abs=1e-3)
    assert homophily(data.edge_index, data.y, method="edge") == pytest.approx(0.7, abs=1e-3)
    assert int(data.sens.sum()) == 3000
    assert int(data.y[data.sens == 0].sum()) == 1750
    assert int(data.y[data.sens == 1].sum()) == 1650
    assert data.x.shape == (10_000, 32)
    assert data.x.dtype == torch.float32
    assert data.y.dtype == data.sens.dtype == torch.int64
    assert data.feature_names[:2] == ["f0", "f1"]
    assert len(data.class_names) == len(data.group_names) == 2
    assert data.name == "embedded network"
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(1).tolist() == [5000, 2500, 2500]
    assert masks.sum(0).eq(1).all()


def test_social_network_of_three_classes_and_four_groups():
    shares = (0.4, 0.3, 0.2, 0.1)
    data = social_network(
        4000, classes=3, groups=4, group_ratio=shares, base_rate=0.3, base_rate_gap=0.3
    )
    check_simple(data)
    assert torch.bincount(data.sens).tolist() == [1600, 1200, 800, 400]
    for group, rate in enumerate((0.15, 0.25, 0.35, 0.45)):
        rates = torch.bincount(data.y[data.sens == group], minlength=3) / (data.sens == group).sum()
        other_rate = (1 - rate) / 2
        assert rates.tolist() == pytest.approx([other_rate, rate, other_rate], abs=2e-3)
    assert homophily(data.edge_index, data.sens, method="edge") == pytest.approx(0.92, abs=1e-3)
    assert homophily(data.edge_index, data.y, method="edge") == pytest.approx(0.65, abs=1e-3)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(300, 1500),
    degree=st.floats(2, 12),
    sens_homophily=st.floats(0, 1),
    label_homophily=st.floats(0, 1),
    ratio=st.floats(0.2, 0.8),
    base_rate=st.floats(0.3, 0.7),
    gap=st.floats(-0.4, 0.4),
    classes=st.integers(2, 4),
    groups=st.integers(2, 4),
    seed=st.integers(0, 2**31),
)
def test_social_network_meets_or_refuses_any_parameters(
    n, degree, sens_homophily, label_homophily, ratio, base_rate, gap, classes, groups, seed
):
    try:
        data = social_network(
            n,
            average_degree=degree,
            sens_homophily=sens_homophily,
            label_homophily=label_homophily,
            group_ratio=ratio,
            base_rate=base_rate,
            base_rate_gap=gap,
            classes=classes,
            groups=groups,
            features=4,
            seed=seed,
        )
    except InputError as error:
        # Within these ranges only a block with too few pairs can be wrong.
        if "pairs; give fewer edges" not in str(error):
            raise
        reject()
    check_simple(data)
    edges = data.num_edges / 2
    assert edges == round(n * degree / 2)
    for labels, wanted in ((data.sens, sens_homophily), (data.y, label_homophily)):
        assert abs(homophily(data.edge_index, labels, method="edge") - wanted) < 1.5 / edges + 1e-6
    assert abs(int((data.sens == 1).sum()) - ratio * n) <= 1
    for group in range(groups):
        here = data.sens == group
        rate = base_rate + gap * (group / (groups - 1) - 0.5)
        assert abs(int((data.y[here] == 1).sum()) - rate * int(here.sum())) <= 1


def test_chance_homophily_gives_the_block_rates_of_chance():
    n = 3000
    data = social_network(n, average_degree=30, sens_homophily=0.5, label_homophily=0.5)
    block = 2 * data.sens + data.y
    sizes = torch.bincount(block).double()
    source, target = data.edge_index
    counts = torch.zeros(4, 4, dtype=torch.double)
    counts.index_put_((block[source], block[target]), torch.ones(1).double(), accumulate=True)
    expected = torch.outer(sizes, sizes) / n**2
    assert torch.allclose(counts / counts.sum(), expected, atol=2e-3)


def test_degrees_inside_a_block_are_binomial():
    data = social_network(
        8000, average_degree=20, sens_homophily=0.5, label_homophily=0.5, base_rate_gap=0
    )
    degree = torch.bincount(data.edge_index[0], minlength=8000).double()
    assert degree.mean() == 20
    assert degree.var() == pytest.approx(20, rel=0.1)


def test_same_seed_same_graph():
    first, again, other = (social_network(500, seed=seed) for seed in (3, 3, 4))
    for key in ("x", "edge_index", "y", "sens", "train_mask", "test_mask"):
        assert torch.equal(first[key], again[key])
        assert not torch.equal(first[key], other[key])


def test_recorded_graphs_do_not_change():
    digest = hashlib.sha256()
    for data in (
        social_network(500, seed=3),
        social_network(400, classes=3, groups=3, density=0.1),
    ):
        for key in ("edge_index", "y", "sens", "train_mask"):
            digest.update(data[key].numpy().tobytes())
    assert digest.hexdigest()[:16] == "04723dd89d434986"
    # The last bits of the features depend on the processor.
    assert data.x[:2, :3].flatten().tolist() == pytest.approx(
        [-0.9860, -1.4716, 0.5728, 0.3776, 0.3051, -0.0903], abs=1e-3
    )


def test_nodes_do_not_change_with_the_edges():
    sparse, dense = (social_network(500, average_degree=k) for k in (5, 10))
    assert torch.equal(sparse.x, dense.x)
    assert torch.equal(sparse.y, dense.y)


def test_groups_are_not_contiguous():
    sens = social_network(2000).sens
    assert int((sens[1:] != sens[:-1]).sum()) == pytest.approx(1000, abs=150)


def test_density_and_average_degree_agree():
    by_density = social_network(501, density=0.02)
    by_degree = social_network(501, average_degree=10)
    assert torch.equal(by_density.edge_index, by_degree.edge_index)


def test_complete_graph():
    groups, half = 0.5, 10
    homophily = (2 * half * (half - 1) / 2) / (2 * half * (2 * half - 1) / 2)
    data = social_network(
        2 * half,
        density=1,
        group_ratio=groups,
        base_rate_gap=0,
        sens_homophily=homophily,
        label_homophily=homophily,
    )
    assert data.num_edges == 2 * half * (2 * half - 1)


def test_a_million_edges():
    data = social_network(100_000, average_degree=20, features=2)
    assert data.num_edges == 2_000_000
    assert homophily(data.edge_index, data.sens, method="edge") == pytest.approx(0.92, abs=1e-3)


def test_signals_shift_the_means_by_their_length():
    data = social_network(20_000, average_degree=4, label_signal=2.0, sens_signal=0.0)
    mean = torch.stack([data.x[data.y == c].mean(0) for c in (0, 1)])
    assert mean.norm(dim=1).tolist() == pytest.approx([2, 2], abs=0.1)
    assert torch.linalg.vector_norm(mean[1] - mean[0]) == pytest.approx(2 * 2**0.5, abs=0.1)
    group = torch.stack([data.x[data.sens == s].mean(0) for s in (0, 1)])
    inside = group - torch.stack([torch.tensor([0.6, 0.4]) @ mean, torch.tensor([0.4, 0.6]) @ mean])
    assert inside.norm(dim=1).max() < 0.1
    assert data.x.std() == pytest.approx(1, abs=0.1)
    tight = social_network(2000, average_degree=4, features=3, classes=3)
    assert tight.x.shape == (2000, 3)


def test_features_alone_predict_the_label_somewhat():
    from sklearn.linear_model import LogisticRegression

    data = social_network()
    model = LogisticRegression().fit(data.x[data.train_mask], data.y[data.train_mask])
    assert 0.70 <= model.score(data.x[data.test_mask], data.y[data.test_mask]) <= 0.75


@settings(deadline=None, max_examples=100)
@given(n=st.integers(1, 12), m=st.integers(0, 12), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_distinct_pairs_are_distinct_and_inside_their_blocks(n, m, share, seed):
    rng = np.random.default_rng(seed)
    rows, cols = np.arange(n) * 3, 100 + np.arange(m)
    everything = {(i, j) for i in rows for j in cols} if m else set(combinations(rows.tolist(), 2))
    count = round(share * len(everything))
    pairs = distinct_pairs(rng, rows, cols if m else None, count)
    drawn = {tuple(sorted(pair)) for pair in pairs.T.tolist()}
    assert len(drawn) == count
    assert drawn <= everything


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("between", [False, True])
def test_distinct_pairs_are_uniform(count, between):
    from scipy.stats import chisquare

    rng = np.random.default_rng(0)
    rows, cols = np.arange(8), np.arange(8, 12) if between else None
    seen: dict[tuple[int, int], int] = {}
    for _ in range(4000):
        for i, j in distinct_pairs(rng, rows, cols, count).T.tolist():
            pair = (min(i, j), max(i, j))
            seen[pair] = seen.get(pair, 0) + 1
    assert len(seen) == (32 if between else 28)
    # Drawing without replacement varies less than the multinomial the test assumes.
    assert chisquare(list(seen.values())).pvalue > 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1}, r"^n: 1 is too small"),
        ({"n": 4, "average_degree": 1, "group_ratio": 0.1}, r"^n: 4 leaves group 1 without"),
        ({"classes": 1}, r"^classes: 1"),
        ({"groups": 1}, r"^groups: 1"),
        ({"features": 0}, r"^features: 0"),
        ({"seed": -1}, r"^seed: -1"),
        ({"sens_homophily": 1.1}, r"^sens_homophily: 1.1 is not allowed"),
        ({"label_homophily": float("nan")}, r"^label_homophily: nan is not allowed"),
        ({"group_ratio": 0.0}, r"^group_ratio: the shares \[1.0, 0.0\] must be positive"),
        ({"group_ratio": (0.2, 0.3, 0.5)}, r"^group_ratio: 3 shares for 2 groups"),
        ({"group_ratio": (0.7, 0.7)}, r"^group_ratio: the shares \[0.7, 0.7\] must be positive"),
        ({"base_rate": 0.95}, r"^base_rate: 0.95 with base_rate_gap=0.18 gives"),
        ({"average_degree": 5, "density": 0.1}, r"^density: 0.1 along with average_degree=5"),
        ({"average_degree": 0}, r"^average_degree: 0 is outside"),
        ({"density": 2}, r"^density: 2 is not allowed"),
        ({"n": 100, "average_degree": 70}, r"^average_degree: 70 with this homophily asks for"),
        ({"average_degree": 1e-9}, r"^average_degree: 1e-09 .*no edge"),
        (
            {"base_rate": 0.5, "base_rate_gap": 1.0, "sens_homophily": 0.9, "label_homophily": 0.6},
            r"^sens_homophily: 0.9 cannot go with label_homophily=0.6",
        ),
    ],
)
def test_social_network_refuses_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message) as raised:
        social_network(**arguments)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 260


def test_rates_of_zero_and_one_are_allowed_where_homophily_agrees():
    data = social_network(
        1000, base_rate=0.5, base_rate_gap=1.0, sens_homophily=0.8, label_homophily=0.8
    )
    assert torch.equal(data.y, data.sens)


def test_social_network_leaves_global_generators_alone():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    social_network(300)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
