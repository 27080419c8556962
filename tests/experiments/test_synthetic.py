from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import synthetic
from experiments.synthetic import OPERATORS
from experiments.synthetic_settings import Design, GraphSetting, measure
from fairmp.analysis.theory.block_model import block_graph
from tests.experiments.synthetic_points import few_depths, few_panels, few_phases


def test_run_writes_records_summary_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {
        "panels": few_panels(),
        "agreement": few_phases(),
        "phase": few_phases(),
        "depth": few_depths(),
    }
    remaining = iter(points.values())

    def measured(design: Design, seed: int, progress):
        progress("done")
        return next(remaining)

    monkeypatch.setattr(synthetic, "designs", lambda quick: dict.fromkeys(points, Design(2, [])))
    monkeypatch.setattr(synthetic, "measure_all", measured)
    progress: list[str] = []
    folder = tmp_path / "new" / "folder"
    graphs = [block_graph(500, 0.02, 0.9, 0.3)]
    summary = synthetic.run(folder, quick=True, graphs=graphs, progress=progress.append)
    assert progress == ["done"] * len(points)
    assert json.loads((folder / "synthetic.json").read_text(encoding="utf-8")) == summary
    assert [graph["name"] for graph in summary["graphs"]] == ["block model"]
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == sum(map(len, points.values())) + 2 * len(OPERATORS)
    for series in ("sign_flip", "counterexample"):
        assert [point["normalisation"] for point in summary[series]] == list(OPERATORS)
    assert {"command", "code"} <= summary.keys()
    for name in synthetic.CAPTIONS:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same experiments on a handful of small graphs."""

    def designs(quick: bool) -> dict[str, Design]:
        assert quick
        series = {"panels": ("density", "nodes", "ratio")}
        return {
            name: Design(
                2,
                [
                    (kind, GraphSetting(400, 0.03, eps, 0.5, normalisation=normalisation))
                    for kind in series.get(name, (name,))
                    for normalisation in (("symmetric",) if name == "phase" else OPERATORS)
                    for eps in (0.5, 0.9)
                ],
            )
            for name in ("panels", "agreement", "phase", "depth")
        }

    monkeypatch.setattr(synthetic, "designs", designs)
    monkeypatch.setattr(synthetic, "COUNTEREXAMPLE", GraphSetting(400, 0.03, 0.64, 0.5))


def test_command_writes_records_figures_and_a_page(
    small: None, experiments, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    status, out, err = experiments("synthetic --quick --out s --data-dir empty")
    assert status == 0, err
    assert "This takes about 20 seconds" in err
    assert "counterexample" in out
    assert "files were not found: NBA" in out
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert {"records.jsonl", "synthetic.json", "phase.png", "report.html"} <= names
    for line in (tmp_path / "s" / "records.jsonl").read_text().splitlines():
        json.loads(line)
    page = (tmp_path / "s" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(synthetic.CAPTIONS)
    assert "http" not in page


def test_headline_counts_false_alarms_of_each_condition() -> None:
    point = {"printed": 1.31, "corrected": 0.91, "information_measured": -0.036}
    point |= {"information_interval": 0.004, "information_predicted": -0.034}
    rows = [
        {"form": form, "normalisation": operator, "false_alarms": count, "decided": 568}
        for form, operator, count in (
            ("as printed", "symmetric", 49),
            ("corrected", "symmetric", 1),
            ("as printed", "row", 3),
            ("corrected", "row", 5),
        )
    ]
    witnesses = [
        {**point, "normalisation": "row", "information_measured": -0.05},
        {**point, "normalisation": "symmetric"},
    ]
    text = synthetic.headline({"agreement": rows, "counterexample": witnesses})
    assert text.startswith("In 49 of 568 settings")
    assert "1.31" in text
    assert "-0.036 ±" in text


def test_counterexample_table_has_both_operators_in_nats_and_points() -> None:
    point = {"printed": 1.31, "corrected": 0.9, "parity_measured": -0.0163}
    point |= {"parity_interval": 0.0032, "parity_predicted": -0.0166}
    point |= {"information_measured": -0.0216, "information_interval": 0.0037}
    point |= {"information_predicted": -0.0203}
    points = [{**point, "normalisation": operator} for operator in OPERATORS]
    table = synthetic.counterexample({"counterexample": points})
    numbers = ["1.31", "0.90", "-0.022 ± 0.004", "-0.020", "-1.6 ± 0.3", "-1.7"]
    assert [row[1:] for row in table.rows] == [numbers, numbers]
    assert len({row[0] for row in table.rows}) == 2


def test_prediction_error_table_has_shares_and_a_column_per_degree() -> None:
    covered = {"gap": 0.95, "parity": 0.79, "fixed_parity": 0.5, "information": 0.96}
    errors = {"3": 0.0155, "20 or more": 0.0029}
    table = synthetic.prediction_error(
        {
            "coverage": dict.fromkeys(OPERATORS, covered),
            "parity_error": dict.fromkeys(OPERATORS, errors),
        }
    )
    assert [row[1:] for row in table.rows] == 2 * [["95%", "96%", "79%", "1.6", "0.3"]]
    assert all(len(row) == len(table.header) for row in table.rows)


def test_operator_decides_the_sign_of_the_best_decision_and_not_of_a_fixed_threshold() -> None:
    """Unequal groups: with Ã degrees carry the group; with row averaging they do not."""
    changes = {
        operator: measure(
            GraphSetting(4_000, 2.5e-3, 0.6, 0.9, normalisation=operator), seeds=2, seed=1
        )
        for operator in OPERATORS
    }
    assert changes["symmetric"]["parity_measured"] > 0.03
    assert changes["row"]["parity_measured"] < -0.15
    for change in changes.values():
        assert change["fixed_parity_measured"] < -0.3
        for quantity in ("parity", "fixed_parity"):
            error = change[f"{quantity}_measured"] - change[f"{quantity}_predicted"]
            assert abs(error) < 0.08
