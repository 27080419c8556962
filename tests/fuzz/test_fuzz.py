"""A short run of every fuzzer, and every case that ever failed."""

from __future__ import annotations

import pytest

from tests.fuzz import KINDS
from tests.fuzz.harness import run

SHORT = {
    "tables": 40,
    "contents": 30,
    "promises": 20,
    "graphs": 60,
    "correction_files": 60,
    "urls": 60,
    "around": 60,
    "damaged": 40,
    "numbers": 40,
    "corrections": 20,
    "models": 30,
    "classifiers": 60,
    "archives": 60,
}
CORPUS = [  # every case that ever failed: kind, seed, number
    ("corrections", 31, 9),
    ("damaged", 101, 929),
    ("damaged", 101, 1732),
    ("damaged", 104729, 123),
    ("models", 102, 1528),
    ("tables", 901, 557),
]


@pytest.mark.parametrize("kind", SHORT)
def test_short_run_has_no_failures(kind: str) -> None:
    outcome = run(kind, KINDS[kind], 1, range(SHORT[kind]))
    assert not outcome.failures, "\n".join(outcome.failures.values())
    accepted = sum(outcome.ends.values()) - outcome.ends["refused"]
    assert accepted > 0


@pytest.mark.parametrize(("kind", "seed", "number"), CORPUS)
def test_past_failures_stay_fixed(kind: str, seed: int, number: int) -> None:
    outcome = run(kind, KINDS[kind], seed, [number])
    assert not outcome.failures, outcome.failures[number]
