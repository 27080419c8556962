"""Figures of the synthetic experiments: measurements, with theory drawn over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairmp.analysis.theory.conditions import Form, bias_enhancement
from fairmp.analysis.theory.prediction import predicted_change
from fairmp.errors import check_choice
from fairmp.report.figures import COLOURS
from fairmp.reproduction.synthetic_runs import COVARIANCES, Point

BLUE, VERMILION, GREEN, BLACK = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
FORMS: tuple[Form, Form] = ("printed", "corrected")
LABELS = {
    "gap": "change of ‖mean difference‖",
    "parity": "change of ΔDP (points)",
    "information": "change of bias (nats)",
}
TITLES = {
    "density": ("density", "rho", "ρ"),
    "nodes": ("number of nodes", "n", "n"),
    "ratio": ("group ratio", "c", "c"),
}
ROWS = {"identity": "Σ = I", "diagonal": "Σ = diag(1, 2)", "different": "Σ₁ ≠ Σ₂"}


def draw_panels(points: Sequence[Point], path: Path, *, quantity: str = "parity") -> None:
    """Draw the change under one step against homophily, one row per covariance."""
    check_choice("quantity", quantity, LABELS)
    names = [name for name in COVARIANCES if any(p.setting.covariance == name for p in points)]
    figure, axes = _figure(len(names), 3, width=10, height=2.7 * len(names) + 0.4)
    for row, name in enumerate(names):
        for column, (series, (title, field, symbol)) in enumerate(TITLES.items()):
            axis = axes[row, column]
            here = [p for p in points if p.series == series and p.setting.covariance == name]
            for colour, value in zip(COLOURS, _values(here, field), strict=False):
                line = [p for p in here if getattr(p.setting, field) == value]
                _curve(axis, line, quantity, color=colour, label=f"{symbol} = {value:g}")
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
            axis.set_title(title if row == 0 else "", fontsize=10)
            axis.legend(fontsize=7, frameon=False)
            if row == len(names) - 1:
                axis.set_xlabel("sensitive homophily ε")
        axes[row, 0].set_ylabel(f"{ROWS[name]}\n{LABELS[quantity]}")
    figure.savefig(path, dpi=110)


def draw_agreement(points: Sequence[Point], path: Path) -> None:
    """Draw the measured change of the bias against each condition's value."""
    figure, axes = _figure(1, 2, width=8, height=3.4)
    for axis, form in zip(axes[0], FORMS, strict=True):
        shown = [p for p in points if getattr(p, form) is not None]
        value = np.array([getattr(p, form) for p in shown])
        change = np.array([p.information.measured for p in shown])
        decided = np.array([p.information.sign != 0 for p in shown])
        wrong = (value > 1) != (change > 0)
        for mask, colour, marker, label in (
            (~decided, "0.75", "o", "undecided"),
            (decided & ~wrong, BLUE, "o", "agrees"),
            (decided & wrong, VERMILION, "X", "disagrees"),
        ):
            style = {"color": colour, "label": f"{label}: {int(mask.sum())}"}
            axis.plot(value[mask], change[mask], marker, markersize=3.5, markeredgewidth=0, **style)
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axis.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axis.set(xscale="log", xlabel="left-hand side of the condition")
        axis.set_title(f"{form} condition", fontsize=10)
        axis.legend(fontsize=8, frameon=False, loc="upper left")
    axes[0, 0].set_ylabel("measured " + LABELS["information"])
    figure.savefig(path, dpi=110)


