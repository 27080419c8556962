"""Charts of a report: decisions by group, changed decisions, the trade-off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairmp.metrics import Interval
from fairmp.report.figures import COLOURS, bars, errorbar, figure, keep_possible
from fairmp.report.formatting import is_known, wilson_interval
from fairmp.report.topology import shorten

INK, BEFORE, AFTER, CHOSEN = "#1b1f24", "#6b7580", COLOURS[0], COLOURS[1]
MAX_GROUPS = 12
STYLES: dict[str, dict[str, Any]] = {
    "before": {"facecolor": "white", "edgecolor": BEFORE, "hatch": "////"},
    "after": {"facecolor": AFTER},
}
POINTS: dict[str, dict[str, Any]] = {
    "chosen": {"color": CHOSEN, "marker": "*", "markersize": 19, "zorder": 5},
    "before": {"color": BEFORE, "marker": "s", "markersize": 9, "zorder": 4},
}
MARKER: dict[str, Any] = {
    "linestyle": "none",
    "markeredgecolor": "white",
    "markeredgewidth": 0.8,
    "elinewidth": 1.1,
    "capsize": 3,
}
ERRORS = {"ecolor": INK, "elinewidth": 1.2, "capsize": 3}


def group_bars(document: Mapping[str, Any], classes: Sequence[int]) -> Any:
    """Share of each class's decisions by group, before and after; one panel per class."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    groups = _largest(document["groups"])
    noun, names = document.get("noun", "people"), document["classes"]
    both = any(group.get("before") for group in groups)
    height = 0.9 + len(groups) * (0.62 if both else 0.42) + 0.35 * both
    fig = Figure(figsize=(8.2, height), layout="constrained")
    panels = fig.subplots(1, len(classes), sharey=True, squeeze=False)[0]
    for axes, c in zip(panels, classes, strict=True):
        _label_groups(axes, groups)
        for when, offset in (("before", 0.2), ("after", -0.2 * both)):
            intervals = {}
            for place, group in enumerate(reversed(groups)):
                share, n = (group.get(when) or {c: None})[c], group["nodes"]
                if is_known(share):
                    ends = wilson_interval(share * n, n)
                    intervals[place + offset] = Interval(share, *ends, n)
            shares, errors = [100 * i.mean for i in intervals.values()], bars([*intervals.values()])
            style = {"height": 0.36, "xerr": errors, "error_kw": ERRORS, **STYLES[when]}
            drawn = axes.barh(list(intervals), shares, **style)
            axes.bar_label(drawn, fmt="%.1f", padding=4, fontsize=9, color=INK)
        axes.set_xlim(0, 100)
        name = repr(shorten(str(names[c])))
        axes.set_xlabel(f"decided {name}, of 100 {noun}" if len(classes) < 3 else f"{name}, of 100")
    if both:
        handles = [Patch(label=when, **style) for when, style in STYLES.items()]
        fig.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return fig


def changes(groups: Sequence[Mapping[str, Any]], classes: Sequence[str], noun: str) -> Any:
    """Changed decisions per 100 nodes of each group.

    For two classes, changes to the second point right and changes to the first left, if known.
    """
    groups = _largest(groups)
    fig, axes = figure(8.2, 1.0 + 0.42 * len(groups))
    _label_groups(axes, groups)
    two = len(classes) == 2 and all("moves" in group for group in groups)
    widest = 0.8
    for sign, style in ((1, {"color": AFTER}), (-1, {"color": CHOSEN, "hatch": "...."}))[: 1 + two]:
        shares = []
        for group in reversed(groups):
            moves = group.get("moves", [[0, 1, group.get("changed") or 0]])
            count = sum(m[2] for m in moves if not two or (m[1] - m[0]) * sign > 0)
            shares.append(100 * count / max(group["nodes"], 1))
        widths = [sign * share for share in shares]
        drawn = axes.barh(range(len(groups)), widths, height=0.5, edgecolor="white", **style)
        labels = [f"{share:.1f}" if share else "" for share in shares]
        axes.bar_label(drawn, labels, padding=4, fontsize=9)
        widest = max(widest, *shares)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xlim(-1.25 * widest if two else 0, 1.25 * widest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    label = f"decisions changed, of 100 {noun} of the group"
    if two:
        one, other = (shorten(str(name)) for name in classes)
        label = f"← now {one!r}, of 100 {noun} of the group, now {other!r} →"
    axes.set_xlabel(label)
    return fig


def curve(document: Mapping[str, Any]) -> Any:
    """Accuracy against the gap: the curve, the point before, and the chosen point."""
    fig, axes = figure(8.2, 4.4)
    line = [p for p in document.get("curve", []) if is_known(p["gap"] + p["accuracy"])]
    if line:
        gaps, accuracies = ([100 * p[key] for p in line] for key in ("gap", "accuracy"))
        line_style = {"color": "#56B4E9", "marker": "o", "markersize": 4.5, "linewidth": 1.8}
        axes.plot(gaps, accuracies, zorder=2, label="post-processed to each gap", **line_style)
    others = zip(COLOURS[2:] + COLOURS[2:], "^DvPXhps<>8d", strict=True)
    found = document.get("points", [])
    for point in found:
        style = POINTS.get(point.get("kind", "other"))
        if style is None:
            colour, marker = next(others, (BEFORE, "o"))
            style = {"color": colour, "marker": marker, "markersize": 8, "zorder": 3}
        gap, accuracy = ([_interval(point, key)] for key in ("gap", "accuracy"))
        errorbar(axes, gap, accuracy, {"label": point["name"], **MARKER, **style})
    target = document.get("target")
    if target is not None and target > 0:
        label = f"target: at most {100 * target:g} points"
        axes.axvline(100 * target, color=INK, linewidth=1, linestyle=":", label=label)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    keep_possible(axes)
    axes.set_xlabel(f"{document.get('gap', 'ΔDP')}: gap between the groups (points)")
    axes.set_ylabel("accuracy (%)")
    beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    where = {"loc": "best"} if len(found) < 5 else beside
    axes.legend(frameon=False, fontsize=9, **where)
    return fig


def _interval(point: Mapping[str, Any], key: str) -> Interval:
    low, high = point.get(f"{key}_interval") or (math.nan, math.nan)
    known = is_known(low) and is_known(high)
    return Interval(point[key], low if known else math.nan, high if known else math.nan, 2)


def _largest(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The largest groups, in their order, if there are too many for a chart."""
    least = sorted((group["nodes"] for group in groups), reverse=True)[:MAX_GROUPS][-1]
    return [group for group in groups if group["nodes"] >= least][:MAX_GROUPS]


def _label_groups(axes: Any, groups: Sequence[Mapping[str, Any]]) -> None:
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks(range(len(groups)))
    axes.set_yticklabels([shorten(str(group["name"])) for group in reversed(groups)])
