"""Figures of message passing on synthetic graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.synthetic_settings import FORMS, GraphSetting, setting_of, sign
from fairmp.report.figures import COLOURS, figure

BLUE, VERMILION, GREEN, BLACK = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
LABELS = {
    "gap": "change of ‖mean difference‖",
    "parity": "change of ΔDP (points)",
    "fixed_parity": "change of ΔDP (points)",
    "information": "change of bias (nats)",
}
ROWS = {"identity": "Σ = I", "diagonal": "Σ = diag(1, 2)", "different": "Σ₁ ≠ Σ₂"}


@dataclass(frozen=True)
class Panel:
    """A column of the panels: what is varied besides homophily."""

    title: str
    column: str
    symbol: str


PANELS = {
    "density": Panel("density", "rho", "ρ"),
    "nodes": Panel("number of nodes", "n", "n"),
    "ratio": Panel("group ratio", "c", "c"),
}


@dataclass(frozen=True)
class Place:
    """Where a real graph lies on the phase diagram."""

    name: str
    homophily: float
    degree: float

    def is_just_below(self, other: Place) -> bool:
        """Whether a label above this place would cover the other's."""
        is_near = abs(self.homophily - other.homophily) < 0.05
        return is_near and self.degree < other.degree < 1.3 * self.degree


def draw_panels(points: pd.DataFrame, quantity: str) -> Any:
    """Change under one step against homophily, one row per covariance."""
    names = list(points["covariance"].unique())
    fig, axes = figure(8.6, 2.6 * len(names) + 0.4, nrows=len(names), ncols=3, squeeze=False)
    for name, row in zip(names, axes, strict=True):
        for axis, (series, panel) in zip(row, PANELS.items(), strict=True):
            here = points[(points["series"] == series) & (points["covariance"] == name)]
            for colour, (value, line) in zip(COLOURS, here.groupby(panel.column), strict=False):
                homophily = np.linspace(line["eps"].min(), line["eps"].max(), 201)
                predicted = getattr(setting_of(line).predicted(eps=homophily), quantity)
                _predicted(axis, homophily, predicted, quantity, colour)
                _measured(axis, line, "eps", quantity, colour, f"{panel.symbol} = {value:g}")
            _finish(axis, panel.title if name == names[0] else "")
        row[0].set_ylabel(f"{ROWS[name]}\n{LABELS[quantity]}")
    for axis in axes[-1]:
        axis.set_xlabel("sensitive homophily ε")
    return fig


def draw_agreement(points: pd.DataFrame) -> Any:
    """Measured change of the bias against each condition's value."""
    fig, axes = figure(8, 3.4, ncols=2)
    for axis, form in zip(axes, FORMS, strict=True):
        shown = points[points[form].notna()]
        value, change = shown[form], shown["information_measured"]
        decided = sign(shown, "information") != 0
        wrong = (value > 1) != (change > 0)
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


def draw_phase(points: pd.DataFrame, places: Sequence[Place] = ()) -> Any:
    """Where one step of averaging adds bias, and where real graphs lie."""
    fig, axis = figure(6.4, 4.4)
    grid = points.pivot(index="average_degree", columns="eps", values="information_measured")
    degrees = grid.index.to_numpy()
    # Colours beyond twice the median change would only hide the threshold.
    limit = 2 * float(np.median(np.abs(grid.to_numpy())))
    shades = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "shading": "nearest"}
    mesh = axis.pcolormesh(grid.columns.to_numpy(), degrees, grid, **shades)
    fig.colorbar(mesh, ax=axis, label="measured " + LABELS["information"])
    lowest, highest = degrees[0], max([degrees[-1], *(place.degree for place in places)])
    _draw_thresholds(axis, setting_of(points), lowest, highest)
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    offset = {"textcoords": "offset points", "ha": "right"}
    for place in places:
        axis.plot(place.homophily, place.degree, "o", color=BLACK, markersize=4)
        spot = (place.homophily, place.degree)
        shift = -11 if any(place.is_just_below(other) for other in places) else 5
        axis.annotate(place.name, spot, (-5, shift), fontsize=8, bbox=box, **offset)
    axis.set(xlabel="sensitive homophily ε", ylabel="average degree (neighbours)", yscale="log")
    axis.set(xlim=(0, 1), ylim=(lowest, 1.15 * highest))
    axis.legend(fontsize=8, loc="lower center")
    return fig


def _draw_thresholds(axis: Any, setting: GraphSetting, lowest: float, highest: float) -> None:
    """Lines on which each condition, and the prediction, changes from less bias to more."""
    eps, degree = np.meshgrid(np.linspace(0, 1, 101), np.geomspace(lowest, highest, 60))
    rho = degree / (setting.n - 1)
    predicted = setting.predicted(rho=rho, eps=eps).information
    for style, colour, label, value in (
        ("--", VERMILION, "printed condition", setting.condition("printed", rho=rho, eps=eps) - 1),
        ("-", BLACK, "corrected condition", setting.condition("corrected", rho=rho, eps=eps) - 1),
        (":", GREEN, "prediction", predicted),
    ):
        line = {"levels": [0.0], "colors": [colour], "linestyles": [style], "linewidths": 1.6}
        axis.contour(eps, degree, value, **line)
        axis.plot([], [], style, color=colour, label=label)


def draw_depth(points: pd.DataFrame) -> Any:
    """Change of the bias after one and more steps, row and symmetric side by side."""
    fig, axes = figure(8, 3.2, ncols=2)
    quantity = "information"
    for axis, normalisation in zip(axes, ("row", "symmetric"), strict=True):
        here = points[points["normalisation"] == normalisation]
        for colour, (eps, line) in zip(COLOURS, here.groupby("eps"), strict=False):
            _predicted(axis, line["steps"], line[f"{quantity}_predicted"], quantity, colour)
            _measured(axis, line, "steps", quantity, colour, f"ε = {eps:g}")
        axis.set(xticks=sorted(here["steps"].unique()), xlabel="steps of averaging")
        axis.margins(y=0.2)
        _finish(axis, f"{normalisation} normalisation", ncols=3, loc="upper center")
    axes[0].set_ylabel(LABELS[quantity])
    return fig


def _predicted(axis: Any, x: Any, values: Any, quantity: str, colour: str) -> None:
    """Draw predictions as a line."""
    axis.plot(x, _unit(quantity) * values, "-", color=colour, linewidth=1.1)


def _measured(
    axis: Any, points: pd.DataFrame, x: str, quantity: str, colour: str, label: str
) -> None:
    """Draw measured means with their 95 % intervals."""
    means = _unit(quantity) * points[f"{quantity}_measured"]
    half = _unit(quantity) * points[f"{quantity}_interval"]
    style = {"fmt": "o", "markersize": 3, "elinewidth": 0.8, "capsize": 1.5, "color": colour}
    axis.errorbar(points[x], means, yerr=half, label=label, **style)


def _unit(quantity: str) -> float:
    return 100.0 if quantity in ("parity", "fixed_parity") else 1.0


def _finish(axis: Any, title: str, **legend: Any) -> None:
    axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_title(title, fontsize=10)
    axis.legend(**{"fontsize": 8, "frameon": False} | legend)
