"""Charts of a report: decisions by group, changed decisions, the trade-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmp.report.figures import COLOURS, figure, keep_possible
from fairmp.report.formatting import is_known, wilson_interval
from fairmp.report.topology import shorten

BEFORE, AFTER, CHOSEN = "#6b7580", COLOURS[0], COLOURS[1]
MAX_GROUPS = 12


def group_bars(document: Mapping[str, Any], classes: Sequence[int]) -> Any:
    """Share of each class's decisions by group, before and after; one panel per class."""
    from matplotlib.figure import Figure

    groups = _largest(document["groups"])
    noun, names = document.get("noun", "people"), document["classes"]
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
        name = repr(shorten(str(names[c])))
        axes.set_xlabel(f"decided {name}, of 100 {noun}" if len(classes) < 3 else f"{name}, of 100")
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
    if not rates or not is_known(rates[c]):
        return
    share = rates[c]
    low, high = wilson_interval(share * group["nodes"], group["nodes"])
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
    """Changed decisions per 100 nodes of each group.

    For two classes, changes to the second point right and changes to the first left, if known.
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


def curve(document: Mapping[str, Any]) -> Any:
    """Accuracy against the gap: the curve, the point before, and the chosen point."""
    fig, axes = figure(8.2, 4.4)
    line = [
        point for point in document.get("curve", []) if is_known(point["gap"] + point["accuracy"])
    ]
    if line:
        axes.plot(
            [100 * point["gap"] for point in line],
            [100 * point["accuracy"] for point in line],
            color="#56B4E9",
            marker="o",
            markersize=4.5,
            linewidth=1.8,
            label="post-processed to each gap",
            zorder=2,
        )
    others = zip(COLOURS[2:] + COLOURS[2:], "^DvPXhps<>8d", strict=True)
    for point in document.get("points", []):
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
    target = document.get("target")
    if target is not None and target > 0:
        label = f"target: at most {100 * target:g} points"
        axes.axvline(100 * target, color="#1b1f24", linewidth=1, linestyle=":", label=label)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    keep_possible(axes)
    axes.set_xlabel(f"{document.get('gap', 'ΔDP')}: gap between the groups (points)")
    axes.set_ylabel("accuracy (%)")
    few = len(document.get("points", [])) < 5
    where = {"loc": "best"} if few else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(frameon=False, fontsize=9, **where)
    return fig


def _error(value: float, ends: Sequence[float | None] | None) -> list[list[float]] | None:
    if ends is None or not all(is_known(end) for end in ends):
        return None
    low, high = max(0.0, ends[0] or 0.0), min(1.0, ends[1] or 0.0)
    return [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]


def _largest(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The largest groups, in their order, if there are too many for a chart."""
    least = sorted((group["nodes"] for group in groups), reverse=True)[:MAX_GROUPS][-1]
    return [group for group in groups if group["nodes"] >= least][:MAX_GROUPS]


def _plain(axes: Any) -> None:
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
