from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import external
from experiments.attribution_tables import (
    BATCH,
    DEFAULT,
    ONE_FOLD,
    ROWS,
    SUMMARY,
    changes,
    propagation,
    summary,
    table,
)
from experiments.rivals.tuning import METHODS as RIVALS


def test_command_measures_every_row_and_continues(experiments, tmp_path: Path) -> None:
    words = "attribution --quick --graph embedded:240 --out r --jobs 1"
    status, out, err = experiments(words)
    assert status == 0, err
    assert "4 parts of graphs and splits, 4 to go" in err
    [record] = json.loads((tmp_path / "r" / "attribution.json").read_text("utf8"))["records"]
    assert set(record["rows"]) == {*ROWS, *ONE_FOLD} - set(RIVALS)
    assert all(name in out for name in ("MLP + FMP", "group_free"))
    # One node more or less in a group.
    closed, uncorrected = (record["rows"][title]["dp"] for title in (DEFAULT, "default blend"))
    assert closed <= record["one_node"] < uncorrected
    for target, figures in record["targets"].items():
        assert closed - 1e-9 <= figures["dp"] <= max(float(target), closed) + record["one_node"]
    assert 0.5 <= record["majority"] <= record["base_rate_bound"] <= 1
    status, _, err = experiments(words)
    assert status == 0, err
    assert "0 to go" in err
    status, _, err = experiments("attribution --quick --graph nbaa --out typo")
    assert (status, (tmp_path / "typo").exists()) == (2, False)
    assert "nbaa" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    status, _, err = experiments(words.replace("--out r", "--out other"))
    assert status == 2
    assert "is not empty" in err


def test_rows_of_rivals_come_from_their_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(RIVALS) < set(ROWS)
    figures = {"accuracy": 0.5, "dp": 0.01, "eo": 0.02}
    record = {"rows": {"FairClassifier(), per node": figures}, "floor": 0.1, "propagates": True}
    records = [{**record, "data": "nba", "split": split} for split in range(2)]
    fits = [{"data": "nba", "split": split, "rows": {"NIFTY": figures}} for split in range(2)]
    monkeypatch.setattr(external, "exists", lambda name: name == "rivals")
    monkeypatch.setattr(external, "read", lambda name: {"records": fits})
    assert [row[0] for row in table(records, "nba").rows] == ["NIFTY", "FairClassifier(), per node"]
    del fits[1]  # not run on every split: no row
    assert [row[0] for row in table(records, "nba").rows] == ["FairClassifier(), per node"]


def test_table_has_paired_differences_within_a_track(monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    for split in range(5):
        rows = {
            name: {"accuracy": 0.7 + 0.01 * split, "dp": 0.01, "eo": 0.02}
            for name in ROWS
            if name != "FairClassifier(group_free=True)"  # was not run
        }
        rows["MLP + FMP"]["accuracy"] -= 0.02
        records.append(
            {"data": "nba", "split": split, "rows": rows, "floor": 0.1, "propagates": split > 2}
        )
    shown = table(records, "nba")
    by_name = {row[0]: row[1:] for row in shown.rows}
    assert "on 2 of 5 splits" in shown.title
    assert "floor 10.0" in shown.header[3]
    assert by_name["MLP + FMP"][0] == BATCH
    assert by_name["MLP + FMP"][-1] == "-2.0 ± 0.0"  # constant over splits, unlike accuracy
    assert by_name["FairClassifier()"][-1] == by_name["MLP"][-1] == "–"
    assert "FairClassifier(group_free=True)" not in by_name
    assert table(records, "german").rows == []


def test_changes_are_paired_with_the_same_scores_uncorrected() -> None:
    records = []
    for split in range(5):
        rows = {name: {"accuracy": 0.6 + 0.05 * split, "dp": 0.1, "eo": 0.0} for name in ROWS}
        rows[DEFAULT] = {"accuracy": 0.59 + 0.05 * split, "dp": 0.0, "eo": 0.0}
        records.append({"data": "nba", "split": split, "rows": rows})
    by_title = {row[0]: row[1:] for row in changes(records, "accuracy").rows}
    assert by_title[DEFAULT] == [BATCH, "-1.0 ± 0.0"]
    assert by_title["MLP + FMP (paper)"] == [BATCH, "+0.0 ± 0.0"]
    gaps = {row[0]: row[2] for row in changes(records, "dp").rows}
    assert gaps[DEFAULT] == "-10.0 ± 0.0"


def test_short_tables_have_the_records_figures() -> None:
    records = [
        {
            "data": "nba",
            "split": split,
            "floor": 0.1,
            "propagates": split == 0,
            "rows": {name: {"accuracy": 0.5 + 0.1 * split, "dp": 0.02, "eo": 0.0} for name in ROWS},
        }
        for split in range(2)
    ]
    short = summary(records, "nba")
    assert [row[1] for row in short.rows] == ["none", "batch", "batch", "per node", "per node"]
    assert short.rows[0][2].startswith("55.0 ± ")
    assert [row[3] for row in short.rows] == ["2.0 ± 0.0"] * len(SUMMARY)
    assert propagation(records).rows == [["NBA", "1 of 2 splits"]]
