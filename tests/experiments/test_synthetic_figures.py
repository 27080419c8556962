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


def test_depth_has_a_panel_per_normalisation() -> None:
    left, right = draw_depth(few_depths()).axes
    assert left.get_title() == "row normalisation"
    assert list(right.get_xticks()) == [1, 2]
