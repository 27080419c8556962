"""Corrections that never look at a label, against other solvers and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairlearn.metrics import equalized_odds_difference
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import softmax

from fairmp.groups import GroupOperator, group_operator, stack
from fairmp.metrics import equalized_odds
from fairmp.nn import functional as solvers
from fairmp.postprocessing import odds
from fairmp.postprocessing.predictions import attributes
from fairmp.postprocessing.solver import debias
from tests.postprocessing.test_criteria import measures


def problem(
    seed: int = 0, n: int = 1500, classes: int = 3, groups: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of a calibrated model (labels are drawn from them), labels and groups."""
    rng = np.random.default_rng(seed)
    sens = rng.integers(groups, size=n)
    z = rng.normal(size=(n, classes)) + 0.8 * rng.normal(size=(groups, classes))[sens]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1)
    return np.log(p), y, sens


def divergence(z: np.ndarray, corrected: np.ndarray) -> float:
    p, q = (torch.from_numpy(x).softmax(1) for x in (z, corrected))
    return float((q * (q.log() - p.log())).sum(1).mean())


@pytest.mark.parametrize("target", [0.0, 0.03])
def test_without_labels_it_is_the_projection(target: float) -> None:
    z, y, sens = problem()
    asked = measures(["demographic_parity"], target, z.shape, sens, torch.from_numpy(y))[0]
    member = attributes(sens, len(y))[0].membership.numpy()
    p, everyone = np.exp(z), np.ones(len(y), dtype=bool)
    logits, _, _ = odds.correct(asked, False, z, p, member, everyone)
    expected = np.log(debias(p, sens, target=target))
    np.testing.assert_allclose(softmax(logits, axis=1), np.exp(expected), atol=2e-4)


def test_no_predictions_that_know_the_labels_are_much_closer() -> None:
    z, y, sens = problem(n=6000)
    corrected = np.log(debias(np.exp(z), sens, criterion="equalized_odds", labels=y, target=0.0))
    # Were labels known of everyone, this would be the projection onto parity within each class.
    labels, groups = torch.from_numpy(y), torch.from_numpy(sens)
    parts = []
    for c in range(3):
        delta = group_operator(groups, labels == c, dtype=torch.float64)
        inside = delta.membership * (labels == c).unsqueeze(1)
        parts.append(GroupOperator(inside, torch.ones(6000, dtype=torch.bool), delta.rows))
    bound = solvers.projection(
        torch.from_numpy(z), None, stack(*parts), K=1, lambda_s=0.0, target=0.0
    ).f.numpy()
    lower, reached = divergence(z, bound), divergence(z, corrected)
    assert 0 < lower <= reached
    assert reached < 1.5 * lower


def test_slopes_are_derivatives() -> None:
    z, y, sens = problem(n=80)
    asked = measures(
        ["demographic_parity", "equal_opportunity"], 0.01, z.shape, sens, torch.from_numpy(y)
    )[0]
    member = attributes(sens, 80)[0].membership.numpy()
    everyone = np.ones(80, dtype=bool)
    phi = odds._outer(member, np.exp(z))
    inner = odds._Problem(z, member, phi, everyone, asked, everyone)
    rng = np.random.default_rng(0)
    x = 0.3 * rng.normal(size=inner.coordinates.shape[1])
    slopes = inner._slopes(inner._at(x)[1])
    for k in range(len(x)):
        step = 1e-6 * (np.arange(len(x)) == k)
        above, below = (inner._gaps(inner._at(x + s)[1])[inner.concerned] for s in (step, -step))
        np.testing.assert_allclose(slopes[:, k], (above - below) / 2e-6, atol=1e-7)
    # Whitened: near no correction the divergence is half the squared length.
    small = 1e-3 * x
    length = 0.5 * (small**2).sum()
    assert inner.divergence(inner._at(small)[1]) == pytest.approx(length, rel=0.1)


@pytest.mark.parametrize("names", [["equalized_odds"], ["demographic_parity", "equalized_odds"]])
def test_every_start_arrives_or_mixing_does(names: list[str]) -> None:
    z, y, sens = problem(classes=2, groups=2)
    asked = measures(names, 0.01, z.shape, sens, torch.from_numpy(y))[0]
    member = attributes(sens, len(y))[0].membership.numpy()
    everyone = np.ones(len(y), dtype=bool)
    phi = odds._outer(member, np.exp(z))
    inner = odds._Problem(z, member, phi, everyone, asked, everyone)
    constant = inner._at(inner._constant())[1]
    assert np.ptp(constant, axis=1).max() < 1e-9
    assert inner.excess(constant) == 0.0
    starts = (np.zeros(inner.coordinates.shape[1]), inner._constant())
    found = [inner._at(inner._descend(start))[1] for start in starts]
    assert all(inner.excess(q) <= odds.TOLERANCE for q in found)
    values = [inner.divergence(q) for q in found]
    assert values[0] == pytest.approx(values[1], rel=1e-3)
    _, mixed, excess = inner.randomise()
    assert excess <= odds.TOLERANCE
    np.testing.assert_allclose(mixed.sum(0), 1)
    assert inner.divergence(mixed) >= values[0] - 1e-6


def test_decisions_by_another_library() -> None:
    z, y, sens = problem(n=4000, classes=2, groups=2, seed=3)
    corrected = debias(z, sens, criterion="equalized_odds", labels=y, temperature=0.1).argmax(1)
    theirs = equalized_odds_difference(y, corrected, sensitive_features=sens)
    assert theirs == pytest.approx(equalized_odds(corrected, y, sens))
    before = equalized_odds_difference(y, z.argmax(1), sensitive_features=sens)
    assert theirs < 0.3 * before


def test_many_numbers_are_mixed_at_once() -> None:
    z, y, sens = problem(n=6000, classes=8, groups=8)
    with pytest.warns(UserWarning, match="mixed between classes"):
        corrected = debias(np.exp(z), sens, criterion="equalized_odds", labels=y, target=0.05)
    for label in range(8):
        inside = y == label
        rates = [corrected[inside & (sens == g)].mean(0) for g in range(8)]
        assert np.ptp(rates, axis=0).max() <= 0.0501


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(8, 40),
    classes=st.integers(2, 3),
    groups=st.integers(2, 3),
    scale=st.sampled_from([0.1, 1.0, 10.0, 300.0]),
    target=st.sampled_from([0.0, 0.05, 0.3]),
    names=st.sampled_from([["eo"], ["odds"], ["dp", "eo"], ["dp", "odds"]]),
)
@pytest.mark.filterwarnings("ignore:.* labelled|no shift")
def test_any_predictions_are_corrected(
    seed: int, n: int, classes: int, groups: int, scale: float, target: float, names: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, classes))
    sens = np.r_[np.arange(2 * groups) % groups, rng.integers(-1, groups, n - 2 * groups)]
    y = rng.integers(-1, classes, n)
    # Some class must be labelled in two groups for anything to be measured.
    spoken = (1,) if classes == 2 and "eo" in names else range(classes)
    assume(any(len(np.unique(sens[(y == c) & (sens >= 0)])) > 1 for c in spoken))
    corrected = debias(z, sens, criterion=names, labels=y, target=target)
    asked = measures(names, target, z.shape, sens, torch.from_numpy(y))[0]
    q = torch.from_numpy(corrected).softmax(1)
    assert max(one.gap(q) for one in asked) <= target + 1e-4
    np.testing.assert_array_equal(corrected[sens < 0], z[sens < 0])
