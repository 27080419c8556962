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


def test_file_names_are_lower_case_words() -> None:
    assert page.file_name("Pokec-n (graph)") == "pokec-n-graph"
