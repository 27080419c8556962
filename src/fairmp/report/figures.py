"""Figures and charts, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fairmp.errors import InputError
from fairmp.metrics import Interval, mean_interval
from fairmp.metrics.evaluation import AFTER, BEFORE, INK, plot_rates
from fairmp.report.formats import MIN_SPLITS, Line, is_known, shorten

# Okabe and Ito's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
CHOSEN = COLOURS[1]
MAX_GROUPS = 12
THEME = {
    "#000000": "--ink",
    INK: "--ink",
    "#555555": "--soft",
    BEFORE: "--before",
    "#dddddd": "--line",
    "#ffffff": "--paper",
}
NARROW = 5.2  # width in inches of the report's charts: text stays legible on a phone
POINTS: dict[str, dict[str, Any]] = {
    "chosen": {"color": CHOSEN, "marker": "*", "markersize": 19, "zorder": 5},
    "before": {"color": BEFORE, "marker": "s", "markersize": 9, "zorder": 4},
}
MARKER: dict[str, Any] = {"ls": "none", "mec": "white", "mew": 0.8, "elinewidth": 1.1, "capsize": 3}


def figure(width: float = 7.0, height: float = 4.4, **layout: Any) -> tuple[Any, Any]:
    """Empty figure with the axes of ``subplots(**layout)``, which needs no display."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    found = fig.subplots(**layout)
    for axes in np.ravel(found):
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return fig, found


def tradeoff(lines: Sequence[Line], title: str = "") -> Any:
    """Accuracy against ΔDP, one point per method, with intervals over splits."""
    return curves({line.name: [line] for line in lines}, title)


def curves(
    families: Mapping[str, Sequence[Line]],
    title: str = "",
    *,
    styles: Mapping[str, tuple[int, int]] | None = None,
) -> Any:
    """Accuracy against ΔDP, one line per family of methods.

    A family's band is the interval of its accuracy over splits; one with a single point has error
    bars. The dashed line is the Pareto front of all points. ``styles`` has the index of the colour
    and of the marker of each family; by default all are different.
    """
    # Columns of the legend below the axes; a letter takes about 0.06 inches.
    columns = max(1, int(6.6 / (0.5 + 0.06 * max(map(len, families), default=1))))
    fig, axes = figure(6.6, 4.2 + 0.19 * math.ceil(len(families) / columns))
    styles = styles or {name: (i, i) for i, name in enumerate(families)}
    single = all(len(lines) == 1 for lines in families.values())
    reached: list[tuple[float, float]] = []
    for name, lines in families.items():
        pairs = [(line.figures["dp"], line.figures["accuracy"]) for line in lines]
        pairs = [(dp, acc) for dp, acc in pairs if not math.isnan(dp.mean + acc.mean)]
        if not pairs:
            continue
        reached += [(accuracy.mean, dp.mean) for dp, accuracy in pairs]
        colour, marker = (index % len(COLOURS) for index in styles[name])
        style: Any = {"color": COLOURS[colour], "marker": MARKERS[marker], "label": name}
        if len(pairs) == 1:
            errorbar(axes, pairs, {**style, "markersize": 8, "elinewidth": 1, "capsize": 2})
            continue
        x, y = (np.array([100 * i.mean for i in side]) for side in zip(*pairs, strict=True))
        axes.plot(x, y, markersize=5, linewidth=1.8, **style)
        order, half = np.argsort(x), bars([accuracy for _, accuracy in pairs])
        band = (y - half[0])[order], (y + half[1])[order]
        axes.fill_between(x[order], *band, color=style["color"], alpha=0.12, linewidth=0)
    best = front(reached)
    corners = [100 * dp for _, dp in best], [100 * accuracy for accuracy, _ in best]
    axes.step(*corners, "--", where="post", color="#555555", linewidth=0.9, zorder=1)
    if reached and not single:  # wide bands must not press the lines together
        accuracies = [100 * accuracy for accuracy, _ in reached]
        room = max(1.0, 0.12 * (max(accuracies) - min(accuracies)))
        axes.set_ylim(min(accuracies) - room, max(accuracies) + room)
    label_tradeoff(axes, "ΔDP on the test nodes (points)", "accuracy on the test nodes (%)")
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    fig.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=columns)
    return fig


