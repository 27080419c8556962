from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairmp.comparison import page
from fairmp.comparison.summary import Comparison, compared
from fairmp.report.formats import Table
from tests.comparison.test_summary import record


@pytest.fixture
def records() -> list[dict[str, Any]]:
    versions = {"device": "cpu", "run": {"versions": {"fairmp": "0"}}}
    runs = [record("mlp", 0.8, 0.2), record("fmp", 0.7, 0.01, 0.0)]
    return [{**run, "device": "cpu", "run": run["run"] | versions["run"]} for run in runs]


def written(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def test_page_has_tables_figures_and_the_fairest_method(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    page.write(records, tmp_path, title="T", summary="S.", command="again")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"table.csv", "table.md", "table.tex", "report.html", "tradeoff-nba.png"}
    report = written(tmp_path)
    assert report["summary"].startswith("S. On NBA, FMP target=0 has the smallest ΔDP: 1.0 points")
    titles = [section["title"] for section in report["extra"]]
    assert titles == ["NBA", "Hypervolume (hundredths)", "Setting"]


def test_other_figure_and_further_tables(records: list[dict[str, Any]], tmp_path: Path) -> None:
    def draw(comparison: Comparison, name: str) -> Any:
        return page.tradeoff(comparison, name)

    figure = page.Figure("mine", draw, "a caption", is_tradeoff=False)
    tables = [Table("More", ["a"], [["1"]])]
    page.write(
        records,
        tmp_path,
        title="T",
        summary="S.",
        command="again",
        further_tables=lambda comparison: tables,
        note="a note",
        figure=figure,
    )
    assert (tmp_path / "mine-nba.png").is_file()
    report = written(tmp_path)
    assert report["summary"] == "S."
    assert [section["title"] for section in report["extra"]] == ["NBA", "More", "Setting"]
    assert report["extra"][1]["caption"] == "a note"


def test_page_without_results_names_the_failures(tmp_path: Path) -> None:
    failed = [{**record("mlp", 0.8, 0.2), "failed": "why"}]
    page.write(failed, tmp_path, title="T", summary="S.", command="again")
    sections = {section["title"]: section for section in written(tmp_path)["extra"]}
    assert "No results" in sections
    assert sections["Failed runs"]["rows"] == [["nba: MLP, split 0", "why"]]


def test_headline_leaves_out_unknown_gaps(records: list[dict[str, Any]]) -> None:
    unknown = record("gcn", 0.9, 0.0)
    unknown["run"]["test"]["dp"] = None
    (sentence,) = page.headline(compared([*records, unknown]))
    assert "FMP" in sentence
    assert page.headline(compared([unknown])) == []


def constant(run: dict[str, Any], share: float = 1.0) -> dict[str, Any]:
    """A run that decides class 0 for a share of everybody."""
    groups = [
        {"count": 50, "rates": [share, 1 - share]},
        {"count": 30, "rates": [share, 1 - share]},
    ]
    run["run"]["test"] |= {"groups": groups, "dp": 0.0}
    return run


def test_headline_leaves_out_methods_that_decide_the_same_for_everybody(
    records: list[dict[str, Any]],
) -> None:
    comparison = compared([*records, constant(record("gat", 0.509, 0.0))])
    fairest, left_out = page.headline(comparison)
    assert fairest.startswith("On NBA, FMP target=0 has")
    assert left_out == "GAT decides the same for nearly everybody, so the gap is trivial."
    (sentence,) = page.headline(compared([constant(record("gat", 0.509, 0.0))]))
    assert sentence == "GAT decides the same for nearly everybody on NBA."


def test_table_marks_methods_that_decide_the_same_for_everybody(
    records: list[dict[str, Any]], tmp_path: Path
) -> None:
    gat = constant(record("gat", 0.509, 0.0)) | {"device": "cpu"}
    gat["run"]["versions"] = {"fairmp": "0"}
    comparison = page.write([*records, gat], tmp_path, title="T", summary="", command="again")
    [table] = comparison.method_tables()
    assert [row[0] for row in table.rows] == ["MLP", "FMP target=0", "GAT (constant)"]
    column = list(table.header).index("ΔDP")
    assert [i for i, j in table.bold if j == column] == [1]
    assert "Constant: " in written(tmp_path)["extra"][0]["caption"]


def test_one_constant_split_is_enough_to_mark_a_method() -> None:
    runs = [constant(record("gat", 0.7, 0.1), share) for share in (0.5, 0.995)]
    runs[1] |= record("gat", 0.7, 0.1, split=1) | {"run": runs[1]["run"]}
    [line] = compared(runs).lines["NBA"]
    assert line.is_constant
    assert not compared(runs[:1]).lines["NBA"][0].is_constant


def test_file_names_are_lower_case_words() -> None:
    assert page.file_name("Pokec-n (graph)") == "pokec-n-graph"
