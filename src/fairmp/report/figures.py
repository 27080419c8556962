"""Figures and charts, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.metrics import Interval
from fairmp.metrics.counts import wilson
from fairmp.metrics.pareto import front
from fairmp.report.formats import Line, is_known, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fairmp.report.content import Document, GroupSummary, Point, Reliability

INK, BEFORE, AFTER = "#1b1f24", "#6b7580", "#0072B2"
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
RATE_BARS: dict[str, dict[str, Any]] = {
    "before": {"facecolor": "white", "edgecolor": BEFORE, "hatch": "////"},
    "after": {"facecolor": AFTER},
}
RATE_INTERVALS = {"ecolor": INK, "elinewidth": 1.2, "capsize": 3}


def figure(
    width: float = 7.0, height: float = 4.4, *, interactive: bool = False, **layout: Any
) -> tuple[Figure, Any]:
    """Empty figure with the axes of ``subplots(**layout)``.

    An ``interactive`` one is pyplot's: notebooks display it, and ``plt.show()`` opens it. Others
    need no display.
    """
    if interactive:
        from matplotlib.pyplot import figure as new_figure
    else:
        from matplotlib.figure import Figure as new_figure
    fig: Figure = new_figure(figsize=(width, height), layout="constrained")
    panels = fig.subplots(**layout)
    for axes in np.ravel(panels):
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return fig, panels


def plot_rates(
    names: Sequence[str],
    sizes: Sequence[int],
    rates: Mapping[str, Sequence[float | None]],
    label: str,
    ax: Axes | None = None,
) -> Axes:
    """Draw rates by group, in per cent with 95 % intervals; return the axes.

    Args:
        names: of the groups.
        sizes: of the groups, in nodes.
        rates: of the groups, one series "before", "after" or both.
        label: of the axis.
        ax: axes to draw on; new ones by default.
    """
    if ax is None:
        ax = figure(5.5, 0.9 + 0.5 * len(names), interactive=True)[1]
    nodes = np.maximum(np.array(sizes, dtype=float), 1e-9)
    shares = {when: np.array(values, dtype=float) for when, values in rates.items()}
    intervals = {
        when: [
            Interval(mean, low, high, 2)
            for mean, low, high in zip(share, *wilson(share, nodes), strict=True)
        ]
        for when, share in shares.items()
    }
    plot_shares(names, intervals, label, ax)
    ax.set_xlim(0, 100)
    return ax


def plot_shares(
    names: Sequence[str], shares: Mapping[str, Sequence[Interval]], label: str, ax: Axes
) -> None:
    """Draw shares with their intervals in points, one series "before", "after" or both."""
    height = 0.8 / len(shares)
    for k, (when, intervals) in enumerate(shares.items()):
        drawn = ax.barh(
            np.arange(len(names)) + (k - (len(shares) - 1) / 2) * height,
            [100 * interval.mean for interval in intervals],
            0.9 * height,
            xerr=bars(intervals),
            label=when,
            error_kw=RATE_INTERVALS,
            **RATE_BARS[when],
        )
        ax.bar_label(drawn, fmt="%.1f", padding=4, fontsize=9, color=INK)
    ax.set_yticks(range(len(names)), names)
    ax.yaxis.set_inverted(True)
    ax.set_xlabel(label)


def tradeoff(lines: Sequence[Line], title: str = "") -> Figure:
    """Accuracy against ΔDP, one point per method, with intervals over splits.

    Example:
        >>> from fairmp.report import summarise
        >>> test = {"accuracy": 0.8, "dp": 0.1, "eo": 0.05, "auc": 0.9}
        >>> lines = summarise([{"name": "MLP", "run": {"test": test, "seconds": 1.0}}])
        >>> fig = tradeoff(lines, "NBA")
        >>> fig.axes[0].get_xlabel(), fig.axes[0].get_ylabel()
        ('ΔDP on the test nodes (points)', 'accuracy on the test nodes (%)')
    """
    return curves({line.name: [line] for line in lines}, title)


def curves(
    families: Mapping[str, Sequence[Line]],
    title: str = "",
    *,
    styles: Mapping[str, tuple[int, int]] | None = None,
) -> Figure:
    """Accuracy against ΔDP, one line per family of methods.

    A family's band is the interval of its accuracy over splits; one with a single point has error
    bars. The dashed line is the Pareto front of all points. ``styles`` has the index of the colour
    and of the marker of each family; by default all are different.
    """
    # Columns of the legend below the axes; a letter takes about 0.06 inches.
    columns = max(1, int(6.6 / (0.5 + 0.06 * max(map(len, families), default=1))))
    fig, axes = figure(6.6, 4.2 + 0.19 * math.ceil(len(families) / columns))
    styles = styles or {name: (i, i) for i, name in enumerate(families)}
    reached: list[tuple[float, float]] = []
    for name, lines in families.items():
        pairs = [(line.figures["dp"], line.figures["accuracy"]) for line in lines]
        pairs = [(dp, acc) for dp, acc in pairs if not math.isnan(dp.mean + acc.mean)]
        reached += [(accuracy.mean, dp.mean) for dp, accuracy in pairs]
        colour, marker = (index % len(COLOURS) for index in styles[name])
        style: Any = {"color": COLOURS[colour], "marker": MARKERS[marker], "label": name}
        if len(pairs) == 1:
            errorbar(axes, pairs, {**style, "markersize": 8, "elinewidth": 1, "capsize": 2})
        elif pairs:
            gaps, accuracies = zip(*pairs, strict=True)
            _line(axes, [100 * gap.mean for gap in gaps], accuracies, style)
    best = 100 * np.array(front(reached)).reshape(-1, 2)
    axes.step(best[:, 1], best[:, 0], "--", where="post", color="#555555", linewidth=0.9, zorder=1)
    if any(len(lines) != 1 for lines in families.values()) and reached:
        # Wide bands must not press the lines together.
        low, high = (100 * end(accuracy for accuracy, _ in reached) for end in (min, max))
        room = max(1.0, 0.12 * (high - low))
        axes.set_ylim(low - room, high + room)
    label_tradeoff(axes, "ΔDP on the test nodes (points)", "accuracy on the test nodes (%)")
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    fig.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=columns)
    return fig


def errorbar(axes: Axes, pairs: Sequence[tuple[Interval, Interval]], style: dict[str, Any]) -> None:
    """Draw pairs of intervals, x and y, in points."""
    x, y = zip(*pairs, strict=True)
    x_means, y_means = ([100 * interval.mean for interval in side] for side in (x, y))
    axes.errorbar(x_means, y_means, xerr=bars(x), yerr=bars(y), **style)


def series(axes: Axes, x: Sequence[float], y: Sequence[Interval], k: int, label: str) -> None:
    """Draw means against numbers, in points, with a band for the intervals, in colour number k."""
    _line(axes, x, y, {"color": COLOURS[k], "marker": MARKERS[k], "label": label})


def _line(axes: Axes, x: Sequence[float], y: Sequence[Interval], style: dict[str, Any]) -> None:
    means = np.array([100 * interval.mean for interval in y])
    low, high = bars(y) * [[-1], [1]] + means
    axes.plot(x, means, markersize=5, linewidth=1.8, **style)
    order = np.argsort(x)
    band = {"color": style["color"], "alpha": 0.12, "linewidth": 0}
    axes.fill_between(np.array(x)[order], low[order], high[order], **band)


def bars(intervals: Sequence[Interval]) -> np.ndarray:
    """Lengths of error bars below and above the means (2×n), in points, clipped to [0, 100]."""
    mean, low, high = np.array([interval[:3] for interval in intervals]).reshape(-1, 3).T
    lengths = np.stack([mean - np.maximum(low, 0), np.minimum(high, 1) - mean])
    return np.asarray(100 * np.nan_to_num(np.maximum(lengths, 0)))


def label_tradeoff(axes: Axes, x: str, y: str) -> None:
    """Label the axes of a trade-off, and limit them to what is possible."""
    axes.set(xlim=(min(0.0, axes.get_xlim()[0]), None), xlabel=x, ylabel=y)
    keep_possible(axes)


def keep_possible(axes: Axes, which: str = "xy") -> None:
    """Clip axes of shares in points to [0, 100], with room for a marker."""
    for name in which:
        low, high = getattr(axes, f"get_{name}lim")()
        room = 0.03 * (min(high, 100.0) - max(low, 0.0))
        getattr(axes, f"set_{name}lim")(max(low, -room), min(high, 100.0 + room))


def to_svg(fig: Figure) -> str:
    """Figure as SVG markup for a page; deterministic."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fairmp", "svg.fonttype": "none"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    # Neutral colours become variables of the page, which differ in its dark form.
    for colour, name in THEME.items():
        text = re.sub(rf"(fill|stroke): {colour}", rf"\1: var({name}, {colour})", text)
    return text


