"""The charts of a report: groups with intervals, the trade-off curve, decisions that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmp.report.figures import COLOURS, figure, keep_possible
from fairmp.report.formatting import known, wilson
from fairmp.report.topology import shorten

BEFORE, AFTER, CHOSEN = "#6b7580", COLOURS[0], COLOURS[1]
_MOST = 12


def group_bars(story: Mapping[str, Any], classes: Sequence[int]) -> Any:
    """Draw the share decided for some classes, a bar a group, before and after, with intervals.

    Args:
        story: a :class:`fairmp.report.document.Story` with ``groups``.
        classes: which classes to show, a panel each.
    """
    from matplotlib.figure import Figure

    groups = _largest(story["groups"])
    noun, names = story.get("noun", "people"), story["classes"]
    both = any(group.get("before") for group in groups)
    height = 0.9 + len(groups) * (0.62 if both else 0.42) + 0.35 * both
    fig = Figure(figsize=(8.2, height), layout="constrained")
    panels = fig.subplots(1, len(classes), sharey=True, squeeze=False)[0]
    for axes, c in zip(panels, classes, strict=True):
        _plain(axes)
        for k, group in enumerate(groups):
            place = len(groups) - 1 - k
            if both:
                _bar(axes, place + 0.2, group, "before", c)
            _bar(axes, place - 0.2 * both, group, "after", c)
        axes.set_xlim(0, 100)
        axes.set_yticks(range(len(groups)))
        axes.set_yticklabels([shorten(str(g["name"])) for g in reversed(groups)])
        axes.set_xlabel(
            f"decided {shorten(str(names[c]))!r}, of 100 {noun}"
            if len(classes) < 3
            else f"{shorten(str(names[c]))!r}, of 100"
        )
    if both:
        from matplotlib.patches import Patch

        handles = [
            Patch(facecolor="white", edgecolor=BEFORE, hatch="////", label="before"),
            Patch(facecolor=AFTER, label="after"),
        ]
        fig.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return fig


def _bar(axes: Any, place: float, group: Mapping[str, Any], when: str, c: int) -> None:
    rates = group.get(when)
    if not rates or not known(rates[c]):
        return
    share = rates[c]
    low, high = wilson(share * group["nodes"], group["nodes"])
    style: dict[str, Any] = {"color": AFTER}
    if when == "before":
        style = {"facecolor": "white", "edgecolor": BEFORE, "hatch": "////"}
    axes.barh(place, 100 * share, height=0.36, **style)
    axes.errorbar(
        100 * share,
        place,
        xerr=[[100 * max(0.0, share - low)], [100 * max(0.0, high - share)]],
        fmt="none",
        ecolor="#1b1f24",
        elinewidth=1.2,
        capsize=3,
    )
    axes.annotate(
        f"{100 * share:.1f}",
        (100 * high, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color="#1b1f24",
        annotation_clip=False,
    )


def changes(groups: Sequence[Mapping[str, Any]], classes: Sequence[str], noun: str) -> Any:
    """Draw the decisions that changed, a bar a group, of 100 of it.

    For two classes those towards the second point right and those away from it left, where that
    is known.
    """
    groups = _largest(groups)
    fig, axes = figure(8.2, 1.0 + 0.42 * len(groups))
    _plain(axes)
    two = len(classes) == 2 and all("moves" in group for group in groups)
    widest = 0.0
    for k, group in enumerate(groups):
        place, n = len(groups) - 1 - k, max(group["nodes"], 1)
        moves = group.get("moves", [[0, 1, group.get("changed") or 0]])
        towards = sum(m[2] for m in moves if not two or m[1] > m[0]) / n
        away = sum(m[2] for m in moves if two and m[1] < m[0]) / n
        widest = max(widest, 100 * towards, 100 * away)
        for share, sign, colour in ((towards, 1, AFTER), (away, -1, CHOSEN)):
            if not share:
                continue
            hatch = "" if sign > 0 else "...."
            axes.barh(
                place, sign * 100 * share, height=0.5, color=colour, hatch=hatch, edgecolor="white"
            )
            axes.annotate(
                f"{100 * share:.1f}",
                (sign * 100 * share, place),
                xytext=(5 * sign, 0),
                textcoords="offset points",
                va="center",
                ha="left" if sign > 0 else "right",
                fontsize=9,
            )
    axes.axvline(0, color="#1b1f24", linewidth=0.8)
    widest = max(1.0, 1.25 * widest)
    axes.set_xlim(-widest if two else 0, widest)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set_yticks(range(len(groups)))
    axes.set_yticklabels([shorten(str(group["name"])) for group in reversed(groups)])
    label = f"decisions changed, of 100 {noun} of the group"
    if two:
        one, other = (shorten(str(name)) for name in classes)
        label = f"← now {one!r}, of 100 {noun} of the group, now {other!r} →"
    axes.set_xlabel(label)
    return fig


def curve(story: Mapping[str, Any]) -> Any:
    """Draw accuracy against the gap: the curve, what there was before, and the chosen point."""
    fig, axes = figure(8.2, 4.4)
    line = [point for point in story.get("curve", []) if known(point["gap"] + point["accuracy"])]
    if line:
        axes.plot(
            [100 * point["gap"] for point in line],
            [100 * point["accuracy"] for point in line],
            color="#56B4E9",
            marker="o",
            markersize=4.5,
            linewidth=1.8,
            label=story.get("curve_name", "what mending to each gap costs"),
            zorder=2,
        )
    others = iter(
        (colour, marker)
        for colour, marker in zip(COLOURS[2:] + COLOURS[2:], "^DvPXhps<>8d", strict=True)
    )
    for point in story.get("points", []):
        kind = point.get("kind", "other")
        if kind == "chosen":
            style = {"color": CHOSEN, "marker": "*", "markersize": 19, "zorder": 5}
        elif kind == "before":
            style = {"color": BEFORE, "marker": "s", "markersize": 9, "zorder": 4}
        else:
            colour, marker = next(others, (BEFORE, "o"))
            style = {"color": colour, "marker": marker, "markersize": 8, "zorder": 3}
        axes.errorbar(
            100 * point["gap"],
            100 * point["accuracy"],
            xerr=_error(point["gap"], point.get("gap_interval")),
            yerr=_error(point["accuracy"], point.get("accuracy_interval")),
            linestyle="none",
            markeredgecolor="white",
            markeredgewidth=0.8,
            elinewidth=1.1,
            capsize=3,
            label=point["name"],
            **style,
        )
    target = story.get("target")
    if target is not None and target > 0:
        told = f"asked for: at most {100 * target:g} points"
        axes.axvline(100 * target, color="#1b1f24", linewidth=1, linestyle=":", label=told)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    keep_possible(axes)
    axes.set_xlabel(f"{story.get('gap', 'ΔDP')}: gap between the groups (points)")
    axes.set_ylabel("right decisions (accuracy, %)")
    few = len(story.get("points", [])) < 5
    where = {"loc": "best"} if few else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(frameon=False, fontsize=9, **where)
    return fig


def _error(value: float, ends: Sequence[float | None] | None) -> list[list[float]] | None:
    if ends is None or not all(known(end) for end in ends):
        return None
    low, high = max(0.0, ends[0] or 0.0), min(1.0, ends[1] or 0.0)
    return [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]


def _largest(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The largest groups, in their own order, where there are more than fit a chart."""
    if len(groups) <= _MOST:
        return list(groups)
    least = sorted((group["nodes"] for group in groups), reverse=True)[_MOST - 1]
    return [group for group in groups if group["nodes"] >= least][:_MOST]


def _plain(axes: Any) -> None:
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
