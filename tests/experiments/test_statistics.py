from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import grids, statistics
from fairmp.datasets.statistics import PAPER, Statistics

FIELDS = ("nodes", "features", "edges", "label_homophily", "sens_homophily")
PRINTED = {  # in the paper, in this order
    "nba": ["403", "95", "21,242", "39.22", "72.37"],
    "pokec-z": ["67,796", "276", "1,235,916", "71.16", "95.06"],
    "pokec-n": ["66,569", "265", "1,034,094", "73.23", "95.30"],
}


def cells(line: list[str]) -> list[str]:
    """The figures of a row but the one that the paper does not have."""
    figures = [cell.strip() for cell in line[1:]]
    assert figures.pop(4) in ("–", "50.00")
    return figures


def test_command_describes_the_data_sets_that_are_found(experiments, tmp_path: Path) -> None:
    status, out, err = experiments("statistics --quick --out s")
    assert status == 0, err
    assert "Left out, NBA: " in err
    assert "embedded network" in out
    record = json.loads((tmp_path / "s" / "statistics.json").read_text("utf8"))
    assert record["embedded:1000"]["nodes"] == 1000
    assert "Left out" in (tmp_path / "s" / "report.html").read_text("utf8")


def test_command_sets_the_papers_figures_beneath_ours(
    experiments, made_up_files: Path, tmp_path: Path
) -> None:
    status, out, err = experiments(f"statistics --quick --data-dir {made_up_files} --out s")
    assert status == 0, err
    assert "Left out, NBA" not in err
    lines = [line.split() for line in out.splitlines()]
    row = next(k for k, line in enumerate(lines) if line[:1] == ["NBA"])
    # The made-up file has as many players as the paper says, and nothing else in common with it.
    assert lines[row][1:5] == ["403", "✓", "1", "✗"]
    assert lines[row].count("✗") == 4
    assert lines[row + 1] == ["paper", *PRINTED["nba"][:4], "–", PRINTED["nba"][4]]
    [german] = [line for line in lines if line[:1] == ["German"]]
    assert not {"✓", "✗"} & set(german)  # the paper does not have it
    record = json.loads((tmp_path / "s" / "statistics.json").read_text("utf8"))
    assert record["nba"]["nodes"] == 403
    assert "21,242" in (tmp_path / "s" / "report.html").read_text("utf8")


@pytest.mark.parametrize("name", PRINTED)
def test_each_figure_of_the_paper_is_compared_with_ours(name: str) -> None:
    equal = replace(PAPER[name], label_homophily_labelled=0.5)
    printed = PRINTED[name]
    [table] = statistics.content({name: equal}).parts
    ours, paper = table.rows
    assert cells(paper) == printed
    assert cells(ours) == [f"{figure} ✓" for figure in printed]
    # One more node, feature or edge, or a hundredth of a point, is another figure.
    for changed, field in enumerate(FIELDS):
        other = getattr(equal, field) + (1e-4 if "homophily" in field else 1)
        [table] = statistics.content({name: replace(equal, **{field: other})}).parts
        marks = [cell[-1] for cell in cells(table.rows[0])]
        assert marks == ["✗" if k == changed else "✓" for k in range(5)]


def test_graphs_that_the_paper_does_not_have_are_not_compared() -> None:
    [table] = statistics.content(
        {"german": Statistics("German", 1000, 26, 43_484, 0.6, 0.6, 0.8)}
    ).parts
    assert len(table.rows) == 1
    assert not any(mark in cell for cell in table.rows[0] for mark in "✓✗")


@pytest.mark.parametrize("name", PRINTED)
def test_both_copies_of_the_papers_figures_agree(name: str) -> None:
    figures = grids.printed()["statistics"][name]
    for field in FIELDS:
        unit = 100 if "homophily" in field else 1
        assert unit * getattr(PAPER[name], field) == pytest.approx(figures[field])
