"""Rivals that are tuned, and run on splits of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.rivals.tuning import GRIDS, METHODS, choose, settings_of
from fairmp.comparison.external import load_method


def test_command_tunes_once_fits_every_split_and_continues(
    experiments: Any, tmp_path: Path
) -> None:
    words = "external --quick --graph embedded:240 --split 3 --split 4 --out r --jobs 1"
    status, out, err = experiments(words)
    assert status == 0, err
    assert all(name in out for name in METHODS)
    record = json.loads((tmp_path / "r" / "rivals.json").read_text("utf8"))
    tuned = record["tuned"]["embedded:240"]
    for title, trials in tuned.items():
        assert [trial["settings"] for trial in trials["trials"]] == settings_of(title)
        assert trials["settings"] in settings_of(title)
    assert [(fit["data"], fit["split"]) for fit in record["records"]] == [
        ("embedded:240", 3),
        ("embedded:240", 4),
    ]
    assert all(set(fit["rows"]) == set(METHODS) for fit in record["records"])
    status, _, err = experiments(words)
    assert status == 0, err
    assert err.count("0 to go") == 2


@pytest.mark.parametrize("title", METHODS)
def test_rivals_have_nine_settings_that_their_constructors_take(title: str) -> None:
    settings = settings_of(title)
    assert len(settings) == 9
    assert set(GRIDS) == set(METHODS)
    for chosen in settings:
        load_method(METHODS[title])(**chosen)


def test_accuracy_chooses_a_backbone_and_the_gap_a_fair_method() -> None:
    figures = iter(
        {"accuracy": 0.8 + 0.004 * number, "dp": 0.05 + 0.01 * number} for number in range(9)
    )
    backbone = choose("NIFTY, no fairness part", lambda settings: next(figures))
    assert backbone["settings"] == settings_of("NIFTY, no fairness part")[-1]
    figures = iter(
        {"accuracy": 0.8 + 0.004 * number, "dp": 0.05 + 0.01 * number} for number in range(9)
    )
    fair = choose("NIFTY", lambda settings: next(figures))
    assert fair["settings"] == settings_of("NIFTY")[6]  # within a point of the highest accuracy
