"""Figures, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmp.metrics import Interval
from fairmp.report.pareto import front
from fairmp.report.tables import Line

# Okabe and Ito's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_ASIDE = 18  # names that fit beside the axes


def figure(width: float = 7.0, height: float = 4.4) -> tuple[Any, Any]:
    """Make an empty figure with one pair of axes, drawn without a display."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return fig, axes


def tradeoff(lines: Sequence[Line], title: str = "") -> Any:
    """Draw accuracy against ΔDP, a point a method, with intervals over splits."""
    fig, axes = figure()
    for i, line in enumerate(lines):
        dp, accuracy = line.figures["dp"], line.figures["accuracy"]
        if math.isnan(dp.mean) or math.isnan(accuracy.mean):
            continue
        axes.errorbar(
            100 * dp.mean,
            100 * accuracy.mean,
            xerr=bars([dp]),
            yerr=bars([accuracy]),
            fmt=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=8,
            capsize=3,
            label=line.name,
        )
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    keep_possible(axes)
    axes.set_xlabel("ΔDP on the test nodes (points; further left is fairer)")
    axes.set_ylabel("accuracy on the test nodes (%)")
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def curves(
    families: Mapping[str, Sequence[Line]],
    title: str = "",
    *,
    styles: Mapping[str, tuple[int, int]] | None = None,
    axes: Any = None,
    legend: bool = True,
) -> Any:
    """Draw trade-off curves: accuracy against ΔDP, a curve a family, a point a strength.

    Bars are intervals over splits. The dashed line is the front: what no point of any family beats.

    Args:
        families: lines of each, in the order of their strengths.
        title: of the axes.
        styles: which colour and which marker a family has, by number; by default its own each.
        axes: where to draw; by default in a new figure.
        legend: whether to name the families.

    Returns:
        The figure.
    """
    many = axes is None and len(families) > _ASIDE
    # Columns of names below the axes, by the width of the longest: about 0.052 inches a letter.
    columns = max(1, int(8.6 / (0.5 + 0.052 * max(map(len, families), default=1))))
    size = (8.6, 4.6 + 0.17 * math.ceil(len(families) / columns)) if many else (7.6, 4.6)
    fig, axes = figure(*size) if axes is None else (axes.figure, axes)
    styles = styles or {name: (i, i) for i, name in enumerate(families)}
    reached: list[tuple[float, float]] = []
    for name, lines in families.items():
        colour, marker = styles[name]
        shown = [(line.figures["dp"], line.figures["accuracy"]) for line in lines]
        shown = [(dp, acc) for dp, acc in shown if not math.isnan(dp.mean + acc.mean)]
        if not shown:
            continue
        reached += [(accuracy.mean, dp.mean) for dp, accuracy in shown]
        axes.errorbar(
            [100 * dp.mean for dp, _ in shown],
            [100 * accuracy.mean for _, accuracy in shown],
            xerr=bars([dp for dp, _ in shown]),
            yerr=bars([accuracy for _, accuracy in shown]),
            marker=MARKERS[marker % len(MARKERS)],
            color=COLOURS[colour % len(COLOURS)],
            markersize=5,
            linewidth=1.2,
            elinewidth=0.5,
            capsize=1.5,
            label=name,
        )
    best = front(reached)
    axes.step(
        [100 * dp for _, dp in best],
        [100 * accuracy for accuracy, _ in best],
        where="post",
        color="#555555",
        linewidth=0.9,
        linestyle="--",
        zorder=1,
    )
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    keep_possible(axes)
    axes.set_xlabel("ΔDP on the test nodes (points)")
    axes.set_ylabel("accuracy on the test nodes (%)")
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    if legend and many:
        fig.legend(frameon=False, fontsize=7, loc="outside lower left", ncols=columns)
    elif legend:
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """How far bars reach below and above the means of shares, in points.

    An interval of the mean over a few splits is symmetric, and may reach below 0 and above 100,
    where no share and no gap is: bars end there.

    Example:
        >>> bars([Interval(0.75, 0.25, 1.25, 2), Interval(0.5, math.nan, math.nan, 1)])
        [[50.0, 0.0], [25.0, 0.0]]
    """
    ends = [
        (i.mean, i.mean) if math.isnan(i.low) else (max(0.0, i.low), min(1.0, i.high))
        for i in intervals
    ]
    pairs = list(zip(intervals, ends, strict=True))
    return [
        [100 * max(0.0, i.mean - low) for i, (low, _) in pairs],
        [100 * max(0.0, high - i.mean) for i, (_, high) in pairs],
    ]


def keep_possible(axes: Any, which: str = "xy") -> None:
    """Let axes of shares in points end at 0 and 100, but for a marker's width."""
    for name in which:
        low, high = getattr(axes, f"get_{name}lim")()
        room = 0.03 * (min(high, 100.0) - max(low, 0.0))
        getattr(axes, f"set_{name}lim")(max(low, -room), min(high, 100.0 + room))


def to_svg(fig: Any) -> str:
    """Return a figure as SVG that stands inside a page, the same for the same figure."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fairmp", "svg.fonttype": "none"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def embedded(path: Path, alt: str) -> str:
    """Return a PNG file as an image that stands inside a page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
