"""A gate for releases: the exit status tells whether a gap is small enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import typer

from fairmp.cli.options import panel
from fairmp.errors import check_choice, check_number

CRITERIA = ("demographic-parity", "equal-opportunity", "equalized-odds")
STATUS = 3
ROUNDING = 1e-9
_option = panel("A gate for releases")


@dataclass(frozen=True)
class Gap:
    """A gap of decisions (nan if it cannot be measured) and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None

    @classmethod
    def of_evaluation(cls, figures: Mapping[str, Any] | None, criterion: str) -> Gap:
        """The gap of a criterion in the figures of an evaluation, if there is one."""
        from fairmp.metrics.evaluation import CRITERIA as KEYS
        from fairmp.metrics.evaluation import canonical

        name = canonical(criterion)
        figures = figures or {}
        estimate, interval = figures.get(KEYS[name]), figures.get("intervals", {}).get(KEYS[name])
        return cls(
            name.replace("_", " "),
            nan if estimate is None else float(estimate),
            None if interval is None or None in interval else interval,
        )


@dataclass(frozen=True)
class Gate:
    """The largest gap that passes."""

    fail_over: float | None = _option(
        "Exit with status 3 if the gap of decisions exceeds this, 0.02 for two points."
    )
    fail_on: str = _option(
        "What must not exceed it: the estimate, or the upper-bound of its interval.", "estimate"
    )

    def __post_init__(self) -> None:
        check_choice("--fail-on", self.fail_on, ("estimate", "upper-bound"))
        if self.fail_over is not None:
            hint = "give the largest gap that passes, 0.02 for two points"
            check_number("--fail-over", self.fail_over, hint, low=0, high=1)

    def check(self, *gaps: Gap) -> None:
        """Print one line and exit with status 3 if some gap exceeds the limit or is unknown."""
        if self.fail_over is None:
            return
        for gap in gaps:
            problem = self._problem(gap, self.fail_over)
            if problem is not None:
                typer.echo(f"fairmp: the gap of {gap.name} {problem}", err=True)
                raise typer.Exit(STATUS)

    def _problem(self, gap: Gap, limit: float) -> str | None:
        """Why a gap does not pass, if it does not."""
        low, high = gap.interval or (nan, nan)
        value = high if self.fail_on == "upper-bound" else gap.estimate
        if value <= limit + ROUNDING:
            return None
        option = f"--fail-over {limit:g} ({100 * limit:g} points)"
        if isnan(gap.estimate):
            return f"cannot be measured here, as {option} needs"
        measured = f"is {100 * gap.estimate:.1f} points"
        if isnan(value):
            return f"{measured} and has no upper bound, as {option} needs"
        if not isnan(high):
            measured += f", 95 % interval {100 * low:.1f} to {100 * high:.1f}"
        return f"{measured}: over {option}"


@dataclass(frozen=True)
class CriterionGate(Gate):
    """The same with a criterion, for commands that have no such option of their own."""

    criterion: str = _option(f"Its criterion: {', '.join(CRITERIA)}.", CRITERIA[0])

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("--criterion", self.criterion, CRITERIA)
