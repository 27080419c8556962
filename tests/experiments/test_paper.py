from __future__ import annotations

from experiments import paper
from experiments.paper import Claim
from fairmp.metrics import Interval


def test_verdict_needs_the_whole_interval() -> None:
    assert paper.verdict(Interval(0.2, 0.1, 0.3, 5)) == paper.HOLDS
    assert paper.verdict(Interval(-0.2, -0.3, -0.1, 5)) == paper.FAILS
    assert paper.verdict(Interval(0.0, -0.1, 0.1, 5)) == paper.OPEN
    assert paper.verdict(Interval(0.2, 0.1, 0.3, 5), limit=0.15) == paper.OPEN


def test_claims_are_rows_of_a_table_and_sentences() -> None:
    claim = Claim("It is fair", "NBA", "yes", "no", paper.FAILS)
    table = paper.claims_table([claim])
    assert table.rows == [["It is fair", "NBA", "yes", "no", "does not hold"]]
    assert table.claims == (claim,)
    assert str(claim) == "- It is fair (NBA): does not hold. Ours: no; the paper: yes."
