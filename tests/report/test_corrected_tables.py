"""The record of a corrected table, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.postprocessing.debias_table import TableSpec, debias_table
from fairmp.report import corrected_tables
from fairmp.report.from_results import from_corrected

RNG = np.random.default_rng(0)
SEX = np.where(RNG.random(300) < 0.5, "f", "m")
P = (1 / (1 + np.exp(-RNG.normal(size=300) - (SEX == "m")))).round(6)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    choice = np.where(P > 0.5, "take", "leave")
    frame = pd.DataFrame({"p": P, "sex": SEX, "paid": (P > 0.6).astype(int), "choice": choice})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_record_is_json_and_makes_a_document(people: Path) -> None:
    spec = TableSpec(people, ["sex"], probabilities="p", label="paid", target=[0.02])
    corrected = debias_table(spec)
    record = corrected_tables.record(
        spec, corrected, file=Path("out.csv"), panel_command="again --target {target}"
    )
    record = json.loads(json.dumps(record, allow_nan=False))
    assert (record["data"], record["rows"], record["file"]) == ("people.csv", 300, "out.csv")
    assert record["panel"]["criteria"][0]["command"] == "again --target {target}"
    assert len(record["reliability"]) == 2
    document = from_corrected(record)
    assert document["metrics"][1]["target"] == 0.02
    assert corrected_tables.advice(corrected) == []


def test_record_of_decisions_or_a_saved_correction_has_no_panel(
    people: Path, tmp_path: Path
) -> None:
    drawn = TableSpec(people, ["sex"], decision="choice")
    corrected = debias_table(drawn)
    assert "panel" not in corrected_tables.record(
        drawn, corrected, file=Path("o.csv"), panel_command=""
    )
    assert "by chance" in corrected_tables.advice(corrected)[0]
    saving = TableSpec(people, ["sex"], probabilities="p", save=tmp_path / "c.json")
    fitted = debias_table(saving)
    assert "on 1,000 new rows" in corrected_tables.expected_gap_text(fitted)


def test_advice_says_that_decisions_miss_the_target_of_probabilities(people: Path) -> None:
    spec = TableSpec(people, ["sex"], probabilities="p", target=[0.15], on="probabilities")
    corrected = debias_table(spec)
    (one,) = corrected.result.criteria
    assert bool(corrected_tables.advice(corrected)) == (one.decisions_after > 0.16)
    assert from_corrected(corrected.result.to_dict())["metrics"][0]["target"] is None