def draw_phase(
    points: Sequence[Point], path: Path, *, graphs: Iterable[tuple[str, float, float]] = ()
) -> None:
    """Draw the phase diagram: where one step of averaging adds bias.

    Lines are where each condition and the prediction change sign. ``graphs`` are real graphs as
    (name, balanced homophily, average degree); the diagram holds for the features of ``points``,
    so their places are a guide.
    """
    figure, [[axis]] = _figure(1, 1, width=6.4, height=4.4)
    places = list(graphs)
    eps = _values(points, "eps")
    degree = sorted({p.setting.average_degree for p in points})
    table = {(p.setting.eps, p.setting.average_degree): p.information.measured for p in points}
    grid = np.array([[table[e, d] for e in eps] for d in degree])
    # Colours beyond twice the median change would only hide the threshold.
    limit = 2 * float(np.median(np.abs(grid)))
    shades = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "shading": "nearest"}
    mesh = axis.pcolormesh(eps, degree, grid, **shades)
    figure.colorbar(mesh, ax=axis, label="measured " + LABELS["information"])

    setting = points[0].setting
    lowest, highest = degree[0], max([degree[-1], *(d for _, _, d in places)])
    x, y = np.meshgrid(np.linspace(0, 1, 101), np.geomspace(lowest, highest, 60))
    model = (setting.n, y / (setting.n - 1), x, setting.c)
    sigma = COVARIANCES[setting.covariance]
    printed, corrected = (
        bias_enhancement(*model, form=form, means=setting.means, covariance=sigma) - 1
        for form in FORMS
    )
    predicted = predicted_change(*model, means=setting.means, covariances=sigma).information
    for style, colour, label, value in (
        ("--", VERMILION, "printed condition", printed),
        ("-", BLACK, "corrected condition", corrected),
        (":", GREEN, "prediction", predicted),
    ):
        axis.contour(x, y, value, levels=[0.0], colors=[colour], linestyles=[style], linewidths=1.6)
        axis.plot([], [], style, color=colour, label=label)
    for name, e, d in places:
        axis.plot(e, d, "o", color=BLACK, markersize=4)
        box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
        offset = {"xytext": (-5, 5), "textcoords": "offset points", "ha": "right"}
        axis.annotate(name, (e, d), fontsize=8, bbox=box, **offset)
    axis.set(xlabel="sensitive homophily ε", ylabel="average degree (neighbours)", yscale="log")
    axis.set(xlim=(0, 1), ylim=(lowest, 1.15 * highest))
    axis.legend(fontsize=8, loc="lower center")
    figure.savefig(path, dpi=110)


def draw_depth(points: Sequence[Point], path: Path) -> None:
    """Draw the change of the bias after one and more steps, row and symmetric side by side."""
    figure, axes = _figure(1, 2, width=8, height=3.2)
    for axis, normalisation in zip(axes[0], ("row", "symmetric"), strict=True):
        here = [p for p in points if p.setting.normalisation == normalisation]
        for colour, eps in zip(COLOURS, _values(here, "eps"), strict=False):
            line = [p for p in here if p.setting.eps == eps]
            label = f"ε = {eps:g}"
            _curve(axis, line, "information", against="steps", color=colour, label=label)
        axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        axis.set(xticks=_values(here, "steps"), xlabel="steps of averaging")
        axis.set_title(f"{normalisation} normalisation", fontsize=10)
        axis.legend(fontsize=8, frameon=False, ncols=3, loc="upper center")
        axis.margins(y=0.2)
    axes[0, 0].set_ylabel(LABELS["information"])
    figure.savefig(path, dpi=110)


def _curve(
    axis: Any, line: Sequence[Point], quantity: str, *, against: str = "eps", color: str, label: str
) -> None:
    """Draw measured means with their 95 % intervals, and the prediction as a line."""
    unit = 100.0 if quantity == "parity" else 1.0
    x = [getattr(p.setting, against) for p in line]
    readings = [getattr(p, quantity) for p in line]
    if against == "eps":
        curve = np.linspace(min(x), max(x), 201)
        theory = getattr(line[0].setting.predicted(curve), quantity)
    else:
        curve, theory = np.array(x), np.array([r.predicted for r in readings])
    axis.plot(curve, unit * theory, "-", color=color, linewidth=1.1)
    axis.errorbar(
        x, [unit * r.measured for r in readings], yerr=[unit * r.interval for r in readings],
        fmt="o", color=color, markersize=3, elinewidth=0.8, capsize=1.5, label=label,
    )  # fmt: skip


def _values(points: Iterable[Point], field: str) -> list[Any]:
    return sorted({getattr(p.setting, field) for p in points})


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