Point: TypeAlias = tuple[float, float]
"""Accuracy (more is better) and ΔDP (less is better), as fractions."""


def front(points: Iterable[Point]) -> list[Point]:
    """Pareto-optimal points, from the fairest to the most accurate; ``nan`` is dropped."""
    known = {point for point in points if not any(map(math.isnan, point))}
    kept: list[Point] = []
    for accuracy, dp in sorted(known, key=lambda point: (point[1], -point[0])):
        if not kept or accuracy > kept[-1][0]:
            kept.append((accuracy, dp))
    return kept


def hypervolume(points: Iterable[Point], reference: Point = (0.0, 1.0)) -> float:
    r"""Area dominated by points, as a share of the largest possible area.

    .. math::
        \frac{\left|\bigcup_i [a_0, a_i] × [d_i, d_0]\right|}{(1 - a_0)\, d_0}

    In a comparison the reference :math:`(a_0, d_0)` is the accuracy of a constant prediction and 1.
    """
    floor, ceiling = reference
    if not (0 <= floor < 1 and 0 < ceiling <= 1):
        problem = f"{reference} is not an accuracy in [0, 1) and a gap in (0, 1]"
        raise InputError("reference", problem, "give (0.0, 1.0)")
    area, below = 0.0, floor
    for accuracy, dp in front(points):
        if accuracy > below and dp < ceiling:
            area += (accuracy - below) * (ceiling - dp)
            below = accuracy
    return area / ((1 - floor) * ceiling)


def over_splits(records: Sequence[Mapping[str, Any]]) -> Interval:
    """Hypervolume of a family of methods on one data set, with a 95 % jackknife interval.

    Points are means over splits, one per strength: maxima over single splits would be biased.
    """
    splits = sorted({record["split"] for record in records})
    n, overall = len(splits), _of_means(records)
    if n < MIN_SPLITS:
        return Interval(overall, math.nan, math.nan, n)
    without = [_of_means([r for r in records if r["split"] != out]) for out in splits]
    spread = mean_interval([n * overall - (n - 1) * value for value in without])
    half = (spread.high - spread.low) / 2
    return Interval(overall, overall - half, overall + half, n)


def _of_means(records: Sequence[Mapping[str, Any]]) -> float:
    import pandas as pd

    rows = [{**record, **record["run"]["test"]} for record in records]
    frame = pd.DataFrame(rows, columns=["strength", "accuracy", "dp", "majority"], dtype=float)
    means = frame.groupby("strength", dropna=False)[["accuracy", "dp"]].mean()
    floor = float(frame["majority"].mean())
    points = list(means.itertuples(index=False, name=None))
    return hypervolume(points, (floor, 1.0)) if points and floor < 1 else math.nan


def errorbar(axes: Any, pairs: Sequence[tuple[Interval, Interval]], style: Any) -> None:
    """Draw pairs of intervals, x and y, in points."""
    x, y = zip(*pairs, strict=True)
    means = ([100 * interval.mean for interval in side] for side in (x, y))
    axes.errorbar(*means, xerr=bars(x), yerr=bars(y), **style)


def series(axes: Any, x: Sequence[float], y: Sequence[Interval], k: int, label: str) -> None:
    """Draw means against numbers, in points, with a band for the intervals, in colour number k."""
    style: Any = {"color": COLOURS[k], "marker": MARKERS[k], "markersize": 5, "linewidth": 1.8}
    means, (below, above) = np.array([100 * interval.mean for interval in y]), bars(y)
    axes.plot(x, means, label=label, **style)
    axes.fill_between(x, means - below, means + above, color=COLOURS[k], alpha=0.12, linewidth=0)


