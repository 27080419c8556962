from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from fairmp import InputError, debias
from fairmp.datasets import social_network
from fairmp.incidence import incidence


@pytest.fixture(scope="module")
def outside() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions of a model that knows nothing of us, with labels and groups."""
    data = social_network(n=3000, average_degree=8, sens_signal=1.5)
    x, y = data.x.double().numpy(), data.y.numpy()
    half = len(y) // 2
    model = LogisticRegression(max_iter=1000).fit(x[:half], y[:half])
    return model.predict_proba(x[half:]), y[half:], data.sens.numpy()[half:]


def gap(p: np.ndarray, sens: np.ndarray) -> float:
    return abs(float(p[sens == 1].mean() - p[sens == 0].mean()))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_any_target_is_held(
    outside: tuple[np.ndarray, np.ndarray, np.ndarray], share: float
) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    assert before > 0.1
    mended = debias(p, sens, target=share * before)
    assert isinstance(mended, np.ndarray)
    np.testing.assert_allclose(mended.sum(1), 1)
    assert gap(mended[:, 1], sens) == pytest.approx(share * before, abs=1e-4)


def test_less_asked_less_changed(outside: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    moved = [
        np.abs(debias(p, sens, target=share * before) - p).mean() for share in np.linspace(0, 1, 6)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 1e-9


def test_order_within_a_group_stays(
    outside: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    p, _, sens = outside
    mended = debias(p, sens)
    for group in (0, 1):
        inside = sens == group
        assert (np.argsort(p[inside, 1]) == np.argsort(mended[inside, 1])).all()


def test_the_kind_stays(outside: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    p, _, sens = outside
    expected = debias(p, sens)
    frame = pd.DataFrame(p, columns=["no", "yes"], index=np.arange(len(p)) + 7)
    mended = debias(frame, pd.Series(sens))
    assert isinstance(mended, pd.DataFrame)
    assert list(mended.columns) == ["no", "yes"]
    assert (mended.index == frame.index).all()
    np.testing.assert_allclose(mended, expected)
    column = debias(frame["yes"], sens)
    assert isinstance(column, pd.Series)
    assert column.name == "yes"
    np.testing.assert_allclose(column, expected[:, 1])
    tensor = debias(torch.from_numpy(p).float(), torch.from_numpy(sens))
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor, expected, atol=1e-5)
    logits = debias(np.log(p), sens)
    np.testing.assert_allclose(torch.from_numpy(logits).softmax(1), expected)
    np.testing.assert_allclose(frame, p)


def test_decisions_unknown_groups_and_a_graph() -> None:
    data = social_network(n=2000, average_degree=10)
    logits = 3 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    logits[:, 1] += 2.0 * data.sens
    sens = data.sens.clone()
    sens[::7] = -1
    mended = debias(logits, sens, sharpness=0.05)
    assert torch.equal(mended[sens < 0], logits[sens < 0])
    decided = mended.argmax(1).double().numpy()
    known = (sens >= 0).numpy()
    assert gap(decided[known], sens.numpy()[known]) < 0.01
    smoothed = debias(logits, sens, edge_index=data.edge_index, target=0.02)
    found = incidence(sens).gap(smoothed.softmax(1)).abs().max()
    assert float(found) <= 0.0201
    assert float(smoothed.std()) < float(mended.std())


@given(
    p=st.lists(st.floats(0, 1), min_size=4, max_size=30), target=st.sampled_from([0.0, 0.05, 0.3])
)
def test_any_probabilities(p: list[float], target: float) -> None:
    sens = np.arange(len(p)) % 2
    assert gap(debias(np.array(p), sens, target=target), sens) <= target + 1e-4


@pytest.mark.parametrize(
    ("predictions", "sens", "words"),
    [
        ([[0.2, 0.2], [0.5, 0.5]], [0, 1], ["row 0", "0.4", "sum to 1"]),
        ([[0.2, np.nan], [0.5, 0.5]], [0, 1], ["row 0", "not finite"]),
        ([0.2, 1.2], [0, 1], ["1.2", "row 1", "n×2"]),
        ([["a", "b"]], [0, 1], ["not numbers"]),
        ([[0.5, 0.5]] * 3, [0, 1], ["sens", "3 nodes"]),
        ([[1.0], [1.0]], [0, 1], ["shape (2, 1)"]),
        ([0.2, 0.4], [0, 0], ["1 group"]),
    ],
)
def test_wrong_predictions_are_named(predictions: object, sens: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias(predictions, sens)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_targets_are_named() -> None:
    with pytest.raises(InputError, match="target: 2"):
        debias([0.2, 0.4], [0, 1], target=2)
    with pytest.raises(InputError, match="sharpness: 0"):
        debias([0.2, 0.4], [0, 1], sharpness=0)