def embedded(path: Path, alt: str) -> str:
    """PNG file as an image element for a page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def group_bars(document: Document, classes: Sequence[int]) -> Figure:
    """Share of each class's decisions by group, before and after; one panel per class."""
    groups = _largest(document["groups"])
    noun = document.get("noun", "people")
    both = any(group.get("before") for group in groups)
    height = 0.7 + len(groups) * (0.52 if both else 0.38)
    total = len(classes) * height + (0.3 if both else 0.0)
    fig, panels = figure(NARROW, total, nrows=len(classes), squeeze=False)
    for axes, c in zip(panels[:, 0], classes, strict=True):
        shares: dict[str, list[float | None]] = {}
        if both:
            shares["before"] = [rates[c] if (rates := g.get("before")) else None for g in groups]
        shares["after"] = [group["after"][c] for group in groups]
        names = _label_groups(axes, groups)
        label = f"decided {shorten(document['classes'][c])!r}, of 100 {noun}"
        plot_rates(names, [group["nodes"] for group in groups], shares, label, axes)
    if both:
        where = {"loc": "outside upper right", "ncols": 2, "frameon": False, "fontsize": 9}
        fig.legend(*axes.get_legend_handles_labels(), **where)
    return fig


def changes(groups: Sequence[GroupSummary], classes: Sequence[str], noun: str) -> Figure:
    """Changed decisions per 100 nodes of each group.

    For two classes, changes to the second point right and changes to the first left, if known.
    """
    groups = _largest(groups)
    fig, axes = figure(NARROW, 1.0 + 0.38 * len(groups))
    _label_groups(axes, groups)
    if len(classes) == 2 and all("moves" in group for group in groups):
        widest = max(
            _change_bars(axes, [_share_moved(group, 1) for group in groups], color=AFTER),
            _change_bars(
                axes, [-_share_moved(group, 0) for group in groups], color=CHOSEN, hatch="...."
            ),
        )
        first, second = (shorten(name) for name in classes)
        label = f"← now {first!r}, of 100 {noun} of the group, now {second!r} →"
        limits = (-1.25 * widest, 1.25 * widest)
    else:
        shares = [100 * (group.get("changed") or 0) / max(group["nodes"], 1) for group in groups]
        widest = _change_bars(axes, shares, color=AFTER)
        label = f"decisions changed, of 100 {noun} of the group"
        limits = (0, 1.25 * widest)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set(xlim=limits, xlabel=label)
    return fig


