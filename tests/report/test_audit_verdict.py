from __future__ import annotations

from dataclasses import replace

from fairmp import audit
from fairmp.datasets import social_network


def test_headline_says_how_well_the_group_can_be_guessed() -> None:
    result = audit(social_network(n=2000, average_degree=12), steps=2)
    [headline] = [line for line in result.verdict() if "own features" in line]
    first, last = result.row[0].predictability, result.row[-1].predictability
    assert f"hardly be guessed ({100 * first:.1f} of 100)" in headline
    assert f"almost perfectly ({100 * last:.1f} of 100)" in headline


def test_change_that_may_be_chance_is_said_with_its_limit() -> None:
    result = audit(social_network(n=2000, average_degree=12), steps=1)
    before, after = (f"{100 * bias.predictability:.1f}" for bias in result.row)
    assert "Measured: it raises the bias by" in " ".join(result.verdict())
    chance = " ".join(replace(result, noise=0.9).verdict())
    assert f"Measured: {before} to {after}; a change below 90.0 may be chance." in chance
