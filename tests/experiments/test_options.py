from __future__ import annotations

import pytest

from experiments.options import Page, Scope, on_terminal
from experiments.paper import Claim, claims_table
from fairmp.errors import InputError
from fairmp.report import Section
from fairmp.report.formats import Table


def test_named_data_sets_are_loaded_before_the_usual_ones() -> None:
    data_sets = Scope(data=["embedded:60"]).load(["embedded:50"], ["embedded:40"])
    assert list(data_sets.graphs) == ["embedded:60"]
    assert Scope(quick=True).load(["embedded:50"], ["embedded:40"]).graphs["embedded:50"].num_nodes
    assert list(Scope().load(["embedded:50"], ["embedded:40"]).graphs) == ["embedded:40"]


def test_absent_files_are_named_and_nothing_at_all_is_refused(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_sets = Scope(data=["embedded:60", "nba"], data_dir=tmp_path).load([])
    assert list(data_sets.graphs) == ["embedded:60"]
    assert list(data_sets.absent) == ["NBA"]
    assert "NBA" in capsys.readouterr().err
    with pytest.raises(InputError, match="--data"):
        Scope(data=["nba"], data_dir=tmp_path).load([])


def test_claims_are_sentences_on_a_terminal() -> None:
    claim = Claim("It is fair", "NBA", "yes", "no", "does not hold")
    assert on_terminal(claims_table([claim])) == ["The paper's claims", str(claim)]


def test_page_writes_its_tables_and_what_was_left_out(tmp_path) -> None:
    table = Table("Sizes", ["graph", "nodes"], [["NBA", "403"]])
    written = Page("A title", "A summary.", [Section("Text", ["some"]), table]).write(
        tmp_path, {"Bail": "its files were not found"}
    )
    assert written == [table]
    assert "| NBA | 403 |" in (tmp_path / "table.md").read_text("utf8")
    page = (tmp_path / "report.html").read_text("utf8")
    assert "A summary." in page
    assert "its files were not found" in page
