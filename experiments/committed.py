"""The records under ``benchmarks/results``, and their figures as text."""

from __future__ import annotations

import gzip
import json
import math
from functools import cache
from typing import Any

from experiments import RESULTS
from fairmp.comparison import Record
from fairmp.metrics import Interval

FIGURES = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO"}
TITLES = {
    "nba": "NBA",
    "german": "German",
    "pokec-province": "Pokec province",
    "bail": "Bail",
    "credit": "Credit",
    "facebook100": "Facebook100",
    "pokec-n-graph": "Pokec-n, 3 features",
}
SPLITS = range(20, 30)  # of the records, on which no candidate and no setting was chosen


@cache
def runs(name: str) -> tuple[Record, ...]:
    """Runs of ``compare/NAME.jsonl.gz`` that did not fail; none if there is no such file."""
    path = RESULTS / "compare" / f"{name}.jsonl.gz"
    if not path.exists():
        return ()
    with gzip.open(path, "rt", encoding="utf8") as file:
        records = [json.loads(line) for line in file]
    return tuple(record for record in records if "failed" not in record)


def exists(name: str) -> bool:
    """Whether a benchmark has a record."""
    return (RESULTS / f"{name}.json").exists()


@cache
def read(name: str) -> Any:
    """The record of one benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf8"))


def cell(value: Interval) -> str:
    """An interval in points, with a second digit where it is small."""
    digits = 1 if 100 * value.mean >= 2 or math.isnan(value.mean) else 2
    text = f"{100 * value.mean:.{digits}f}"
    if math.isnan(value.low):
        return text
    if value.n < 5:
        return f"{text} [{100 * value.low:.{digits}f}, {100 * value.high:.{digits}f}]"
    return f"{text} ± {50 * (value.high - value.low):.{digits}f}"


def points(mean: float, half: float) -> str:
    """A mean and the half width of its interval, in points."""
    digits = 1 if 100 * mean >= 10 else 2
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"
