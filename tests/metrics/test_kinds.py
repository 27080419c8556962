"""Logits and probabilities are told apart by one rule, and never guessed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmp import InputError, debias
from fairmp.metrics.counts import are_probabilities
from fairmp.postprocessing.thresholds import GroupThresholds

ONE_HOT = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_clear_cases(make: object) -> None:
    cases = [
        ([[0.2, 0.8], [0.5, 0.5]], True),
        ([[0.33, 0.33, 0.33], [0.25, 0.25, 0.5]], True),  # rounded to two digits
        ([[0.0, 1.0], [0.3, 0.7]], True),
        ([[0.2, 0.9], [1.5, -0.5]], False),
        ([[False, True], [True, False]], True),
    ]
    for values, expected in cases:
        assert are_probabilities(make(values)) is expected  # type: ignore[operator]


@pytest.mark.parametrize("values", [ONE_HOT, np.array([[0.0, 1.0], [0.5, 0.5]])])
def test_one_hot_rows_are_ambiguous(values: np.ndarray) -> None:
    for call in (
        lambda: are_probabilities(values),
        lambda: are_probabilities(torch.from_numpy(values)),
        lambda: debias(values, [0, 1] * (len(values) // 2)),
        lambda: GroupThresholds().solve(values, [0, 1] * (len(values) // 2)),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.argument == "kind"
    assert are_probabilities(values, "probabilities")
    assert not are_probabilities(values, "logits")


def test_the_kind_decides() -> None:
    sens = [0, 0, 1, 1]
    given = ONE_HOT.copy()
    given[3] = [1.0, 0.0]
    fair = debias(given, sens, kind="logits")
    p = np.exp(fair) / np.exp(fair).sum(1, keepdims=True)
    assert p[:2, 1].mean() == pytest.approx(p[2:, 1].mean(), abs=1e-4)
    fair = debias(given, sens, kind="probabilities")
    assert fair[:2, 1].mean() == pytest.approx(fair[2:, 1].mean(), abs=1e-4)
    # A single column holds log-odds of class 1.
    odds = debias(np.array([2.0, 0.5, -1.0, -3.0]), sens, kind="logits")
    q = 1 / (1 + np.exp(-odds))
    assert q[:2].mean() == pytest.approx(q[2:].mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("values", "kind", "argument"),
    [
        ([[0.2, 0.2]], "auto", "predictions"),
        ([[0.2, 0.2]], "probabilities", "predictions"),
        ([[-0.2, 1.2]], "probabilities", "predictions"),
        ([[0.2, 0.8]], "odds", "kind"),
    ],
)
def test_wrong_input_is_named(values: list[list[float]], kind: str, argument: str) -> None:
    with pytest.raises(InputError) as error:
        are_probabilities(np.array(values), kind)
    assert error.value.argument == argument
