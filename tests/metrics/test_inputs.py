"""What ``evaluate`` takes: text, one-dimensional scores, tables, several attributes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.metrics.inputs import read_groups

N = 400
RNG = np.random.default_rng(0)
SEX = np.where(RNG.random(N) < 0.4, "f", "m")
AGE = RNG.choice(["old", "young", "middle"], N)
P = np.clip(RNG.random(N) * 0.8 + 0.2 * (SEX == "m"), 0, 1)
Y = (RNG.random(N) < P).astype(int)
DECIDED = (P > 0.5).astype(int)


def words(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 1, "approved", "rejected")


def test_figures_agree_with_metric_frame() -> None:
    from fairlearn.metrics import (
        MetricFrame,
        demographic_parity_ratio,
        false_positive_rate,
        selection_rate,
        true_positive_rate,
    )
    from sklearn.metrics import accuracy_score, precision_score

    metrics = {
        "dp": selection_rate,
        "eo": true_positive_rate,
        "fpr": false_positive_rate,
        "ppv": precision_score,
        "accuracy_gap": accuracy_score,
    }
    for groups in (SEX, pd.DataFrame({"sex": SEX, "age": AGE})):
        frame = MetricFrame(metrics=metrics, y_true=Y, y_pred=DECIDED, sensitive_features=groups)
        result = evaluate(Y, DECIDED, sensitive_features=groups, bootstrap=10)
        for key, expected in frame.difference().items():
            assert getattr(result, key) == pytest.approx(expected)
            low, high = result.intervals[key]
            assert low <= expected <= high
        ratio = demographic_parity_ratio(Y, DECIDED, sensitive_features=groups)
        assert result.impact_ratio == pytest.approx(ratio)
        rows = {group.name: group for group in result.groups}
        for name, expected in frame.by_group.iterrows():
            row = rows[name if isinstance(name, str) else " × ".join(name)]
            assert (row.accuracy, row.ppv) == pytest.approx(
                (expected["accuracy_gap"], expected["ppv"])
            )


def same(first, second) -> bool:
    return all(
        getattr(first, key) == pytest.approx(getattr(second, key), nan_ok=True)
        for key in ("accuracy", "f1", "dp", "eo", "fpr", "odds", "ppv", "impact_ratio")
    )


@pytest.mark.parametrize("convert", [np.asarray, list, pd.Series, torch.tensor])
def test_decisions_of_any_type(convert) -> None:
    codes = (SEX == "m").astype(int)
    expected = evaluate(Y, np.stack([1 - P, P], 1), sensitive_features=codes)
    result = evaluate(convert(Y), convert(DECIDED), sensitive_features=convert(codes))
    assert same(result, expected)
    assert result.intervals["dp"] == expected.intervals["dp"]
    assert np.isnan([result.auc, result.calibration_error]).all()
    assert evaluate(Y, DECIDED == 1, sensitive_features=codes).eo == expected.eo


def test_probabilities_of_class_1_have_auc_and_calibration() -> None:
    from sklearn.metrics import roc_auc_score

    result = evaluate(pd.Series(Y), pd.Series(P), sensitive_features=pd.Series(SEX))
    assert result == evaluate(Y, np.stack([1 - P, P], 1), sensitive_features=SEX)
    assert result.auc == pytest.approx(roc_auc_score(Y, P))
    for group in result.groups:
        rows = group.name == SEX
        bins = np.clip(np.ceil(P[rows] * 10).astype(int) - 1, 0, 9)
        errors = [abs((P[rows] - Y[rows])[bins == b].sum()) for b in range(10) if (bins == b).any()]
        assert group.calibration_error == pytest.approx(sum(errors) / rows.sum())
    assert result.calibration_error == max(group.calibration_error for group in result.groups)


@pytest.mark.parametrize("predicted", ["decisions", "numbers", "probabilities", "frame"])
def test_good_word_is_the_positive_class(predicted: str) -> None:
    # "rejected" is the last by the alphabet.
    given = {
        "decisions": words(DECIDED),
        "numbers": DECIDED,
        "probabilities": P,
        "frame": pd.DataFrame({"approved": P, "rejected": 1 - P}),
    }
    result = evaluate(words(Y), given[predicted], sensitive_features=SEX)
    assert result.class_names == ("rejected", "approved")
    assert same(result, evaluate(Y, DECIDED, sensitive_features=SEX))
    assert "guessed" in result.notes[0]
    other = evaluate(
        words(Y),
        given["decisions"],
        sensitive_features=SEX,
        positive="rejected",
    )
    assert same(other, evaluate(1 - Y, 1 - DECIDED, sensitive_features=SEX))
    assert not any("guessed" in note for note in other.notes)


def test_positive_joins_the_other_classes() -> None:
    y, decided = RNG.integers(1, 4, N), RNG.integers(1, 4, N)
    result = evaluate(y, decided, sensitive_features=SEX, positive=2)
    assert same(result, evaluate(y == 2, decided == 2, sensitive_features=SEX))
    assert result.class_names == ("not 2", "2")
    with pytest.raises(InputError, match="two classes"):
        evaluate(y - 1, np.eye(3)[decided - 1], sensitive_features=SEX, positive=2)


def test_four_classes_and_five_groups_as_text() -> None:
    names = np.array(["A", "B", "C", "D"])
    y, decided, group = RNG.integers(0, 4, N), RNG.integers(0, 4, N), RNG.integers(0, 5, N)
    years = np.array([f"class of {2005 + g}" for g in range(5)])[group]
    result = evaluate(names[y], names[decided], sensitive_features=years)
    expected = evaluate(y, np.eye(4)[decided], sensitive_features=group)
    assert same(result, expected)
    assert result.class_names == tuple(names)
    assert len(result.groups) == 5
    scores = pd.DataFrame(np.eye(4)[decided], columns=names[::-1])
    reversed_columns = evaluate(names[y], scores.iloc[:, ::-1], sensitive_features=years)
    assert reversed_columns.class_names == tuple(names)


def test_missing_values_are_unknown() -> None:
    y = pd.Series(words(Y)).mask(np.arange(N) % 7 == 0)
    group = pd.Series(SEX).mask(np.arange(N) % 5 == 0)
    result = evaluate(y, words(DECIDED), sensitive_features=group)
    codes = np.where(np.arange(N) % 5 == 0, -1, (SEX == "m").astype(int))
    labels = np.where(np.arange(N) % 7 == 0, -1, Y)
    assert same(result, evaluate(labels, DECIDED, sensitive_features=codes))
    assert [g.labelled for g in result.groups] == [
        int(((codes == g) & (labels >= 0)).sum()) for g in (0, 1)
    ]
    nullable = pd.Series(labels).mask(labels < 0).astype("Int64")
    assert same(result, evaluate(nullable, DECIDED, sensitive_features=codes))


def test_without_labels_rates_and_impact_ratio_are_measured() -> None:
    result = evaluate(None, DECIDED, sensitive_features=SEX)
    rates = [DECIDED[g == SEX].mean() for g in ("f", "m")]
    assert result.impact_ratio == pytest.approx(min(rates) / max(rates))
    assert np.isnan([result.accuracy, result.eo, result.ppv, result.accuracy_gap]).all()


def test_intersections_have_the_groups_that_occur() -> None:
    codes, names = read_groups([["a", "b", "a", None], [0, 1, 1, 1]], 4)
    assert codes.tolist() == [0, 2, 1, -1]
    assert names == ("a × 0", "a × 1", "b × 1")
    both = pd.DataFrame({"sex": SEX, "age": AGE})
    for given in (both, dict(both), [SEX, AGE]):
        assert read_groups(given, N)[1] == tuple(
            sorted({f"{s} × {a}" for s, a in zip(SEX, AGE, strict=True)})
        )


def test_who_is_ahead_in_precision_and_accuracy() -> None:
    result = evaluate(Y, DECIDED, sensitive_features=SEX)
    for key, values in (
        ("ppv", [g.ppv for g in result.groups]),
        ("accuracy_gap", [g.accuracy for g in result.groups]),
    ):
        lead = result.lead(key)
        assert lead is not None
        assert lead.gap == pytest.approx(getattr(result, key))
        assert lead.ahead == result.groups[int(np.argmax(values))].name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["x"] * N, "class_names": ["a", "b"]}, "^y: 'x' is not named"),
        ({"y": np.array(["a", "b", "c"])[np.arange(N) % 3], "scores": P}, "^y: 3 classes"),
        ({"sensitive_features": {}}, "^sensitive_features: no attribute"),
        ({"sensitive_features": np.ones((N, 2))}, "^sensitive_features: shape"),
        ({"y": [object()] * N}, "^y: object values"),
    ],
)
def test_wrong_input_is_named(change: dict, message: str) -> None:
    arguments = {"y": Y, "scores": DECIDED, "sensitive_features": SEX} | change
    with pytest.raises(InputError, match=message):
        evaluate(**arguments)
