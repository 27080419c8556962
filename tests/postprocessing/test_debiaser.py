"""A correction learned on one table and applied to another."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fairmp import InputError, debias
from fairmp.metrics import (
    demographic_parity,
    equal_opportunity,
    false_positive_rate_parity,
)
from fairmp.nn.decisions import On
from fairmp.postprocessing.debiaser import Debiaser
from tests.fuzz.corrections import debiaser_case

Table = tuple[np.ndarray, np.ndarray, np.ndarray]


def table(seed: int, n: int = 4000) -> Table:
    """Calibrated probabilities of class 1 that favour men, labels and groups as text."""
    rng = np.random.default_rng(seed)
    sex = np.where(rng.random(n) < 0.4, "f", "m")
    p = 1 / (1 + np.exp(-1.5 * rng.normal(size=n) - 0.9 * (sex == "m") + 0.3))
    return p, np.where(rng.random(n) < p, "yes", "no"), sex


def gap(p: np.ndarray, sex: np.ndarray, where: np.ndarray | None = None) -> float:
    inside = np.ones(len(p), dtype=bool) if where is None else where
    return abs(float(p[inside & (sex == "m")].mean() - p[inside & (sex == "f")].mean()))


@pytest.mark.parametrize("name", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_transform_equals_debias_and_carries_over(name: str) -> None:
    p, y, sex = table(0)
    corrector = Debiaser(name, target=0.01, on="probabilities")
    fair = corrector.fit_transform(p, y, sensitive_features=sex)
    expected = debias(p, sex, criterion=name, target=0.01, y=y, on="probabilities")
    np.testing.assert_allclose(fair, expected, atol=1e-6)
    new, y2, sex2 = table(1)
    moved = corrector.transform(new, sensitive_features=sex2)
    inside = None if name == "demographic_parity" else y2 == "yes"
    assert gap(new, sex2, inside) > 0.05
    assert gap(moved, sex2, inside) < 0.035
    # Row by row: a part of the table gets the same numbers.
    part = corrector.transform(new[:7], sensitive_features=sex2[:7])
    np.testing.assert_allclose(part, moved[:7])


def test_scikit_learn_clones_and_sets_parameters() -> None:
    p, y, sex = table(0, 600)
    corrector = Debiaser("true_positive_rate_parity", 0.02, seed=3)
    assert corrector.get_params()["criterion"] == "true_positive_rate_parity"
    other = clone(corrector)
    assert other.get_params() == corrector.get_params()
    assert other.set_params(target=0.1).target == 0.1
    with pytest.raises(ValueError, match="strength"):
        other.set_params(strength=1)
    with pytest.raises(InputError, match="call fit"):
        corrector.transform(p, sensitive_features=sex)
    fitted = corrector.fit(p, y, sensitive_features=sex)
    check_is_fitted(fitted)
    assert fitted is corrector
    assert "target=0.1" in repr(Debiaser(target=0.1))
    result = corrector.result_
    assert result is not None
    assert [criterion.criterion for criterion in result.criteria] == ["equal_opportunity"]
    assert [criterion.criterion for criterion in result.others] == [
        "demographic_parity",
        "false_positive_rate_parity",
        "equalized_odds",
    ]


def test_transform_returns_the_type_that_was_given() -> None:
    p, y, sex = table(0, 800)
    corrector = Debiaser(target=0.0, on="probabilities").fit(
        p, y, sensitive_features=pd.Series(sex)
    )
    expected = corrector.transform(p, sensitive_features=sex)
    frame = pd.DataFrame({"no": 1 - p, "yes": p}, index=np.arange(800) + 5)
    both = Debiaser(target=0.0, on="probabilities").fit(frame, y, sensitive_features=sex)
    assert both.classes_ == ("no", "yes")
    corrected = both.transform(frame, sensitive_features=sex)
    assert isinstance(corrected, pd.DataFrame)
    np.testing.assert_allclose(corrected["yes"], expected, atol=1e-6)
    tensor = torch.tensor(frame.to_numpy().copy()).float()
    moved = both.transform(tensor, sensitive_features=sex)
    assert moved.dtype == torch.float32
    np.testing.assert_allclose(moved[:, 1], expected, atol=1e-5)
    # Logits in, logits out; a later batch of one-hot rows is not guessed anew.
    logits = Debiaser(target=0.0, on="probabilities").fit(
        np.log(frame.to_numpy()), sensitive_features=sex
    )
    few = logits.transform(np.array([[0.0, 1.0], [1.0, 0.0]]), sensitive_features=["f", "m"])
    assert few[0, 1] - few[0, 0] > 1.0
    assert logits.kind_ == "logits"


def test_transform_keeps_rows_of_unknown_or_unseen_groups() -> None:
    p, _, sex = table(0, 500)
    corrector = Debiaser().fit(p, sensitive_features=sex)
    groups = sex.astype(object)
    groups[:5], groups[5:9] = None, "x"
    with pytest.warns(UserWarning, match="4 rows of groups not seen in fit"):
        fair = corrector.transform(p, sensitive_features=groups)
    np.testing.assert_array_equal(fair[:9], p[:9])
    assert (fair[9:] != p[9:]).any()


def test_fit_meets_several_attributes_and_criteria() -> None:
    p, y, sex = table(0)
    age = np.where(np.arange(len(p)) % 3 == 0, "old", "young")
    p = np.where(age == "old", 0.8 * p, p)
    people = pd.DataFrame({"sex": sex, "age": age})
    corrector = Debiaser(target=0.0, on="probabilities").fit(p, sensitive_features=people)
    fair = corrector.transform(p, sensitive_features=people)
    assert gap(fair, sex) < 1e-4
    assert gap(fair, np.where(age == "old", "f", "m")) < 1e-4
    both = Debiaser(["dp", "eo"], [0.03, 0.02], on="probabilities").fit(
        p, y, sensitive_features=sex
    )
    fair = both.transform(p, sensitive_features=sex)
    assert gap(fair, sex) <= 0.0301
    assert gap(fair, sex, y == "yes") <= 0.0201


@pytest.mark.parametrize(
    "name", ["demographic_parity", "equal_opportunity", "false_positive_rate_parity"]
)
def test_fit_on_decisions_splits_or_keeps_ties(name: str) -> None:
    p, y, sex = table(0)
    metrics = {
        "equal_opportunity": equal_opportunity,
        "false_positive_rate_parity": false_positive_rate_parity,
    }
    rough = p.round(1)  # eleven scores
    codes, group = (y == "yes").astype(int), (sex == "m").astype(int)

    def measured(fair: np.ndarray) -> float:
        if name == "demographic_parity":
            return demographic_parity((fair > 0.5).astype(int), group)
        metric = metrics[name]
        return metric((fair > 0.5).astype(int), codes, group)

    corrector = Debiaser(name).fit(rough, y, sensitive_features=sex)
    fair = corrector.transform(rough, sensitive_features=sex)
    assert measured(rough) > 0.15
    assert measured(fair) < (0.005 if name == "demographic_parity" else 0.03)
    assert corrector.result_ is not None
    assert corrector.result_.drawn > 50
    assert "drawn at random" in str(corrector.result_)
    again = corrector.transform(rough, sensitive_features=sex)
    np.testing.assert_array_equal(fair, again)
    with pytest.warns(UserWarning, match="ties='random' closes it"):
        keeping = Debiaser(name, ties="keep", calibrate=False).fit(rough, y, sensitive_features=sex)
    assert keeping.result_ is not None
    assert keeping.result_.drawn == 0
    assert measured(keeping.transform(rough, sensitive_features=sex)) > 0.002


def test_fit_on_decisions_of_other_criteria_warns_if_it_misses() -> None:
    p, y, sex = table(0)
    with pytest.warns(UserWarning, match="equalized_odds .* above the target"):
        corrector = Debiaser("equalized_odds", ties="keep").fit(p, y, sensitive_features=sex)
    assert corrector.result_ is not None
    (criterion,) = corrector.result_.criteria
    assert criterion.decisions_after < 0.4 * criterion.decisions_before


def test_fit_on_decisions_of_three_classes_is_near_the_target() -> None:
    rng = np.random.default_rng(0)
    three = rng.dirichlet(np.ones(3), 2000)
    group = np.where(three[:, 0] + 0.3 * rng.random(2000) > 0.45, "a", "b")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parity = Debiaser().fit(three, sensitive_features=group)
    assert parity.result_ is not None
    gap = parity.result_.criteria[0].decisions_after
    assert gap < 0.01
    one_node = 1 / min((group == name).sum() for name in "ab")
    assert bool(caught) == (gap > one_node + 1e-9)


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
@pytest.mark.parametrize("name", ["demographic_parity", "equal_opportunity", "equalized_odds"])
@pytest.mark.filterwarnings("ignore:equalized_odds")
def test_load_transforms_and_evaluates_as_saved(name: str, on: On, tmp_path: Path) -> None:
    p, y, sex = table(0, 1000)
    corrector = Debiaser(name, 0.01, on=on)
    corrector.fit(p, y, sensitive_features=sex)
    corrector.save(tmp_path / "c.json")
    loaded = Debiaser.load(tmp_path / "c.json")
    new, y2, sex2 = table(1, 300)
    np.testing.assert_array_equal(
        loaded.transform(new, sensitive_features=sex2),
        corrector.transform(new, sensitive_features=sex2),
    )
    ours = corrector.evaluate(new, y2, sensitive_features=sex2)
    theirs = loaded.evaluate(new, y2, sensitive_features=sex2)
    assert ours.to_dict() == theirs.to_dict()


def transition(matrix: list[list[float]], temperature: float = 1.0) -> dict[str, object]:
    return {"type": "transition", "transitions": [matrix] * 2, "temperature": temperature}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "something else"},
        {"kind": "odds"},
        {"classes": ["0", "1", "2"]},
        {"correction": {"type": "magic"}},
        {"correction": {"type": "shift", "shift": [[0, "x"], [0, 0]]}},
        {"correction": {"type": "shift", "shift": [[0, 0]]}},
        {"correction": {"type": "shift", "shift": [[0, 0], [0, None]]}},
        {"params": {"strength": 1}},
        {"params": {"on": "scores"}},
        {"params": {"temperature": -1, "on": "probabilities"}},
        {"correction": {"type": "transition", "transitions": np.ones((2, 2, 2)).tolist()}},
        {"attributes": 3},
        {"attributes": [{"name": "sens", "groups": ["f", "f"]}]},
        {"params": {"target": "low"}},
        {"params": {"seed": 0.5}},
        {"params": {"criterion": "fairness"}},
        {"correction": {"type": "threshold", "thresholds": [0, 0], "tie_rates": [2, 0]}},
        {"correction": {"type": "shift", "shift": [[0, 10**400], [0, 0]]}},
        {"correction": {"type": "shift", "shift": [[0, 1e300], [0, 0]]}},
        {"correction": transition([[1.5, -0.5], [0, 1]])},
        {"correction": transition([[0.5, 0.1], [0, 1]])},
        {"correction": transition([[1, 0], [0, 1]], temperature=1e300)},
        {"params": {"group_free": "yes"}},
        {"params": {"class_names": 3}},
        {"classes": "ab"},
        {"classes": ["yes", "yes"]},
        {"attributes": [{"name": "sens", "groups": "fm"}]},
        {"attributes": [{"groups": ["f", "m"]}]},
        {"promise": {"criterion": "demographic_parity", "confidence": 7}},
    ],
)
def test_load_refuses_damaged_files(change: dict[str, object], tmp_path: Path) -> None:
    p, _, sex = table(0, 200)
    path = tmp_path / "c.json"
    Debiaser(on="probabilities").fit(p, sensitive_features=sex).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as error:
        Debiaser.load(path)
    assert str(path) in str(error.value)
    for text in ("{", "3", "[]", "[" * 100_000, '{"a":' * 100_000, '{"params": NaN}', "9" * 5000):
        path.write_text(text)
        with pytest.raises(InputError) as error:
            Debiaser.load(path)
        assert len(str(error.value)) < 500 + len(str(path))
    with pytest.raises(InputError):
        Debiaser.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize("size", [1e30, 3e38, 1e100])
@pytest.mark.parametrize(
    "options", [{}, {"on": "probabilities"}, {"target": 0.5, "confidence": 0.9}]
)
def test_correction_of_large_logits_is_saved(
    size: float, options: dict[str, Any], tmp_path: Path
) -> None:
    p, _, sex = table(0, 200)
    logits = size * np.stack([-p, p], 1) / p.max()
    corrector = Debiaser(**options).fit(logits, sensitive_features=sex)
    corrector.save(tmp_path / "c.json")
    loaded = Debiaser.load(tmp_path / "c.json")
    expected = corrector.transform(logits, sensitive_features=sex)
    assert np.array_equal(loaded.transform(logits, sensitive_features=sex), expected)


@pytest.mark.parametrize("group_free", [False, True])
def test_logits_too_large_to_save_are_refused(group_free: bool) -> None:
    p, _, sex = table(0, 200)
    logits = np.stack([-p, p], 1)
    logits[7, 1] = -1e300
    with pytest.raises(InputError, match=r"X: row 7 has -1e\+300, beyond ±1e\+100"):
        Debiaser(group_free=group_free).fit(logits, sensitive_features=sex, features=p[:, None])


def test_expected_gap_is_that_of_new_samples() -> None:
    p, y, sex = table(0)
    corrector = Debiaser().fit(p, y, sensitive_features=sex)
    assert corrector.result_ is not None
    for name, m in (("demographic_parity", 400), ("equal_opportunity", 800)):
        expected = corrector.result_.expected_gap(m, name)
        assert 0 < expected.mean < expected.high < 1
        gaps = []
        for seed in range(60):
            new, y2, sex2 = table(100 + seed, m)
            fair = corrector.transform(new, sensitive_features=sex2) > 0.5
            inside = np.ones(m, dtype=bool) if name == "demographic_parity" else y2 == "yes"
            gaps.append(gap(fair, sex2, inside))
        if name == "demographic_parity":
            assert np.mean(gaps) == pytest.approx(expected.mean, abs=0.015)
            assert np.mean(np.array(gaps) <= expected.high) > 0.85
        smaller = corrector.result_.expected_gap(10 * m, name)
        assert smaller.mean < expected.mean


@pytest.mark.filterwarnings("ignore:equal_opportunity")
def test_calibrated_thresholds_transfer_better_than_those_of_labels() -> None:
    gaps: dict[bool, list[float]] = {True: [], False: []}
    accuracies: dict[bool, list[float]] = {True: [], False: []}
    p, y, sex = table(1)
    codes, group = (y == "yes").astype(int), (sex == "m").astype(int)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.permutation(len(p))
        few, held_out = rows[:300], rows[300:]
        for calibrate in (True, False):
            corrector = Debiaser("equal_opportunity", calibrate=calibrate)
            corrector.fit(p[few] ** 2, codes[few], sensitive_features=sex[few])
            fair = corrector.transform(p[held_out] ** 2, sensitive_features=sex[held_out])
            pred = (fair > 0.5).astype(int)
            gaps[calibrate].append(equal_opportunity(pred, codes[held_out], group[held_out]))
            accuracies[calibrate].append(float((pred == codes[held_out]).mean()))
    assert np.mean(gaps[True]) < 0.9 * np.mean(gaps[False])
    # p² has the wrong operating point, which calibration corrects.
    assert np.mean(accuracies[True]) > np.mean(accuracies[False]) + 0.01


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
@pytest.mark.parametrize("name", ["demographic_parity", "equal_opportunity", "equalized_odds"])
@pytest.mark.filterwarnings("ignore:equalized_odds")
def test_evaluate_new_rows_without_labels_or_groups(name: str, on: On) -> None:
    p, y, sex = table(0)
    corrector = Debiaser(name, on=on)
    corrector.fit(p, y, sensitive_features=sex)
    whole = corrector.transform(p, sensitive_features=sex)
    women = sex == "f"
    for rows in (women, np.arange(len(p)) == 7):
        effect = corrector.evaluate(p[rows], sensitive_features=sex[rows])
        np.testing.assert_allclose(effect.predictions, whole[rows])
        assert not effect.criteria
        assert "not measured" in str(effect)
    # With both groups, parity is measured without labels.
    effect = corrector.evaluate(p, sensitive_features=sex)
    measured = {criterion.criterion: criterion for criterion in (*effect.criteria, *effect.others)}
    assert set(measured) == {"demographic_parity"}
    rates = [float((whole[sex == g] > 0.5).mean()) for g in ("f", "m")]
    after = measured["demographic_parity"].decisions_after
    assert after == pytest.approx(abs(rates[1] - rates[0]))


def test_transform_reads_groups_as_numbers_text_or_booleans() -> None:
    p, _, sex = table(0, 300)
    codes = (sex == "m").astype(int)
    corrector = Debiaser().fit(p, sensitive_features=codes)
    fair = corrector.transform(p, sensitive_features=codes)
    spellings = (
        codes.astype(float),
        codes.astype(str),
        codes.astype(float).astype(str),
        codes == 1,
    )
    for groups in spellings:
        np.testing.assert_array_equal(corrector.transform(p, sensitive_features=groups), fair)


def far_apart(values: np.ndarray, group: np.ndarray) -> float:
    """Distance between the two groups farthest apart, over all classes."""
    rates = np.array([values[group == g].mean(0) for g in np.unique(group)])
    return float(np.ptp(rates, axis=0).max())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_outlier_logit_does_not_spoil_the_shift(on: On, classes: int) -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 400)
    logits = rng.normal(size=(400, classes)) + group[:, None] * np.arange(classes) / 2
    logits[0, 1] = 1e7
    debiaser = Debiaser(on=on, kind="logits").fit(logits, sensitive_features=group)
    fair = debiaser.transform(logits, sensitive_features=group)
    values = softmax(fair, axis=1) if on == "probabilities" else np.eye(classes)[fair.argmax(1)]
    assert far_apart(values, group) <= (1e-6 if on == "probabilities" else 0.01)


def test_missed_equal_opportunity_is_a_warning() -> None:
    rng = np.random.default_rng(3)
    group = np.arange(600) % 12
    p = 1 / (1 + np.exp(-rng.normal(size=600) - group / 6))
    y = (rng.random(600) < p) * 1
    with pytest.warns(UserWarning, match="equal_opportunity"):
        debiaser = Debiaser("equal_opportunity").fit(p, y, sensitive_features=group)
    fair = debiaser.transform(p, sensitive_features=group)
    assert far_apart((fair > 0.5)[y == 1, None] * 1.0, group[y == 1]) > 0.1
    exact = Debiaser("equal_opportunity", calibrate=False).fit(p, y, sensitive_features=group)
    fair = exact.transform(p, sensitive_features=group)
    smallest = min(np.bincount(group[y == 1]))
    assert far_apart((fair > 0.5)[y == 1, None] * 1.0, group[y == 1]) <= 1 / smallest


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_target_is_met_on_the_fitting_table_or_warned_about(seed: int) -> None:
    with suppress(InputError):  # a target that cannot be reached
        debiaser_case(np.random.default_rng(seed), Path())


def fitted_without_groups(n: int = 300) -> Debiaser:
    p, _, sex = table(0, n)
    rng = np.random.default_rng(0)
    features = np.stack([rng.normal(size=n) + (sex == "m"), rng.normal(size=n)], axis=1)
    edge_index = rng.integers(0, n, (2, 2 * n))
    return Debiaser(group_free=True, target=0.1).fit(
        p, sensitive_features=sex, features=features, edge_index=edge_index
    )


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("rule", "shares", 10**400),
        ("rule", "multipliers", [[[10**400, 0], [0, 0]]]),
        ("people", "features", []),
    ],
)
def test_load_refuses_damage_to_a_group_free_correction(
    part: str, name: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    fitted_without_groups().save(path)
    record = json.loads(path.read_text())
    record["correction"][part][name] = value
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="not a correction"):
        Debiaser.load(path)


def test_correction_with_the_data_of_people_is_private(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("{}")  # that others may read
    fitted_without_groups().save(path)
    assert path.stat().st_mode & 0o077 == 0