def bars(intervals: Sequence[Interval]) -> Any:
    """Lengths of error bars below and above the means (2×n), in points, clipped to [0, 100]."""
    mean, low, high = np.array([interval[:3] for interval in intervals]).reshape(-1, 3).T
    lengths = np.stack([mean - np.maximum(low, 0), np.minimum(high, 1) - mean])
    return 100 * np.nan_to_num(np.maximum(lengths, 0))


def label_tradeoff(axes: Any, x: str, y: str) -> None:
    """Label the axes of a trade-off, and limit them to what is possible."""
    axes.set(xlim=(min(0.0, axes.get_xlim()[0]), None), xlabel=x, ylabel=y)
    keep_possible(axes)


def keep_possible(axes: Any, which: str = "xy") -> None:
    """Clip axes of shares in points to [0, 100], with room for a marker."""
    for name in which:
        low, high = getattr(axes, f"get_{name}lim")()
        room = 0.03 * (min(high, 100.0) - max(low, 0.0))
        getattr(axes, f"set_{name}lim")(max(low, -room), min(high, 100.0 + room))


def to_svg(fig: Any) -> str:
    """Figure as SVG markup for a page; deterministic."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fairmp", "svg.fonttype": "none"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    # A neutral colour is a variable of the page, which has a dark form.
    for colour, name in THEME.items():
        text = re.sub(rf"(fill|stroke): {colour}", rf"\1: var({name}, {colour})", text)
    return text


def embedded(path: Path, alt: str) -> str:
    """PNG file as an image element for a page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def group_bars(document: Mapping[str, Any], classes: Sequence[int]) -> Any:
    """Share of each class's decisions by group, before and after; one panel per class."""
    groups = _largest(document["groups"])
    noun = document.get("noun", "people")
    both = any(group.get("before") for group in groups)
    height = 0.7 + len(groups) * (0.52 if both else 0.38)
    size = NARROW, len(classes) * height + 0.3 * both
    fig, panels = figure(*size, nrows=len(classes), squeeze=False)
    whens = ("before", "after") if both else ("after",)
    for axes, c in zip(panels[:, 0], classes, strict=True):
        shares = {w: [(group.get(w) or {c: None})[c] for group in groups] for w in whens}
        names = _label_groups(axes, groups)
        name = shorten(str(document["classes"][c]))
        label = f"decided {name!r}, of 100 {noun}"
        plot_rates(names, [group["nodes"] for group in groups], shares, label, axes)
    if both:
        where = {"loc": "outside upper right", "ncols": 2, "frameon": False, "fontsize": 9}
        fig.legend(*axes.get_legend_handles_labels(), **where)
    return fig


def changes(groups: Sequence[Mapping[str, Any]], classes: Sequence[str], noun: str) -> Any:
    """Changed decisions per 100 nodes of each group.

    For two classes, changes to the second point right and changes to the first left, if known.
    """
    groups = _largest(groups)
    fig, axes = figure(NARROW, 1.0 + 0.38 * len(groups))
    _label_groups(axes, groups)
    two = len(classes) == 2 and all("moves" in group for group in groups)
    widest = 0.8
    for sign, style in ((1, {"color": AFTER}), (-1, {"color": CHOSEN, "hatch": "...."}))[: 1 + two]:
        shares = []
        for group in groups:
            moves = group.get("moves", [[0, 1, group.get("changed") or 0]])
            count = sum(m[2] for m in moves if not two or (m[1] - m[0]) * sign > 0)
            shares.append(100 * count / max(group["nodes"], 1))
        widths = [sign * share for share in shares]
        drawn = axes.barh(range(len(groups)), widths, height=0.5, edgecolor="white", **style)
        labels = [f"{share:.1f}" if share else "" for share in shares]
        axes.bar_label(drawn, labels, padding=4, fontsize=9)
        widest = max(widest, *shares)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    label = f"decisions changed, of 100 {noun} of the group"
    if two:
        one, other = (shorten(str(name)) for name in classes)
        label = f"← now {one!r}, of 100 {noun} of the group, now {other!r} →"
    axes.set(xlim=(-1.25 * widest if two else 0, 1.25 * widest), xlabel=label)
    return fig


