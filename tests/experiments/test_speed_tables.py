from __future__ import annotations

import pytest

from experiments import speed_tables
from experiments.speed_tables import EPOCH_TARGETS, FIT_TARGETS, Target, epoch_targets, fit_targets


@pytest.mark.parametrize(
    ("at_least", "ratio", "verdict"),
    [(False, 1.5, "met"), (False, 1.51, "missed"), (True, 1.5, "met"), (True, 1.49, "missed")],
)
def test_limit_itself_is_met(at_least: bool, ratio: float, verdict: str) -> None:
    target = Target("CPU", "epoch", "A", "B", 1.5, at_least=at_least)
    row = target.row(ratio, "other")
    assert row[0] == "CPU: A / B"
    assert row[1] == ("≥ 1.5" if at_least else "≤ 1.5")
    assert row[-2:] == ["other", verdict]


def test_ratios_are_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for target in EPOCH_TARGETS for name in (target.slow, target.fast)}
    times = {name: 2.0 + position for position, name in enumerate(sorted(names))}
    medians = {name: time**2 for name, time in times.items()}
    record = {"milliseconds": times, "median_milliseconds": medians}
    monkeypatch.setattr(speed_tables, "read", lambda name: record)
    for target, row in zip(EPOCH_TARGETS, epoch_targets().rows, strict=True):
        ratio = times[target.slow] / times[target.fast]
        assert row[2:4] == [f"{ratio:.2f}", f"{ratio**2:.2f}"]


def test_fits_have_one_graph_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    multiples = {name: 3.0 for target in FIT_TARGETS for name in (target.slow, target.fast)}
    multiples["MLP"] = 2.0
    record = {"graphs": {"a graph": {"times_the_mlp": multiples}}}
    monkeypatch.setattr(speed_tables, "read", lambda name: record)
    measured = {row[0].rpartition(" / ")[2]: row[2] for row in fit_targets().rows}
    assert measured == {"MLP": "1.50", "MLP + FMP": "1.00"}
