from __future__ import annotations

from fairmp import audit
from fairmp.datasets import social_network


def test_headline_says_how_well_the_group_can_be_guessed() -> None:
    result = audit(social_network(n=2000, average_degree=12), steps=2)
    [headline] = [line for line in result.verdict() if "own features" in line]
    first, last = result.row[0].predictability, result.row[-1].predictability
    assert f"hardly be guessed ({100 * first:.1f} of 100)" in headline
    assert f"almost perfectly ({100 * last:.1f} of 100)" in headline
