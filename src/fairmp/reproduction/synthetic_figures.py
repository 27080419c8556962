"""Figures of the synthetic experiments: measurements, with theory drawn over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from fairmp.report.figures import COLOURS, figure
from fairmp.reproduction.synthetic_runs import FORMS, Setting, sign

BLUE, VERMILION, GREEN, BLACK = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
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


def panels(points: pd.DataFrame, quantity: str) -> Any:
    """Change under one step against homophily, one row per covariance."""
    names = list(points["covariance"].unique())
    fig, axes = figure(8.6, 2.6 * len(names) + 0.4, nrows=len(names), ncols=3, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for axis, (series, (title, field, symbol)) in zip(row, TITLES.items(), strict=True):
            here = points[(points["series"] == series) & (points["covariance"] == name)]
            _curves(axis, here, quantity, field, symbol)
            _finish(axis, title if row is axes[0] else "")
        row[0].set_ylabel(f"{ROWS[name]}\n{LABELS[quantity]}")
    for axis in axes[-1]:
        axis.set_xlabel("sensitive homophily ε")
    return fig


def agreement(points: pd.DataFrame) -> Any:
    """Measured change of the bias against each condition's value."""
    fig, axes = figure(8, 3.4, ncols=2)
    for axis, form in zip(axes, FORMS, strict=True):
        shown = points[points[form].notna()]
        value, change = shown[form], shown["information_measured"]
        decided, wrong = sign(shown, "information") != 0, (value > 1) != (change > 0)
        for mask, colour, marker, label in (
            (~decided, "0.75", "o", "undecided"),
            (decided & ~wrong, BLUE, "o", "agrees"),
            (decided & wrong, VERMILION, "X", "disagrees"),
        ):
            style = {"color": colour, "label": f"{label}: {int(mask.sum())}"}
            axis.plot(value[mask], change[mask], marker, markersize=3.5, markeredgewidth=0, **style)
        axis.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axis.set(xscale="log", xlabel="left-hand side of the condition")
        _finish(axis, f"{form} condition", loc="upper left")
    axes[0].set_ylabel("measured " + LABELS["information"])
    return fig


def phase(points: pd.DataFrame, graphs: Iterable[tuple[str, float, float]] = ()) -> Any:
    """Where one step of averaging adds bias; graphs are (name, homophily, degree)."""
    fig, axis = figure(6.4, 4.4)
    places = list(graphs)
    grid = points.pivot(index="average_degree", columns="eps", values="information_measured")
    eps, degree = grid.columns.to_numpy(), grid.index.to_numpy()
    # Colours beyond twice the median change would only hide the threshold.
    limit = 2 * float(np.median(np.abs(grid.to_numpy())))
    shades = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "shading": "nearest"}
    mesh = axis.pcolormesh(eps, degree, grid, **shades)
    fig.colorbar(mesh, ax=axis, label="measured " + LABELS["information"])

    setting = _setting(points)
    lowest, highest = degree[0], max([degree[-1], *(d for _, _, d in places)])
    x, y = np.meshgrid(np.linspace(0, 1, 101), np.geomspace(lowest, highest, 60))
    model = {"rho": y / (setting.n - 1), "eps": x}
    for style, colour, label, value in (
        ("--", VERMILION, "printed condition", setting.condition("printed", **model) - 1),
        ("-", BLACK, "corrected condition", setting.condition("corrected", **model) - 1),
        (":", GREEN, "prediction", setting.predicted(**model).information),
    ):
        axis.contour(x, y, value, levels=[0.0], colors=[colour], linestyles=[style], linewidths=1.6)
        axis.plot([], [], style, color=colour, label=label)
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    offset = {"xytext": (-5, 5), "textcoords": "offset points", "ha": "right"}
    for name, *place in places:
        axis.plot(*place, "o", color=BLACK, markersize=4)
        axis.annotate(name, place, fontsize=8, bbox=box, **offset)
    axis.set(xlabel="sensitive homophily ε", ylabel="average degree (neighbours)", yscale="log")
    axis.set(xlim=(0, 1), ylim=(lowest, 1.15 * highest))
    axis.legend(fontsize=8, loc="lower center")
    return fig


def depth(points: pd.DataFrame) -> Any:
    """Change of the bias after one and more steps, row and symmetric side by side."""
    fig, axes = figure(8, 3.2, ncols=2)
    for axis, normalisation in zip(axes, ("row", "symmetric"), strict=True):
        here = points[points["normalisation"] == normalisation]
        _curves(axis, here, "information", "eps", "ε", against="steps")
        axis.set(xticks=sorted(here["steps"].unique()), xlabel="steps of averaging")
        axis.margins(y=0.2)
        _finish(axis, f"{normalisation} normalisation", ncols=3, loc="upper center")
    axes[0].set_ylabel(LABELS["information"])
    return fig


def _curves(
    axis: Any, points: pd.DataFrame, quantity: str, field: str, symbol: str, against: str = "eps"
) -> None:
    """Measured means with their 95 % intervals, and predictions as lines, by a field's value."""
    unit = 100.0 if quantity == "parity" else 1.0
    for colour, (value, line) in zip(COLOURS, points.groupby(field), strict=False):
        curve, theory = line[against].to_numpy(), line[f"{quantity}_predicted"]
        if against == "eps":
            curve = np.linspace(curve.min(), curve.max(), 201)
            theory = getattr(_setting(line).predicted(eps=curve), quantity)
        axis.plot(curve, unit * theory, "-", color=colour, linewidth=1.1)
        means, half = (unit * line[f"{quantity}_{name}"] for name in ("measured", "interval"))
        style = {"fmt": "o", "markersize": 3, "elinewidth": 0.8, "capsize": 1.5, "color": colour}
        axis.errorbar(line[against], means, yerr=half, label=f"{symbol} = {value:g}", **style)


def _finish(axis: Any, title: str, **legend: Any) -> None:
    axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_title(title, fontsize=10)
    axis.legend(**{"fontsize": 8, "frameon": False} | legend)


def _setting(points: pd.DataFrame) -> Setting:
    """Setting of the first point."""
    [first] = points.head(1).to_dict("records")
    return Setting(**{own.name: first[own.name] for own in fields(Setting)})
