from __future__ import annotations

import pytest

from benchmarks import folds
from fairmp import FairClassifier


def test_ratio_is_of_the_fastest_fits() -> None:
    assert folds.ratio({1: [2.0, 1.0], 5: [3.0, 2.5]}) == 2.5


def test_fits_take_turns_and_the_first_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    monkeypatch.setattr(FairClassifier, "fit", lambda self, data, **_: fitted.append(self.folds))
    seconds = folds.seconds_of_fits(None, rounds=2)  # type: ignore[arg-type]
    assert fitted == [1, 5, 1, 5, 1, 5]
    assert {count: len(times) for count, times in seconds.items()} == {1: 2, 5: 2}
