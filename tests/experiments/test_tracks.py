from __future__ import annotations

import pytest

from experiments.tracks import floor_of, track_of
from fairmp.comparison.grid import STRATEGIES


def run(backbone: str, strategy: str, mode: str | None = None) -> dict[str, object]:
    family = backbone.rpartition(":")[2]
    spec = {"backbone": backbone, "strategy": strategy}
    return {"family": family, "spec": spec, "run": {"test": {"mode": mode}}}


@pytest.mark.parametrize(
    ("strategy", "track"),
    [
        ("vanilla", "none"),
        ("regulariser", "per node"),
        ("adversary", "per node"),
        ("thresholds-val", "per node"),
        ("thresholds-batch", "batch"),
        ("per-node", "per node"),
    ],
)
def test_strategy_decides_the_track_of_a_network(strategy: str, track: str) -> None:
    assert track_of(run("gcn", strategy)) == track
    assert strategy in STRATEGIES


def test_fmp_is_batch_with_any_penalty_and_rivals_decide_alone() -> None:
    assert {track_of(run("fmp", name, "batch")) for name in ("vanilla", "adversary")} == {"batch"}
    assert track_of(run("fmp", "per-node", "per-node")) == "per node"
    assert track_of(run("experiments.rivals:NIFTY", "vanilla")) == "per node"
    assert track_of(run("experiments.rivals:NIFTYBackbone", "vanilla")) == "none"


def test_floor_is_that_of_a_random_half() -> None:
    groups = [{"count": 100, "positive_rate": rate} for rate in (0.4, 0.6)]
    assert floor_of([{"groups": groups}]) == pytest.approx(0.8 * (0.25 * 2 / 100) ** 0.5)
