"""Figures, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmp.metrics import Interval
from fairmp.report.pareto import front
from fairmp.report.tables import Line

# Okabe and Ito's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAX_SIDE_LABELS = 18


def figure(width: float = 7.0, height: float = 4.4) -> tuple[Any, Any]:
    """Empty figure with one pair of axes, which needs no display."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return fig, axes


def tradeoff(lines: Sequence[Line], title: str = "") -> Any:
    """Accuracy against ΔDP, one point per method, with intervals over splits."""
    return curves({line.name: [line] for line in lines}, title)


def curves(
    families: Mapping[str, Sequence[Line]],
    title: str = "",
    *,
    styles: Mapping[str, tuple[int, int]] | None = None,
    axes: Any = None,
    legend: bool = True,
) -> Any:
    """Accuracy against ΔDP, one curve per family of methods, with intervals over splits.

    The dashed line is the Pareto front of all points. ``styles`` has the index of the colour and
    of the marker of each family; by default all are different.
    """
    many = axes is None and len(families) > MAX_SIDE_LABELS
    # Columns of a legend below the axes; a letter takes about 0.052 inches.
    columns = max(1, int(8.6 / (0.5 + 0.052 * max(map(len, families), default=1))))
    size = (8.6, 4.6 + 0.17 * math.ceil(len(families) / columns)) if many else (7.6, 4.6)
    fig, axes = figure(*size) if axes is None else (axes.figure, axes)
    styles = styles or {name: (i, i) for i, name in enumerate(families)}
    single = all(len(lines) == 1 for lines in families.values())
    width = {"elinewidth": 1.2, "capsize": 3} if single else {"elinewidth": 0.5, "capsize": 1.5}
    reached: list[tuple[float, float]] = []
    for name, lines in families.items():
        pairs = [(line.figures["dp"], line.figures["accuracy"]) for line in lines]
        pairs = [(dp, acc) for dp, acc in pairs if not math.isnan(dp.mean + acc.mean)]
        if not pairs:
            continue
        reached += [(accuracy.mean, dp.mean) for dp, accuracy in pairs]
        colour, marker = styles[name]
        style: Any = {
            "color": COLOURS[colour % len(COLOURS)],
            "marker": MARKERS[marker % len(MARKERS)],
        }
        style |= {"markersize": 8 if single else 5, "linewidth": 1.2, **width}
        gaps, accuracies = zip(*pairs, strict=True)
        errorbar(axes, gaps, accuracies, {"label": name, **style})
    best = front(reached)
    corners = [100 * dp for _, dp in best], [100 * accuracy for accuracy, _ in best]
    axes.step(*corners, "--", where="post", color="#555555", linewidth=0.9, zorder=1)
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


def errorbar(
    axes: Any, x: Sequence[Interval], y: Sequence[Interval], style: Mapping[str, Any]
) -> None:
    """Draw intervals in both directions, in points."""
    means = ([100 * interval.mean for interval in side] for side in (x, y))
    axes.errorbar(*means, xerr=bars(x), yerr=bars(y), **style)


def bars(intervals: Sequence[Interval]) -> Any:
    """Lengths of error bars below and above the means (2×n), in points, clipped to [0, 100]."""
    mean, low, high = np.array([interval[:3] for interval in intervals]).reshape(-1, 3).T
    lengths = np.stack([mean - np.maximum(low, 0), np.minimum(high, 1) - mean])
    return 100 * np.nan_to_num(np.maximum(lengths, 0))


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
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def embedded(path: Path, alt: str) -> str:
    """PNG file as an image element for a page."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'
