"""Tables that are mostly zeros: features stay sparse from the table to the first layer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from fairmp import FMP, FairClassifier, InputError, audit
from fairmp.analysis.audits import measure
from fairmp.datasets import encoding, from_tables
from fairmp.datasets.stored_graph import join_nodes, save_graph
from fairmp.graph import from_scipy, to_scipy

ROLES: Any = {"id": "id", "label": "label", "sensitive": "group"}
WORDS = 300


@pytest.fixture
def bag(monkeypatch: pytest.MonkeyPatch) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A bag of words with counts, small enough for tests, and its edges."""
    monkeypatch.setattr(encoding, "MIN_SPARSE_ENTRIES", 1000)
    rng = np.random.default_rng(0)
    y, group = rng.integers(0, 2, (2, 400))
    rate = np.full((400, WORDS), 0.02)
    rate[:, :30] += 0.1 * y[:, None]
    rate[:, 30:40] += 0.1 * group[:, None]
    counts = rng.poisson(rate)
    frame = pd.DataFrame(counts, columns=[f"w{k}" for k in range(WORDS)])
    frame = frame.assign(id=np.arange(400), label=y, group=np.array(["f", "m"])[group])
    ends = rng.integers(0, 400, (2, 1600))
    ends = ends[:, (y[ends[0]] == y[ends[1]]) | (rng.random(1600) < 0.4)]
    return frame, pd.DataFrame(ends.T, columns=["a", "b"])


def dense(data: Any) -> Any:
    copy = data.clone()
    copy.x = data.x.to_dense()
    return copy


def test_from_tables_of_few_numbers_is_sparse(bag: Any, tmp_path: Path) -> None:
    frame, edges = bag
    data = from_tables(frame, edges, **ROLES)
    assert data.x.is_sparse
    assert data.x.is_coalesced()
    assert data.x.dtype == torch.float32
    columns = [name for name in frame if name in data.feature_names]
    counts = frame[columns].to_numpy(float)
    indicators = counts.max(0) == 1
    expected = counts / np.where(indicators, 1, counts.std(0))
    assert_allclose(data.x.to_dense(), expected, rtol=1e-5)
    frame.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    again = from_tables(tmp_path / "nodes.csv", tmp_path / "edges.csv", **ROLES)
    assert_array_equal(again.x.to_dense(), data.x.to_dense())
    new = from_tables(frame[::-1], edges, encoding=data.encoding)
    assert_array_equal(new.x.to_dense().flip(0), data.x.to_dense())


def test_from_tables_of_other_tables_is_dense(bag: Any) -> None:
    frame, edges = bag
    assert not from_tables(frame, edges, features=["w0", "w1"], **ROLES).x.is_sparse
    shifted = frame.assign(**{name: frame[name] + 1 for name in frame if name.startswith("w")})
    assert not from_tables(shifted, edges, **ROLES).x.is_sparse


@pytest.mark.parametrize(
    "backbone",
    ["mlp", "gcn", "gat", "sgc", "appnp", "logistic", "trees", "forest", LogisticRegression()],
)
def test_backbones_read_sparse_features_as_dense_ones(bag: Any, backbone: Any) -> None:
    data = from_tables(*bag, **ROLES)
    settings: Any = {"backbone": backbone, "epochs": 4}
    one, other = (FairClassifier(FMP(), **settings) for _ in range(2))
    one.fit(data, bootstrap=0)
    other.fit(dense(data), bootstrap=0)
    if backbone == "logistic":  # sparse features are scaled and not shifted: the same model
        assert abs(one.run_.test.accuracy - other.run_.test.accuracy) < 0.03
    else:
        assert_allclose(one.predict_proba(data), other.predict_proba(dense(data)), atol=2e-3)
    assert_allclose(one.predict_proba(data), one.predict_proba(dense(data)), atol=2e-3)