def _share_moved(group: GroupSummary, to_class: int) -> float:
    """Nodes of 100 whose decision changed to a class."""
    count = sum(nodes for _, after, nodes in group["moves"] if after == to_class)
    return 100 * count / max(group["nodes"], 1)


def _change_bars(axes: Axes, widths: Sequence[float], **style: Any) -> float:
    """Draw one bar per group, and return the length of the longest, or of a visible one."""
    drawn = axes.barh(range(len(widths)), widths, height=0.5, edgecolor="white", **style)
    labels = [f"{abs(width):.1f}" if width else "" for width in widths]
    axes.bar_label(drawn, labels, padding=4, fontsize=9)
    return max(0.8, *map(abs, widths))


def curve(document: Document) -> Figure:
    """Accuracy against the gap: the curve, the point before, and the chosen point."""
    fig, axes = figure(NARROW, 3.8)
    if trials := document.get("trials"):
        gaps, accuracies = _percent(trials)
        axes.scatter(gaps, accuracies, s=26, facecolors="white", edgecolors=BEFORE, label="trial")
    line = [p for p in document.get("curve", []) if is_known(p["gap"] + p["accuracy"])]
    if line:
        gaps, accuracies = _percent(line)
        style: Any = {"color": "#56B4E9", "marker": "o", "markersize": 4.5, "linewidth": 1.8}
        label = document.get("curve_label", "post-processed to each gap")
        axes.plot(gaps, accuracies, zorder=2, label=label, **style)
    other_styles = zip(COLOURS[2:] + COLOURS[2:], "^DvPXhps<>8d", strict=True)
    points = document.get("points", [])
    for point in points:
        style = POINTS.get(point.get("kind", "other"))
        if style is None:
            colour, marker = next(other_styles, (BEFORE, "o"))
            style = {"color": colour, "marker": marker, "markersize": 8, "zorder": 3}
        pair = (
            _interval(point["gap"], point.get("gap_interval")),
            _interval(point["accuracy"], point.get("accuracy_interval")),
        )
        errorbar(axes, [pair], {"label": point["name"], **MARKER, **style})
    target = document.get("target")
    if target is not None and target > 0:
        label = f"target: at most {100 * target:g} points"
        axes.axvline(100 * target, color=INK, linewidth=1, linestyle=":", label=label)
    gap = document.get("gap", "ΔDP")
    label_tradeoff(axes, f"{gap}: gap between the groups (points)", "accuracy (%)")
    fig.set_size_inches(NARROW, 3.8 + 0.1 * len(points))
    fig.legend(frameon=False, fontsize=8.5, loc="outside lower left", ncols=2)
    return fig


