"""Corrections that never look at a label, against other solvers and finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from fairlearn.metrics import equalized_odds_difference
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import softmax

from fairmp.groups import GroupOperator, group_operator, stack
from fairmp.metrics import equalized_odds
from fairmp.nn.dual import shift_groups, solve_dual
from fairmp.postprocessing import odds
from fairmp.postprocessing.criteria import Measure
from fairmp.postprocessing.predictions import attributes
from fairmp.postprocessing.solver import debias
from tests.postprocessing.test_criteria import measures

fair = partial(debias, on="probabilities")


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


def family_and_gaps(
    asked: Sequence[Measure], z: np.ndarray, sens: np.ndarray
) -> tuple[odds.AffineFamily, odds.Gaps]:
    membership, everyone = attributes(sens, len(z))[0].membership.numpy(), np.ones(len(z))
    nodes = odds.Nodes.read(z, membership, everyone, 1.0, by_prediction=True)
    return odds.AffineFamily(nodes), odds.Gaps.read(asked, everyone > 0, z.shape[1])


def divergence(z: np.ndarray, corrected: np.ndarray) -> float:
    p, q = (torch.from_numpy(x).softmax(1) for x in (z, corrected))
    return float((q * (q.log() - p.log())).sum(1).mean())


@pytest.mark.parametrize("target", [0.0, 0.03])
def test_find_correction_without_labels_is_the_projection(target: float) -> None:
    z, y, sens = problem()
    asked = measures(["demographic_parity"], target, z.shape, sens, torch.from_numpy(y))[0]
    membership = attributes(sens, len(y))[0].membership.numpy()
    correction = odds.find_correction(asked, z, membership, np.ones(len(y)), temperature=1.0)
    logits = correction.apply(z, membership).logits
    expected = debias(np.exp(z), sens, target=target, on="probabilities")
    np.testing.assert_allclose(softmax(logits, axis=1), expected, atol=2e-4)


def test_predictions_that_read_labels_are_not_much_closer() -> None:
    z, y, sens = problem(n=6000)
    corrected = np.log(fair(np.exp(z), sens, criterion="equalized_odds", y=y, target=0.0))
    # Were labels known of everyone, this would be the projection onto parity within each class.
    labels, groups = torch.from_numpy(y), torch.from_numpy(sens)
    parts = []
    for c in range(3):
        delta = group_operator(groups, labels == c, dtype=torch.float64)
        inside = delta.membership * (labels == c).unsqueeze(1)
        parts.append(GroupOperator(inside, torch.ones(6000, dtype=torch.bool), delta.rows))
    x = torch.from_numpy(z)
    bound = shift_groups(x, solve_dual(x, stack(*parts), 0.0, 1.0)).numpy()
    lower, reached = divergence(z, bound), divergence(z, corrected)
    assert 0 < lower <= reached
    assert reached < 1.5 * lower


def test_gap_slopes_are_derivatives() -> None:
    z, y, sens = problem(n=80)
    asked = measures(
        ["demographic_parity", "equal_opportunity"], 0.01, z.shape, sens, torch.from_numpy(y)
    )[0]
    family, gaps = family_and_gaps(asked, z, sens)
    rng = np.random.default_rng(0)
    x = 0.3 * rng.normal(size=family.coordinates.shape[1])
    slopes = family.gap_slopes(family.at(x), gaps, family.inputs_of(gaps.measured))
    for k in range(len(x)):
        step = 1e-6 * (np.arange(len(x)) == k)
        above, below = (gaps.of(family.at(x + s).q)[gaps.concerned] for s in (step, -step))
        np.testing.assert_allclose(slopes[:, k], (above - below) / 2e-6, atol=1e-7)
    # Whitened: near no correction the divergence is half the squared length.
    small = family.at(1e-3 * x)
    length = 0.5 * ((1e-3 * x) ** 2).sum()
    assert family.divergence(small)[0] == pytest.approx(length, rel=0.1)
    assert family.divergence(small)[0] == pytest.approx(divergence(z, np.log(small.q.T)))


@pytest.mark.parametrize("names", [["equalized_odds"], ["demographic_parity", "equalized_odds"]])
def test_every_start_and_transitions_meet_the_target(names: list[str]) -> None:
    z, y, sens = problem(classes=2, groups=2)
    asked = measures(names, 0.01, z.shape, sens, torch.from_numpy(y))[0]
    family, gaps = family_and_gaps(asked, z, sens)
    constant = family.at(family.constant()).q
    assert np.ptp(constant, axis=1).max() < 1e-9
    assert gaps.excess(constant) == 0.0
    starts = (np.zeros(family.coordinates.shape[1]), family.constant())
    solutions = [family.at(odds._descend(family, gaps, start)).q for start in starts]
    assert all(gaps.excess(q) <= odds.TOLERANCE for q in solutions)
    values = [divergence(z, np.log(q.T)) for q in solutions]
    assert values[0] == pytest.approx(values[1], rel=1e-3)
    transitions = odds.least_transitions(family.nodes, gaps)
    assert transitions is not None
    np.testing.assert_allclose(transitions.sum(2), 1)
    mixed = odds.mix(family.nodes, transitions)
    assert gaps.excess(mixed) <= odds.TOLERANCE
    assert divergence(z, np.log(mixed.T)) >= values[0] - 1e-6


def test_small_temperature_closes_decisions_as_fairlearn_measures() -> None:
    z, y, sens = problem(n=4000, classes=2, groups=2, seed=3)
    corrected = fair(z, sens, criterion="equalized_odds", y=y, temperature=0.1).argmax(1)
    theirs = equalized_odds_difference(y, corrected, sensitive_features=sens)
    assert theirs == pytest.approx(equalized_odds(corrected, y, sens))
    before = equalized_odds_difference(y, z.argmax(1), sensitive_features=sens)
    assert theirs < 0.3 * before


def test_many_groups_and_classes_are_mixed() -> None:
    z, y, sens = problem(n=6000, classes=8, groups=8)
    with pytest.warns(UserWarning, match="mixed between classes"):
        corrected = fair(np.exp(z), sens, criterion="equalized_odds", y=y, target=0.05)
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
def test_any_predictions_meet_the_target(
    seed: int, n: int, classes: int, groups: int, scale: float, target: float, names: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, classes))
    sens = np.r_[np.arange(2 * groups) % groups, rng.integers(-1, groups, n - 2 * groups)]
    y = rng.integers(-1, classes, n)
    # Some class must be labelled in two groups for anything to be measured.
    spoken = (1,) if classes == 2 and "eo" in names else range(classes)
    assume(any(len(np.unique(sens[(y == c) & (sens >= 0)])) > 1 for c in spoken))
    corrected = fair(z, sens, criterion=names, y=y, target=target)
    asked = measures(names, target, z.shape, sens, torch.from_numpy(y))[0]
    q = torch.from_numpy(corrected).softmax(1)
    assert max(measure.gap(q) for measure in asked) <= target + 1e-4
    np.testing.assert_array_equal(corrected[sens < 0], z[sens < 0])
