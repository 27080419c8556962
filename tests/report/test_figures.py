"""Figures show all of what they name, and nothing that cannot be."""

from __future__ import annotations

import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fairmp.comparison.page import Comparison
from fairmp.metrics import Interval
from fairmp.report import Line, tradeoff
from fairmp.report.figures import curve, curves
from fairmp.reproduction import experiments

WIDE = {
    "accuracy": Interval(0.8, 0.2, 1.4, 2),
    "dp": Interval(0.3, -1.5, 2.1, 2),
    "eo": Interval(math.nan, math.nan, math.nan, 0),
    "auc": Interval(math.nan, math.nan, math.nan, 0),
}


def named(count: int) -> list[Line]:
    return [Line(f"method {k} + thresholds (validation)", WIDE, 1.0, 2) for k in range(count)]


def drawn(figure) -> list[tuple[float, float]]:
    """Every point of every line, bar and band of a figure's axes."""
    found = []
    for axes in figure.axes:
        for shapes in axes.collections:
            found += [tuple(end) for path in shapes.get_paths() for end in path.vertices]
        for line in axes.lines:
            if line.get_transform() == axes.transData:
                found += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return [(float(x), float(y)) for x, y in found]


def assert_possible(figure) -> None:
    assert drawn(figure)
    for x, y in drawn(figure):
        assert -1e-9 <= x <= 100 + 1e-9
        assert -1e-9 <= y <= 100 + 1e-9
    for axes in figure.axes:
        for low, high in (axes.get_xlim(), axes.get_ylim()):
            assert low >= -3.1
            assert high <= 103.1


@pytest.mark.parametrize("count", [2, 35])
def test_curves_name_all_families_inside_the_picture(count: int) -> None:
    figure = curves({line.name: [line] for line in named(count)}, "a graph")
    assert_possible(figure)
    FigureCanvasAgg(figure).draw()
    legend = figure.legends[0] if figure.legends else figure.axes[0].get_legend()
    assert len(legend.get_texts()) == count
    width, height = figure.canvas.get_width_height()
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    plot = figure.axes[0].get_window_extent()
    assert plot.width > 300
    assert plot.height > 250


def test_points_and_bars_end_where_shares_do() -> None:
    assert_possible(tradeoff(named(3), "a graph"))
    point = {"name": "mine", "accuracy": 0.8, "gap": 0.3}
    wide = {"accuracy_interval": [0.2, 1.4], "gap_interval": [-1.5, 2.1]}
    assert_possible(curve({"points": [{**point, **wide}]}))


def test_hyperparameters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = named(1)
    monkeypatch.setattr(experiments, "_families", lambda *_: {"FMP": {0.0: line, 1.0: line}})
    figure = experiments.hyperparameters(Comparison({"": [line]}, {}, {}, [], []), "")
    assert_possible(figure)
