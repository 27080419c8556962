"""Figures, in colours that colour-blind readers can tell apart."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
