from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch_geometric.data import Data

from fairmp import FairClassifier
from fairmp.errors import InputError
from fairmp.tuning import space
from fairmp.tuning.space import Method
from fairmp.tuning.trials import TrialResult
from fairmp.tuning.tune import choose, data_splits, pareto
from tests.tuning.helpers import SHORT, SMALL, outcomes, short_search, small


def test_chosen_trial_is_the_most_accurate_within_the_limit() -> None:
    tuned = short_search(splits=2, trials=7)
    within = [trial for trial in tuned.trials if trial.figure("dp") <= 0.05]
    assert 0 < len(within) < 7
    accuracy = tuned.chosen.figure("accuracy")
    assert tuned.met
    assert accuracy == max(trial.figure("accuracy") for trial in within)

    # Its figures are what a classifier made by hand finds, on the validation nodes alone.
    model = space.classifier(SHORT, tuned.chosen.settings)
    parts = data_splits(small(), 2, 0)
    by_hand = [model.fit(part, bootstrap=0, progress=False).run_.val.accuracy for part in parts]
    assert accuracy == pytest.approx(sum(by_hand) / 2)
    run = tuned.checked[tuned.chosen.number][0]
    assert set(tuned.checked) == {tuned.chosen.number}
    assert run.val.accuracy == by_hand[0]
    assert tuned.model.evaluate(parts[0], bootstrap=0).accuracy == run.test.accuracy
    low, high = run.test.intervals["accuracy"]
    assert low < run.test.accuracy < high


def test_splits_share_their_test_nodes() -> None:
    data = small()
    parts = data_splits(data, 3, 0)
    for part in parts:
        assert torch.equal(part.test_mask, data.test_mask)
        seen = part.train_mask.int() + part.val_mask.int() + part.test_mask.int()
        assert int(seen.max()) == 1
        assert torch.equal(seen > 0, parts[0].train_mask | parts[0].val_mask | data.test_mask)
        assert abs(int(part.train_mask.sum()) - int(data.train_mask.sum())) <= 1
    assert len({tuple(part.val_mask.tolist()) for part in parts}) == 3

    def figures(trial_data: Data) -> list[Any]:
        # The first split is the data's own, so that other labels do not deal out other splits.
        return outcomes(short_search(trial_data, trials=3))

    other = small()
    other.y[other.test_mask] = 1 - other.y[other.test_mask]
    assert figures(other) == figures(data)


def test_resumed_search_has_the_same_trials(tmp_path: Path) -> None:
    started: list[tuple[int, int]] = []
    # More than the ten that are drawn at random.
    whole = short_search(trials=12)
    for trials in (3, 12):
        parts = short_search(
            trials=trials,
            storage=str(tmp_path / "study.db"),
            on_start=lambda done, left: started.append((done, left)),
        )
    assert started == [(0, 3), (3, 9)]
    assert outcomes(parts) == outcomes(whole)
    assert len({str(trial.settings) for trial in whole.trials}) == 12
    assert outcomes(short_search(seed=1)) != outcomes(whole)[:6]


def test_fairest_trial_is_chosen_if_none_is_within_the_limit() -> None:
    tuned = short_search(
        goal=0.0, method=Method("gcn", "regulariser", epochs=3), space=["hidden=8"]
    )
    gaps = [trial.figures["dp"] for trial in tuned.trials]
    assert not tuned.met
    assert tuned.gap(tuned.chosen) == min(gaps) > 0
    assert {trial.settings["h"] for trial in tuned.trials} != {5.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": 2.0}, "goal: 2.0"),
        ({"goal": "fair"}, "goal: 'fair'"),
        ({"goal": math.nan}, "goal: nan"),
        ({"criterion": "odds"}, "criterion: 'odds'"),
        ({"trials": 0}, "trials: 0"),
        ({"splits": 0}, "splits: 0"),
        ({"workers": 0}, "workers: 0"),
        ({"workers": 2}, "workers: 2 need a storage"),
        ({"seed": -1}, "seed: -1"),
        ({"timeout": 0}, "timeout: 0"),
        ({"timeout": 1e-9}, "the time was up before"),
        ({"device": "abacus"}, "device: 'abacus'"),
        ({"space": ["hidden"]}, "space: 'hidden'"),
        ({"space": ["speed=3"]}, "space: 'speed' is not searched"),
        ({"space": ["h=3"]}, "space: 'h' is not searched"),
        ({"space": ["K=1.5"]}, "space: K='1.5' is not a whole number"),
        ({"space": ["lr=fast"]}, "space: lr='fast' is not a number"),
        ({"space": ["lr=0"]}, r"space: lr=0 is outside \(0, inf\)"),
        ({"space": ["lr=nan"]}, "space: lr=nan is outside"),
        ({"space": ["target=0..2"]}, r"space: target=2 is outside \[0, 1\]"),
        ({"space": ["dropout=0.1,1"]}, r"space: dropout=1 is outside \[0, 1\)"),
        ({"space": ["lr=0.1..0.01"]}, "smaller number first"),
        ({"space": ["solver=papc..paper"]}, "give words with commas"),
        ({"space": ["solver=newton"]}, "solver='newton' is unknown"),
        ({"space": ["on=luck"]}, "on='luck' is unknown"),
        ({"method": Method("gat"), "space": ["hidden=6"]}, "4 heads of 'gat'"),
    ],
)
def test_wrong_input_is_refused_before_training(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairClassifier, "fit", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(InputError, match=message) as error:
        short_search(**({"space": SMALL} | changes))
    assert "\n" not in str(error.value)


def _made(rows: list[tuple[float, float]]) -> list[TrialResult]:
    return [
        TrialResult(number, {}, {"accuracy": accuracy, "dp": gap}, [], 0.0)
        for number, (accuracy, gap) in enumerate(rows)
    ]


# Few values, so that ties are common.
share = st.integers(0, 6).map(lambda k: k / 6)


@given(st.lists(st.tuples(share, share), min_size=1, max_size=12), share)
def test_choice_agrees_with_brute_force(rows: list[tuple[float, float]], limit: float) -> None:
    trials = _made(rows)
    beaten = {
        number
        for number, (accuracy, gap) in enumerate(rows)
        for other in rows
        if other != (accuracy, gap) and other[0] >= accuracy and other[1] <= gap
    }
    front = pareto(trials, "dp")
    unbeaten = [rows[n] for n in range(len(rows)) if n not in beaten]
    assert [rows[t.number] for t in front] == sorted(set(unbeaten), key=lambda row: row[1])
    assert all(trial.number == rows.index(rows[trial.number]) for trial in front)

    chosen, met = choose(trials, limit, "dp")
    within = [row for row in rows if row[1] <= limit]
    assert met == bool(within)
    if within:
        best = max(row[0] for row in within)
        assert rows[chosen.number] == (best, min(g for a, g in within if a == best))
    else:
        least = min(row[1] for row in rows)
        assert rows[chosen.number] == (max(a for a, g in rows if g == least), least)
    assert choose(trials, None, "dp")[0] in front
