"""A gate for releases: fail if the gap between groups is too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from fairmp.cli.options import Gate

if TYPE_CHECKING:
    from fairmp.analysis.audits import Audit

STATUS = 3
ROUNDING = 1e-9


class Gap(NamedTuple):
    """A gap of decisions and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None


def check(gate: Gate, gaps: Iterable[Gap]) -> None:
    """Print one line and exit with status 3 if some gap exceeds the limit or is unknown."""
    if gate.fail_over is None:
        return
    for name, estimate, interval in gaps:
        low, high = interval or (nan, nan)
        value = high if gate.on == "upper-bound" else estimate
        if value <= gate.fail_over + ROUNDING:
            continue
        limit = f"--fail-over {gate.fail_over:g} ({100 * gate.fail_over:g} points)"
        if isnan(estimate):
            measured = f"cannot be measured here, as {limit} needs"
        elif isnan(value):
            measured = f"is {100 * estimate:.1f} points and has no upper bound, as {limit} needs"
        else:
            ends = "" if isnan(high) else f", 95 % interval {100 * low:.1f} to {100 * high:.1f}"
            measured = f"is {100 * estimate:.1f} points{ends}: over {limit}"
        typer.echo(f"fairmp: the gap of {name} {measured}", err=True)
        raise typer.Exit(STATUS)


def of_evaluation(figures: Mapping[str, Any] | None, criterion: str) -> Gap:
    """The gap of a criterion in the figures of an evaluation."""
    from fairmp.metrics.evaluation import CRITERIA
    from fairmp.postprocessing.criteria import canonical

    name = canonical(criterion)
    key, found = CRITERIA[name], figures or {}
    estimate, interval = found.get(key), found.get("intervals", {}).get(key)
    ends = None if interval is None or None in interval else interval
    return Gap(name.replace("_", " "), nan if estimate is None else float(estimate), ends)


def of_labels(audit: Audit) -> Gap:
    """The gap of the labels themselves, which a perfect classifier would have."""
    import numpy as np

    from fairmp.metrics.counts import gap_interval, rate_range

    known = [g for g in audit.groups if g.share is not None and g.base_rates is not None]
    if len(known) < 2:
        return Gap("the labels", nan, None)
    used = slice(1, 2) if len(audit.classes) == 2 else slice(None)
    rates = np.array([g.base_rates for g in known])[:, used]
    sizes = np.broadcast_to(np.array([[g.labelled] for g in known], dtype=float), rates.shape)
    return Gap("the labels", float(rate_range(rates).max()), gap_interval(rates, sizes))
