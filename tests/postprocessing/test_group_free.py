"""Corrections that read nobody's group."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import Debiaser, InputError
from fairmp.postprocessing.group_free import group_probabilities

Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rows(seed: int, n: int = 3000, groups: int = 2) -> Rows:
    """Calibrated probabilities, labels, features that tell the group, and groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    features = np.c_[rng.normal(size=n) + 1.5 * group, rng.normal(size=n)]
    p = 1 / (1 + np.exp(-rng.normal(size=n) - 0.7 * features[:, 0] + 0.7 + features[:, 1]))
    return p, (rng.random(n) < p) * 1, features, group


def gap(p: np.ndarray, group: np.ndarray, where: np.ndarray) -> float:
    rates = [(p[where & (group == g)] > 0.5).mean() for g in np.unique(group)]
    return float(np.ptp(rates))


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
def test_gap_of_true_groups_closes_on_fitting_and_new_rows(criterion: str, groups: int) -> None:
    p, y, features, group = rows(0, groups=groups)
    debiaser = Debiaser(criterion, 0.02, group_free=True)
    debiaser.fit(p, y, sensitive_features=group, features=features)
    for seed, limit in ((0, 0.041), (1, 0.1)):
        p, y, features, group = rows(seed, groups=groups)
        where = np.ones(len(y), dtype=bool) if criterion == "demographic_parity" else y == 1
        assert gap(p, group, where) > 0.15
        fair = debiaser.transform(p, features=features)
        assert gap(fair, group, where) <= limit


def test_predictions_do_not_depend_on_the_sensitive_column(tmp_path: Path) -> None:
    p, y, features, group = rows(2)
    debiaser = Debiaser(group_free=True).fit(p, y, sensitive_features=group, features=features)
    p, _, features, group = rows(3)
    without = debiaser.transform(p, features=features)
    shuffled = np.random.default_rng(0).permutation(group)
    for column in (group, shuffled):
        again = debiaser.transform(p, sensitive_features=column, features=features)
        assert np.array_equal(without, again)
    debiaser.save(tmp_path / "correction.json")
    loaded = Debiaser.load(tmp_path / "correction.json")
    assert np.array_equal(loaded.transform(p, features=features), without)


def test_own_group_does_not_enter_the_estimate() -> None:
    group = rows(4, 300)[3]
    noise = np.random.default_rng(0).normal(size=(300, 120))
    _, estimates = group_probabilities(noise, group, 2)
    assert (estimates.argmax(1) == group).mean() < 0.6  # in-sample it would be far above


@pytest.mark.parametrize("group_free", [True, False])
def test_promise_is_made_kept_and_saved(tmp_path: Path, group_free: bool) -> None:
    p, y, features, group = rows(5, 6000)
    names = np.array(["f", "m"])[group]
    debiaser = Debiaser(target=0.12, confidence=0.95, group_free=group_free)
    debiaser.fit(p, y, sensitive_features=names, features=features if group_free else None)
    assert debiaser.promise_ is not None
    assert debiaser.result_ is not None
    assert str(debiaser.promise_) in debiaser.result_.warnings
    expected = debiaser.result_.expected_gap(10**6)
    assert abs(expected.high - debiaser.promise_.bound) < (0.08 if group_free else 0.02)
    p, y, features, group = rows(6, 200_000)  # the promise is about the population
    names = np.array(["f", "m"])[group]
    fair = debiaser.transform(p, sensitive_features=names, features=features)
    assert gap(fair, names, np.ones(len(p), dtype=bool)) <= 0.12
    debiaser.save(tmp_path / "c.json")
    assert Debiaser.load(tmp_path / "c.json").promise_ == debiaser.promise_


def test_missing_or_wrong_inputs_are_refused() -> None:
    p, y, features, group = rows(7, 200)
    with pytest.raises(InputError, match="features: missing"):
        Debiaser(group_free=True).fit(p, y, sensitive_features=group)
    fitted = Debiaser(group_free=True, target=0.1)
    fitted.fit(p, y, sensitive_features=group, features=features)
    with pytest.raises(InputError, match="features: shape"):
        fitted.transform(p, features=features[:, :1])
    with pytest.raises(InputError, match="more of"):
        Debiaser(target=0.02, confidence=0.95).fit(p, y, sensitive_features=group)
    plain = Debiaser().fit(p, sensitive_features=group)
    with pytest.raises(InputError, match="sensitive_features: missing"):
        plain.transform(p)


def test_columns_of_a_table_are_found_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sex = rng.integers(2, size=600)
    table = pd.DataFrame({"age": rng.normal(size=600) + 2 * sex, "height": rng.normal(size=600)})
    scores, swapped = rng.random(600) * 0.7 + 0.3 * sex, table[["height", "age"]]
    fitted = Debiaser(target=0.02, group_free=True)
    fitted.fit(scores, sensitive_features=sex, features=table)
    fitted.save(tmp_path / "c.json")
    for corrector in (fitted, Debiaser.load(tmp_path / "c.json")):
        expected = corrector.transform(scores, features=table)
        np.testing.assert_array_equal(corrector.transform(scores, features=swapped), expected)
        by_position = corrector.transform(scores, features=table.to_numpy())
        np.testing.assert_array_equal(by_position, expected)
        with pytest.raises(InputError, match="reads age, height"):
            corrector.transform(scores, features=table.rename(columns={"age": "year"}))
    record = {**fitted.to_dict()["correction"], "feature_names": ["age"]}
    (tmp_path / "d.json").write_text(json.dumps({**fitted.to_dict(), "correction": record}))
    with pytest.raises(InputError, match="not a correction"):
        Debiaser.load(tmp_path / "d.json")