def curve(document: Mapping[str, Any]) -> Any:
    """Accuracy against the gap: the curve, the point before, and the chosen point."""
    fig, axes = figure(NARROW, 3.8)
    if trials := document.get("trials"):
        places = ([100 * p[key] for p in trials] for key in ("gap", "accuracy"))
        axes.scatter(*places, s=26, facecolors="white", edgecolors=BEFORE, label="trial")
    line = [p for p in document.get("curve", []) if is_known(p["gap"] + p["accuracy"])]
    if line:
        gaps, accuracies = ([100 * p[key] for p in line] for key in ("gap", "accuracy"))
        style: Any = {"color": "#56B4E9", "marker": "o", "markersize": 4.5, "linewidth": 1.8}
        label = document.get("curve_label", "post-processed to each gap")
        axes.plot(gaps, accuracies, zorder=2, label=label, **style)
    others = zip(COLOURS[2:] + COLOURS[2:], "^DvPXhps<>8d", strict=True)
    found = document.get("points", [])
    for point in found:
        style = POINTS.get(point.get("kind", "other")) or {"markersize": 8, "zorder": 3}
        if "color" not in style:
            style["color"], style["marker"] = next(others, (BEFORE, "o"))
        pair = _interval(point, "gap"), _interval(point, "accuracy")
        errorbar(axes, [pair], {"label": point["name"], **MARKER, **style})
    target = document.get("target")
    if target is not None and target > 0:
        label = f"target: at most {100 * target:g} points"
        axes.axvline(100 * target, color=INK, linewidth=1, linestyle=":", label=label)
    gap = document.get("gap", "ΔDP")
    label_tradeoff(axes, f"{gap}: gap between the groups (points)", "accuracy (%)")
    fig.set_size_inches(NARROW, 3.8 + 0.1 * len(found))
    fig.legend(frameon=False, fontsize=8.5, loc="outside lower left", ncols=2)
    return fig


def reliability(curves: Sequence[Mapping[str, Any]]) -> Any:
    """Observed frequency against predicted probability, one curve per group, with intervals."""
    fig, axes = figure(NARROW, 4.2)
    axes.plot([0, 100], [0, 100], "--", color="#555555", linewidth=1)
    keys = ("predicted", "observed", "low", "high")
    style = {"markersize": 6, "capsize": 2, "elinewidth": 0.8, "linewidth": 1.4}
    for colour, marker, curve in zip(COLOURS, MARKERS, curves, strict=False):
        x, y, low, high = 100 * np.array([curve[key] for key in keys], dtype=float)
        own: Any = {"color": colour, "marker": marker, "label": shorten(str(curve["group"]))}
        axes.errorbar(x, y, yerr=np.maximum([y - low, high - y], 0), **own, **style)
    axes.set(xlim=(-2, 102), ylim=(-2, 102), aspect="equal")
    axes.set(xlabel="predicted probability, %", ylabel="observed frequency, %")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return fig


def _interval(point: Mapping[str, Any], key: str) -> Interval:
    ends = point.get(f"{key}_interval") or (math.nan, math.nan)
    low, high = ends if None not in ends else (math.nan, math.nan)
    return Interval(point[key], low, high, 2)


def _largest(groups: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The largest groups, in their order, if there are too many for a chart."""
    order = sorted(range(len(groups)), key=lambda k: -groups[k]["nodes"])
    return [groups[k] for k in sorted(order[:MAX_GROUPS])]


def _label_groups(axes: Any, groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Prepare axes for horizontal bars by group, from the top; return the names."""
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    names = [shorten(str(group["name"])) for group in groups]
    axes.set_yticks(range(len(groups)), names)
    axes.yaxis.set_inverted(True)
    return names
