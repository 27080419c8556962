from __future__ import annotations

import json

import pytest

from fairmp.cli import output
from fairmp.report.formats import Table

Capture = pytest.CaptureFixture[str]


def test_report_prints_a_record_or_lines(capsys: Capture) -> None:
    output.report(True, {"accuracy": 0.5, "name": "ä"}, "for people")
    assert json.loads(capsys.readouterr().out) == {"accuracy": 0.5, "name": "ä"}
    output.report(False, {}, "for people")
    assert capsys.readouterr().out == "for people\n"


def test_show_prints_long_lines_and_brackets_as_they_are(capsys: Capture) -> None:
    line = "[red] " + "word " * 100 + "end"
    output.show(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_tables_leave_out_columns(capsys: Capture) -> None:
    table = Table("Title", ["method", "AUC"], [["FMP", "0.9"]])
    output.show(*output.tables([table], leave_out=["AUC"]))
    shown = capsys.readouterr().out
    assert "FMP" in shown
    assert "AUC" not in shown


def test_say_prints_to_standard_error(capsys: Capture) -> None:
    output.say("note")
    assert capsys.readouterr() == ("", "note\n")


def test_elapsed_counts_from_the_start() -> None:
    first = output.elapsed()
    assert 0 < first <= output.elapsed()
