"""Columns that give the label or the group away."""

from __future__ import annotations

import os
from dataclasses import astuple
from itertools import product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import balanced_accuracy_score
from torch_geometric.data import Data

from fairmp.analysis.audits import audit
from fairmp.analysis.audits.facts import describe
from fairmp.analysis.audits.leaks import best_thresholds
from fairmp.datasets import social_network
from fairmp.graph import to_scipy


@pytest.mark.parametrize("seed", range(20))
def test_best_threshold_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    x = rng.integers(0, rng.integers(2, 12), (n, 3)).astype(float)
    positive = rng.random(n) < rng.random()
    positive[:2] = [True, False]
    for column, best in zip(x.T, best_thresholds(x, positive), strict=True):
        assert best.smallest == column.min()
        rules = [(column > t) == up for t, up in product(np.unique(column)[:-1], (True, False))]
        scores = [balanced_accuracy_score(positive, rule) for rule in rules]
        assert best.balanced == pytest.approx(max([*scores, 0.5]))
        if rules:
            rule = (column > best.value) == best.above
            assert balanced_accuracy_score(positive, rule) == pytest.approx(best.balanced)
            assert best.agreement == pytest.approx((rule == positive).mean())


def test_thresholds_of_sparse_columns_are_those_of_dense_ones() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 20)) * (rng.random((50, 20)) < 0.2)
    x[:, 0], x[:, 1] = 0, 1.0
    positive = rng.random(50) < 0.4
    dense = [astuple(best) for best in best_thresholds(x, positive)]
    sparse = [astuple(best) for best in best_thresholds(to_scipy(torch.tensor(x)), positive)]
    assert_allclose(dense, sparse)


def leaking() -> Data:
    data = social_network(n=600, average_degree=6)
    rng = np.random.default_rng(0)
    days = np.where(data.y.numpy() == 1, rng.integers(1, 400, 600), 0)
    days[:6] = np.where(days[:6] > 0, 0, 200)
    group = data.sens.numpy() * 3.0 + 1
    extra = torch.from_numpy(np.stack([days, group], 1)).float()
    data.x = torch.cat([data.x, extra], 1)
    data.feature_names = [*data.feature_names, "days", "code"]
    return data


def test_leaks_are_named_in_the_audit_and_in_the_report() -> None:
    data = leaking()
    result = audit(data, steps=1)
    assert [(leak.column, leak.of) for leak in result.leaks] == [
        ("code", "group"),
        ("days", "label"),
    ]
    group, label = result.leaks
    assert (group.agreement, group.rule) == (1.0, "code > 1 (its smallest value)")
    assert label.agreement == pytest.approx(1 - 6 / 600)
    assert label.rule == "days > 0 (its smallest value)"
    assert "'days' gives the label away" in str(result).replace("\n  ", " ")
    assert result.to_dict()["leaks"][1]["column"] == "days"
    assert any("'code' gives the group away" in line for line in describe(data)["verdict"])


def test_ordinary_columns_and_rare_classes_are_not_leaks() -> None:
    data = social_network(n=400, average_degree=6)
    assert audit(data, steps=1).leaks == ()
    data.y = torch.full((400,), 0)
    data.y[0] = 1  # one node can be singled out by chance
    data.x[0, 0] = 1e6
    assert audit(data, steps=1).leaks == ()


@pytest.mark.skipif("FAIRMP_DATA" not in os.environ, reason="FAIRMP_DATA is not set")
def test_bail_leaks_its_label() -> None:
    from fairmp.datasets import Bail

    data = Bail()[0]
    (leak,) = [line for line in describe(data)["verdict"] if "label" in line]
    assert "'TIME'" in leak
    assert "99.4 %" in leak
