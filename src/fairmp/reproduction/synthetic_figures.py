"""Figures of the synthetic experiments: measurements, with theory drawn over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairmp.analysis.theory.conditions import bias_enhancement
from fairmp.analysis.theory.prediction import predicted_change
from fairmp.errors import check_choice
from fairmp.report.figures import COLOURS
from fairmp.reproduction.synthetic_runs import COVARIANCES, FORMS, Setting, sign

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


def draw_panels(points: pd.DataFrame, path: Path, *, quantity: str = "parity") -> None:
    """Draw the change under one step against homophily, one row per covariance."""
    check_choice("quantity", quantity, LABELS)
    names = list(points["covariance"].unique())
    figure, axes = _figure(len(names), 3, width=10, height=2.7 * len(names) + 0.4)
    for row, name in enumerate(names):
        for column, (series, (title, field, symbol)) in enumerate(TITLES.items()):
            axis = axes[row, column]
            here = points[(points["series"] == series) & (points["covariance"] == name)]
            for colour, (value, line) in zip(COLOURS, here.groupby(field), strict=False):
                _curve(axis, line, quantity, color=colour, label=f"{symbol} = {value:g}")
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
            axis.set_title(title if row == 0 else "", fontsize=10)
            axis.legend(fontsize=7, frameon=False)
            if row == len(names) - 1:
                axis.set_xlabel("sensitive homophily ε")
        axes[row, 0].set_ylabel(f"{ROWS[name]}\n{LABELS[quantity]}")
    figure.savefig(path, dpi=110)


def draw_agreement(points: pd.DataFrame, path: Path) -> None:
    """Draw the measured change of the bias against each condition's value."""
    figure, axes = _figure(1, 2, width=8, height=3.4)
    for axis, form in zip(axes[0], FORMS, strict=True):
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
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axis.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axis.set(xscale="log", xlabel="left-hand side of the condition")
        axis.set_title(f"{form} condition", fontsize=10)
        axis.legend(fontsize=8, frameon=False, loc="upper left")
    axes[0, 0].set_ylabel("measured " + LABELS["information"])
    figure.savefig(path, dpi=110)


def draw_phase(
    points: pd.DataFrame, path: Path, *, graphs: Iterable[tuple[str, float, float]] = ()
) -> None:
    """Draw where one step of averaging adds bias; graphs are (name, homophily, degree)."""
    figure, [[axis]] = _figure(1, 1, width=6.4, height=4.4)
    places = list(graphs)
    grid = points.pivot(index="average_degree", columns="eps", values="information_measured")
    eps, degree = grid.columns.to_numpy(), grid.index.to_numpy()
    # Colours beyond twice the median change would only hide the threshold.
    limit = 2 * float(np.median(np.abs(grid.to_numpy())))
    shades = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "shading": "nearest"}
    mesh = axis.pcolormesh(eps, degree, grid, **shades)
    figure.colorbar(mesh, ax=axis, label="measured " + LABELS["information"])

    setting = _setting(points)
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


def draw_depth(points: pd.DataFrame, path: Path) -> None:
    """Draw the change of the bias after one and more steps, row and symmetric side by side."""
    figure, axes = _figure(1, 2, width=8, height=3.2)
    for axis, normalisation in zip(axes[0], ("row", "symmetric"), strict=True):
        here = points[points["normalisation"] == normalisation]
        for colour, (eps, line) in zip(COLOURS, here.groupby("eps"), strict=False):
            label = f"ε = {eps:g}"
            _curve(axis, line, "information", against="steps", color=colour, label=label)
        axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        axis.set(xticks=sorted(here["steps"].unique()), xlabel="steps of averaging")
        axis.set_title(f"{normalisation} normalisation", fontsize=10)
        axis.legend(fontsize=8, frameon=False, ncols=3, loc="upper center")
        axis.margins(y=0.2)
    axes[0, 0].set_ylabel(LABELS["information"])
    figure.savefig(path, dpi=110)


def _curve(
    axis: Any, line: pd.DataFrame, quantity: str, *, against: str = "eps", color: str, label: str
) -> None:
    """Draw measured means with their 95 % intervals, and the prediction as a line."""
    unit = 100.0 if quantity == "parity" else 1.0
    curve, theory = line[against].to_numpy(), line[f"{quantity}_predicted"]
    if against == "eps":
        curve = np.linspace(curve.min(), curve.max(), 201)
        theory = getattr(_setting(line).predicted(curve), quantity)
    axis.plot(curve, unit * theory, "-", color=color, linewidth=1.1)
    axis.errorbar(
        line[against], unit * line[f"{quantity}_measured"],
        yerr=unit * line[f"{quantity}_interval"], fmt="o", color=color, markersize=3,
        elinewidth=0.8, capsize=1.5, label=label,
    )  # fmt: skip


def _setting(points: pd.DataFrame) -> Setting:
    """Setting of the first point."""
    [first] = points.head(1).to_dict("records")
    return Setting(**{own.name: first[own.name] for own in fields(Setting)})


def _figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
