"""A short run of every fuzzer, and every case that ever failed."""

from __future__ import annotations

import pytest

from tests.fuzz import KINDS
from tests.fuzz.harness import run

SHORT = {"tables": 60, "damaged": 60, "numbers": 60, "models": 40, "archives": 100}


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_run(kind: str) -> None:
    found = run(kind, KINDS[kind], 1, range(SHORT[kind]))
    assert not found.failures, "\n".join(found.failures.values())
    accepted = sum(found.ends.values()) - found.ends["refused"]
    assert accepted > 0
