"""Figures printed in the paper, and verdicts on its claims.

``printed.json`` has the figures: percent, mean and standard deviation of five runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

import pandas as pd

from experiments.grids import paper_key
from fairmp.comparison import Record
from fairmp.comparison.summary import results
from fairmp.metrics import Interval
from fairmp.report.formats import Table

HOLDS, FAILS, OPEN, UNJUDGED = "holds", "does not hold", "undecided", "too few runs to judge"
VERDICTS = (
    "Verdicts are on differences within splits: a claim holds, or does not, where the 95 % "
    "interval of the mean difference says so (with fewer than five splits, every split)."
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper on one data set: what it printed, what we measured, and a verdict."""

    text: str
    data: str
    printed: str
    ours: str
    verdict: str

    def __str__(self) -> str:
        return (
            f"- {self.text} ({self.data}): {self.verdict}. "
            f"Ours: {self.ours}; the paper: {self.printed}."
        )


@dataclass(frozen=True)
class Claims(Table):
    """A table of claims; on a terminal they are sentences, which are too long for columns."""

    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class DataRuns:
    """The runs on one data set."""

    key: str  # its name in the paper
    title: str
    runs: pd.DataFrame


def claims_table(claims: Iterable[Claim]) -> Claims:
    """One row per claim and data set."""
    claims = tuple(claims)
    header = ["claim", "data set", "paper", "ours", "verdict"]
    return Claims(
        "The paper's claims", header, [list(astuple(claim)) for claim in claims], claims=claims
    )


def verdict(difference: Interval, limit: float = 0.0) -> str:
    """Verdict on "the difference is above the limit".

    Example:
        >>> verdict(Interval(0.3, 0.1, 0.5, 5)), verdict(Interval(0.3, math.nan, math.nan, 1))
        ('holds', 'too few runs to judge')
    """
    if math.isnan(difference.low):
        return UNJUDGED
    if difference.low > limit:
        return HOLDS
    return FAILS if difference.high < limit else OPEN


def by_data(records: Sequence[Record]) -> Iterator[DataRuns]:
    """Group the runs that did not fail by data set."""
    for data, runs in results(records).groupby("data", sort=False):
        yield DataRuns(paper_key(str(data)), str(runs["dataset"].iloc[0]), runs)
