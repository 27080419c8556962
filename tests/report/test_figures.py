"""Figures show all of what they name, and nothing that cannot be."""

from __future__ import annotations

import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fairmp.metrics import Interval
from fairmp.report import Line, summarise, tradeoff
from fairmp.report.figures import curve, curves, group_bars, to_svg
from tests.report.documents import document_for
from tests.report.records import RECORDS, lines

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
    ends = []
    for axes in figure.axes:
        for shapes in axes.collections:
            ends += [tuple(end) for path in shapes.get_paths() for end in path.vertices]
        for line in axes.lines:
            if line.get_transform() == axes.transData:
                ends += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return [(float(x), float(y)) for x, y in ends]


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


def test_tradeoff_and_curve_stay_within_0_and_100() -> None:
    assert_possible(tradeoff(named(3), "a graph"))
    point = {"name": "mine", "accuracy": 0.8, "gap": 0.3}
    wide = {"accuracy_interval": [0.2, 1.4], "gap_interval": [-1.5, 2.1]}
    assert_possible(curve({"points": [{**point, **wide}]}))


def test_curves_draw_each_family_and_the_front() -> None:
    mlp, fmp = lines()
    figure = curves({"MLP": [mlp], "FMP": [fmp]}, "NBA")
    [axes] = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["MLP", "FMP"]
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [tuple(dashed[0].get_xdata())] == [pytest.approx((1.0, 15.0))]


def test_tradeoff_has_a_point_per_method_and_is_deterministic() -> None:
    lines = summarise(RECORDS)
    figure = tradeoff(lines, "title")
    (axes,) = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A"]
    assert "points" in axes.get_xlabel()
    assert "%" in axes.get_ylabel()
    assert math.isclose(axes.containers[0].lines[0].get_xdata()[0], 15.0)
    assert to_svg(figure) == to_svg(tradeoff(lines, "title"))


def test_to_svg_uses_colours_of_the_page() -> None:
    svg = to_svg(curve(document_for()))
    assert "var(--paper, #ffffff)" in svg
    assert "fill: #ffffff" not in svg


def test_group_bars_and_curve_show_the_figures() -> None:
    document = document_for()
    figure = group_bars(document, [1])
    (axes,) = figure.axes
    shares = sorted(round(patch.get_width(), 6) for patch in axes.patches)
    expected = [100 * g[when][1] for g in document["groups"] for when in ("before", "after")]
    assert shares == pytest.approx(sorted(expected))
    assert axes.get_xlim() == (0, 100)
    assert "of 100 people" in axes.get_xlabel()
    trade = curve(document)
    labels = [text.get_text() for text in trade.legends[0].get_texts()]
    assert "mine" in labels
    assert "target: at most 2 points" in labels