def test_dropout_and_classifiers_that_need_dense_features(bag: Any) -> None:
    data = from_tables(*bag, **ROLES)
    FairClassifier(FMP(), backbone="mlp", dropout=0.5, epochs=3).fit(data, bootstrap=0)
    model = FairClassifier(FMP(), backbone=GaussianNB())
    assert model.fit(data, bootstrap=0).run_.test.accuracy > 0.5


def test_auto_chooses_among_models_of_sparse_features(bag: Any, tmp_path: Path) -> None:
    data = from_tables(*bag, **ROLES)
    model = FairClassifier(FMP(lambda_s="learned"), epochs=5)
    run = model.fit(data, bootstrap=0).run_
    assert {trial.reads for trial in run.tried if trial.accuracy} == {
        "features",
        "neighbourhood",
        "edges",
    }
    loaded = FairClassifier.load(model.save(tmp_path / "model"))
    assert_allclose(loaded.predict_proba(data), model.predict_proba(data), atol=1e-6)
    order = torch.randperm(len(data.feature_names), generator=torch.Generator().manual_seed(0))
    mixed = data.clone()
    mixed.x = data.x.index_select(1, order)
    mixed.feature_names = [data.feature_names[k] for k in order]
    assert_allclose(model.predict_proba(mixed), model.predict_proba(data), atol=1e-5)


def test_join_nodes_with_sparse_features(bag: Any, tmp_path: Path) -> None:
    frame, edges = bag
    data = from_tables(frame, edges, **ROLES)
    path = save_graph(data, tmp_path)
    new = frame[:5].assign(id=range(1000, 1005))
    joined, fresh = join_nodes(path, new, None, encoding=data.encoding)
    assert int(fresh.sum()) == 5
    assert joined.x.is_sparse
    assert_array_equal(joined.x.to_dense()[5:], data.x.to_dense())
    assert_array_equal(joined.x.to_dense()[:5], data.x.to_dense()[:5])


def test_audit_of_sparse_features_equals_that_of_dense_ones(
    bag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = from_tables(*bag, **ROLES)
    halves: list[Any] = [measure._halves(data.sens, [0, 0])]
    monkeypatch.setattr(measure, "_halves", lambda *_: halves[0])  # the same in both
    one, other = audit(data, steps=2), audit(dense(data), steps=2)
    assert one.leaks == other.leaks
    assert one.constant_features == other.constant_features
    for a, b in zip((*one.row, *one.symmetric), (*other.row, *other.symmetric), strict=True):
        assert a.gap == pytest.approx(b.gap, rel=1e-4)
        assert a.chance == pytest.approx(b.chance, rel=0.05)  # estimated from random signs
        assert a.separation == pytest.approx(b.separation, abs=0.02)
        assert a.predictability == pytest.approx(b.predictability, abs=0.02)


def test_tensors_and_scipy_matrices_are_converted_exactly() -> None:
    x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    assert_array_equal(to_scipy(x).toarray(), x)
    assert_array_equal(to_scipy(x.to_sparse()).toarray(), x)
    assert_array_equal(from_scipy(to_scipy(x)).to_dense(), x)


def test_check_refuses_wrong_sparse_features(bag: Any) -> None:
    data = from_tables(*bag, **ROLES)
    broken = data.clone()
    values = data.x.values().clone()
    values[3] = torch.nan
    broken.x = torch.sparse_coo_tensor(data.x.indices(), values, data.x.shape).coalesce()
    node, column = data.x.indices()[:, 3].tolist()
    with pytest.raises(InputError, match=f"node {node}, column {column} 'w"):
        FairClassifier(FMP(), backbone="mlp").fit(broken)
    with warnings.catch_warnings(action="ignore"):  # the format is "in beta state"
        broken.x = data.x.to_sparse_csr()
    with pytest.raises(InputError, match="to_sparse_coo"):
        FairClassifier(FMP(), backbone="mlp").fit(broken)