def _percent(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Gaps and accuracies in points."""
    return [100 * p["gap"] for p in points], [100 * p["accuracy"] for p in points]


def reliability(curves: Sequence[Reliability]) -> Figure:
    """Observed frequency against predicted probability, one curve per group, with intervals."""
    fig, axes = figure(NARROW, 4.2)
    axes.plot([0, 100], [0, 100], "--", color="#555555", linewidth=1)
    style = {"markersize": 6, "capsize": 2, "elinewidth": 0.8, "linewidth": 1.4}
    for colour, marker, curve in zip(COLOURS, MARKERS, curves, strict=False):
        predicted, observed = 100 * np.array(curve["predicted"]), 100 * np.array(curve["observed"])
        low, high = 100 * np.array(curve["low"]), 100 * np.array(curve["high"])
        axes.errorbar(
            predicted,
            observed,
            yerr=np.maximum([observed - low, high - observed], 0),
            color=colour,
            marker=marker,
            label=shorten(curve["group"]),
            **style,
        )
    axes.set(xlim=(-2, 102), ylim=(-2, 102), aspect="equal")
    axes.set(xlabel="predicted probability, %", ylabel="observed frequency, %")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return fig


def _interval(value: float, ends: Sequence[float | None] | None) -> Interval:
    low, high = ends or (None, None)
    if low is None or high is None:
        low = high = math.nan
    return Interval(value, low, high, 2)


def _largest(groups: Sequence[GroupSummary]) -> list[GroupSummary]:
    """The largest groups, in their order, if there are too many for a chart."""
    order = sorted(range(len(groups)), key=lambda k: -groups[k]["nodes"])
    return [groups[k] for k in sorted(order[:MAX_GROUPS])]


def _label_groups(axes: Axes, groups: Sequence[GroupSummary]) -> list[str]:
    """Prepare axes for horizontal bars by group, from the top; return the names."""
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    names = [shorten(group["name"]) for group in groups]
    axes.set_yticks(range(len(groups)), names)
    axes.yaxis.set_inverted(True)
    return names
