"""Gaps that a gate for releases checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fairmp.analysis.audits import Audit


class Gap(NamedTuple):
    """A gap of decisions and its 95 % interval, as fractions."""

    name: str
    estimate: float
    interval: Sequence[float] | None


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
