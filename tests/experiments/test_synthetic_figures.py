from __future__ import annotations

from pathlib import Path

from experiments.synthetic_figures import Place, draw_depth, draw_phase
from tests.experiments.synthetic_points import few_depths, few_phases


def test_phase_diagram_names_real_graphs(tmp_path: Path) -> None:
    figure = draw_phase(few_phases(), [Place("a graph", 0.9, 40.0)])
    figure.savefig(tmp_path / "phase.svg")
    text = (tmp_path / "phase.svg").read_text(encoding="utf-8")
    assert "<svg" in text
    assert "a graph" in text


def test_labels_of_places_that_nearly_coincide_do_not_overlap() -> None:
    upper, lower = Place("upper", 0.52, 35.6), Place("lower", 0.52, 34.5)
    assert lower.is_just_below(upper)
    assert not upper.is_just_below(lower)
    assert not lower.is_just_below(lower)
    figure = draw_phase(few_phases(), [upper, lower])
    figure.canvas.draw()
    first, second = (text.get_window_extent() for text in figure.axes[0].texts)
    assert not first.overlaps(second)


def test_depth_has_a_panel_per_normalisation() -> None:
    left, right = draw_depth(few_depths()).axes
    assert left.get_title() == "row normalisation"
    assert list(right.get_xticks()) == [1, 2]
