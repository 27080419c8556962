"""Thresholds by group: no others are more accurate, and batches have one rate."""

from __future__ import annotations

import warnings
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fairmp import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing.thresholds import GroupThresholds


def sample(n: int, groups: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Log-odds that are calibrated, and higher in higher groups."""
    rng = np.random.default_rng(seed)
    sens = rng.integers(0, groups, n)
    odds = rng.normal(size=n) * 1.5 + 0.8 * sens - 0.3
    y = rng.random(n) < 1 / (1 + np.exp(-odds))
    scores = np.stack([-odds / 2, odds / 2], 1)
    return torch.tensor(scores).float(), torch.tensor(y).long(), torch.tensor(sens)


def gap(pred: Tensor, sens: Tensor) -> float:
    rates = [float(pred[sens == g].double().mean()) for g in range(int(sens.max()) + 1)]
    return max(rates) - min(rates)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    groups = draw(st.integers(2, 3))
    n = draw(st.integers(groups, 14))
    integers = lambda low, high: draw(st.lists(st.integers(low, high), min_size=n, max_size=n))  # noqa: E731
    sens = [*range(groups), *integers(-1, groups - 1)[groups:]]
    odds = torch.tensor(integers(-2, 2)).float()
    y = [1, *integers(-1, 1)[1:]]
    target = draw(st.sampled_from([0.0, 0.1, 0.34, 1.0]))
    scores = torch.stack([torch.zeros(n), odds], 1)
    return scores, torch.tensor(y), torch.tensor(sens), target


@settings(deadline=None, max_examples=100)
@given(cases())
def test_fit_finds_the_most_accurate_thresholds(case: tuple[Tensor, Tensor, Tensor, float]) -> None:
    scores, y, sens, target = case
    groups = int(sens.max()) + 1
    sizes = sorted(int((sens == g).sum()) for g in range(groups))
    allowed = max(target, (1 / sizes[0] + 1 / sizes[1]) / 2) + 1e-9
    right = lambda pred: int(((pred == y) & (y >= 0) & (sens >= 0)).sum())  # noqa: E731
    best = -1
    for cut in product(np.arange(-2.5, 3.0), repeat=groups):
        pred = (scores[:, 1] > torch.tensor(cut)[sens.clamp_min(0)]).long()
        if gap(pred, sens) <= allowed:
            best = max(best, right(pred))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best thresholds may select nobody
        fitted = GroupThresholds(target, ties="keep", kind="logits").fit(
            scores, y, sensitive_features=sens
        )
    mine = fitted.predict(scores, sensitive_features=sens)
    assert gap(mine, sens) <= allowed
    assert right(mine) == best


def test_fit_is_as_accurate_as_fairlearn() -> None:
    post = pytest.importorskip("fairlearn.postprocessing")
    base = pytest.importorskip("sklearn.base")

    class Score(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc]
        def fit(self, x: np.ndarray, y: np.ndarray) -> Score:
            self.fitted_ = True
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x[:, 0]

    for groups, seed in ((2, 0), (3, 1)):
        scores, y, sens = sample(4000, groups, seed)
        x, label = scores.double().softmax(1)[:, 1:].numpy(), y.numpy()
        theirs = post.ThresholdOptimizer(
            estimator=Score(),
            constraints="demographic_parity",
            objective="accuracy_score",
            grid_size=1000,
            predict_method="predict",
        ).fit(x, label, sensitive_features=sens.numpy())
        p = theirs._pmf_predict(x, sensitive_features=sens.numpy())[:, 1]
        accuracy = float((p * label + (1 - p) * (1 - label)).mean())
        mine = (
            GroupThresholds()
            .fit(scores, y, sensitive_features=sens)
            .predict(scores, sensitive_features=sens)
        )
        assert gap(mine, sens) < 1e-3
        assert float((mine == y).double().mean()) == pytest.approx(accuracy, abs=0.005)
        assert gap((scores[:, 1] > 0).long(), sens) > 0.15


@pytest.mark.parametrize("groups", [2, 4])
def test_solve_gives_groups_one_rate(groups: int) -> None:
    scores, _, sens = sample(999, groups)
    plain = float((scores[:, 1] > 0).double().mean())
    solved = GroupThresholds().solve(scores, sensitive_features=sens)
    assert solved.rule_.rate == pytest.approx(plain, abs=0.005)
    smallest = int(torch.bincount(sens).min())
    assert gap(solved.predict(scores, sensitive_features=sens), sens) <= 1 / smallest
    for rate in (0.0, 0.2, 1.0):
        pred = (
            GroupThresholds()
            .solve(scores, sensitive_features=sens, rate=rate)
            .predict(scores, sensitive_features=sens)
        )
        for g in range(groups):
            mine = pred[sens == g].double()
            assert float(mine.mean()) == pytest.approx(rate, abs=0.5 / len(mine) + 1e-9)


def test_solve_moves_rates_no_further_than_the_target_asks() -> None:
    scores, _, sens = sample(2000, 2)
    plain = (scores[:, 1] > 0).long()
    whole = gap(plain, sens)
    half = GroupThresholds(whole / 2).solve(scores, sensitive_features=sens)
    assert gap(half.predict(scores, sensitive_features=sens), sens) == pytest.approx(
        whole / 2, abs=2e-3
    )
    loose = GroupThresholds(1.0).solve(scores, sensitive_features=sens)
    assert not loose.rule_.thresholds.any()


def test_solve_uses_the_rate_of_fit() -> None:
    scores, y, sens = sample(3000, 2)
    with pytest.warns(UserWarning, match="select"):
        fitted = GroupThresholds().fit(scores, 1 - y, sensitive_features=sens)
    before = fitted.rule_.thresholds.copy()
    other, _, group = sample(1500, 2, seed=5)
    solved = fitted.solve(other, sensitive_features=group)
    assert solved.rule_.rate == pytest.approx(fitted.rule_.rate, abs=2e-3)
    assert np.array_equal(fitted.rule_.thresholds, before)
    # Upside-down labels: the best constant beats every cut, unlike the plain model's.
    assert fitted.rule_.rate in (0.0, 1.0)
    assert 0.2 < GroupThresholds().solve(other, sensitive_features=group).rule_.rate < 0.8


def test_predict_on_new_nodes_leaves_the_gap_of_sampling() -> None:
    scores, y, sens = sample(20_000, 2)
    fitted = GroupThresholds().fit(scores[:10_000], y[:10_000], sensitive_features=sens[:10_000])
    new_nodes = slice(10_000, None)
    after = evaluate(
        y[new_nodes],
        fitted.shift(scores[new_nodes], sensitive_features=sens[new_nodes]),
        sensitive_features=sens[new_nodes],
    )
    before = evaluate(y[new_nodes], scores[new_nodes], sensitive_features=sens[new_nodes])
    assert before.dp > 0.15
    assert after.dp < 0.03
    shifted = fitted.shift(scores[new_nodes], sensitive_features=sens[new_nodes])
    assert torch.equal(
        fitted.predict(scores[new_nodes], sensitive_features=sens[new_nodes]), shifted.argmax(1)
    )


def test_probabilities_decide_as_logits_do() -> None:
    scores, y, sens = sample(500, 2)
    proba = scores.double().softmax(1)
    by_logits = GroupThresholds(0.05).fit(scores, y, sensitive_features=sens)
    by_proba = GroupThresholds(0.05).fit(proba, y, sensitive_features=sens)
    np.testing.assert_allclose(by_logits.rule_.thresholds, by_proba.rule_.thresholds)
    assert torch.equal(
        by_logits.predict(scores, sensitive_features=sens),
        by_proba.predict(proba, sensitive_features=sens),
    )
    certain = torch.tensor([[0.0, 1.0], [1.0, 0.0]] * 2)
    fitted = GroupThresholds(kind="probabilities").fit(
        certain, [1, 0, 1, 0], sensitive_features=[0, 0, 1, 1]
    )
    pred = fitted.predict(certain, sensitive_features=[0, 0, 1, 1])
    assert pred.tolist() == [1, 0, 1, 0]


def test_shift_keeps_nodes_of_unknown_group() -> None:
    scores, y, sens = sample(400, 2)
    hidden = torch.where(torch.arange(400) % 5 == 0, -1, sens)
    fitted = GroupThresholds().fit(scores, y, sensitive_features=hidden)
    assert fitted.rule_.thresholds.any()
    shifted = fitted.shift(scores, sensitive_features=hidden)
    odds = (scores[:, 1] - scores[:, 0]).double()
    assert torch.equal(shifted[hidden < 0, 1], odds[hidden < 0])
    flipped = torch.where(hidden < 0, 1 - y, y)
    other = GroupThresholds().fit(scores, flipped, sensitive_features=hidden)
    assert np.array_equal(other.rule_.thresholds, fitted.rule_.thresholds)


@pytest.mark.parametrize("ties", ["random", "keep"])
def test_predict_splits_or_keeps_ties(ties: str) -> None:
    scores, _, sens = sample(2000, 2)
    scores = scores.sign() * 0.5 + (scores.abs() > 1) * scores.sign()
    fitted = GroupThresholds(ties=ties, kind="logits").solve(
        scores, sensitive_features=sens, rate=0.3
    )
    pred = fitted.predict(scores, sensitive_features=sens)
    assert torch.equal(pred, fitted.predict(scores, sensitive_features=sens))
    if ties == "keep":
        assert not fitted.rule_.tie_rates.any()
        assert gap(pred, sens) > 0.02
        return
    assert gap(pred, sens) <= 1 / int(torch.bincount(sens).min())
    assert fitted.rule_.tie_rates.any()
    other = GroupThresholds(seed=1, kind="logits").solve(scores, sensitive_features=sens, rate=0.3)
    assert not torch.equal(pred, other.predict(scores, sensitive_features=sens))
    assert float(other.predict(scores, sensitive_features=sens).double().mean()) == pytest.approx(
        0.3, abs=1e-3
    )


def test_predict_draws_single_rows_by_their_share() -> None:
    scores = torch.tensor([[0.0, 1.0]] * 10 + [[0.0, -1.0]] * 10)
    sens = torch.tensor([0] * 10 + [1] * 10)
    rule = GroupThresholds(kind="logits").solve(scores, sensitive_features=sens, rate=0.3)
    assert rule.rule_.tie_rates.tolist() == pytest.approx([0.3, 0.3])
    selected = 0
    for seed in range(400):
        rule.seed = seed
        selected += int(rule.predict(scores[:1], sensitive_features=sens[:1]))
    assert selected / 400 == pytest.approx(0.3, abs=0.07)


def test_fit_keeps_ties_together() -> None:
    scores = torch.zeros(10, 2)
    scores[:5, 1] = 1.0
    sens = torch.tensor([0] * 5 + [1] * 5)
    y = torch.tensor([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])
    with pytest.warns(UserWarning, match="select no node"):
        fitted = GroupThresholds(ties="keep", kind="logits").fit(scores, y, sensitive_features=sens)
    # All or none: 6 right with none, 4 with all.
    assert fitted.predict(scores, sensitive_features=sens).tolist() == [0] * 10
    near = torch.tensor([1.0, np.nextafter(1.0, 2.0), -3.0, 4.0], dtype=torch.float64)
    close = torch.stack([torch.zeros(4, dtype=torch.float64), near], 1)
    pred = GroupThresholds().solve(close, sensitive_features=torch.tensor([0, 0, 1, 1]), rate=0.5)
    assert pred.predict(close, sensitive_features=torch.tensor([0, 0, 1, 1])).tolist() == [
        0,
        1,
        0,
        1,
    ]


def test_wrong_inputs_are_named() -> None:
    scores, y, sens = sample(50, 2)
    with pytest.raises(InputError, match=r"target: 1\.5"):
        GroupThresholds(1.5).fit(scores, y, sensitive_features=sens)
    with pytest.raises(InputError, match="ties: 'split'"):
        GroupThresholds(ties="split").fit(scores, y, sensitive_features=sens)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="call fit"):
        GroupThresholds().predict(scores, sensitive_features=sens)
    with pytest.raises(InputError, match="2 classes"):
        GroupThresholds(kind="logits").fit(torch.ones(50, 3), y, sensitive_features=sens)
    with pytest.raises(InputError, match="nan or infinite"):
        GroupThresholds().fit(scores * torch.nan, y, sensitive_features=sens)
    with pytest.raises(InputError, match=r"y: shape \(49,\)"):
        GroupThresholds().fit(scores, y[:-1], sensitive_features=sens)
    with pytest.raises(InputError, match="y: class 2"):
        GroupThresholds().fit(scores, y + 1, sensitive_features=sens)
    with pytest.raises(InputError, match="y: no node of known group"):
        GroupThresholds().fit(scores, torch.full((50,), -1), sensitive_features=sens)
    with pytest.raises(InputError, match=r"nodes by group are \[50\]"):
        GroupThresholds().fit(scores, y, sensitive_features=sens * 0)
    with pytest.raises(InputError, match="rate: 2"):
        GroupThresholds().solve(scores, sensitive_features=sens, rate=2.0)
    fitted = GroupThresholds().fit(scores, y, sensitive_features=sens)
    with pytest.raises(InputError, match="group 2 was not seen"):
        fitted.predict(scores, sensitive_features=sens + 1)


def test_scikit_learn_clones_and_sets_parameters() -> None:
    scores, y, sens = sample(200, 2)
    rule = GroupThresholds(0.05, ties="keep", seed=3, kind="logits")
    fitted = rule.fit(scores, y, sensitive_features=sens)
    assert fitted is rule
    check_is_fitted(fitted)
    other = clone(rule)
    assert other.get_params() == rule.get_params()
    assert not hasattr(other, "rule_")
    assert other.set_params(target=0.1).target == 0.1
