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
            xerr=None if math.isnan(dp.low) else 50 * (dp.high - dp.low),
            yerr=None if math.isnan(accuracy.low) else 50 * (accuracy.high - accuracy.low),
            fmt=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            markersize=8,
            capsize=3,
            label=line.name,
        )
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
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
    fig, axes = figure(7.6, 4.6) if axes is None else (axes.figure, axes)
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
            xerr=[_half(dp) for dp, _ in shown],
            yerr=[_half(accuracy) for _, accuracy in shown],
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
    # No gap is below 0, whatever a symmetric interval says.
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])
    axes.set_xlabel("ΔDP on the test nodes (points)")
    axes.set_ylabel("accuracy on the test nodes (%)")
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    if legend:
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def _half(interval: Interval) -> float:
    return 0.0 if math.isnan(interval.low) else 50 * (interval.high - interval.low)


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
