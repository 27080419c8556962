"""Tables of predictions are read once and written again with more columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.errors import InputError
from fairmp.frames import MISSING
from fairmp.postprocessing import prediction_columns, prediction_table
from fairmp.postprocessing.prediction_columns import class_names
from fairmp.postprocessing.prediction_table import PredictionTable, write
from fairmp.postprocessing.predictions import attributes

FRAME = pd.DataFrame(
    {
        "person": ["007", "8", "9"],
        "p": [0.25, 0.5, 0.1234567890123],
        "income": [1.5, None, 3.0],
        "age": pd.array([30, None, 50], dtype="Int64"),
        "note": ["a;b", None, "c"],
        "member": [True, False, True],
    }
)


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_write_keeps_missing_values_of_parquet(tmp_path: Path, name: str) -> None:
    FRAME.to_parquet(tmp_path / "in.parquet")
    table = PredictionTable.read(tmp_path / "in.parquet", id="person")
    prediction_table.write(table, {"q": np.array([0.1, 0.2, 1 / 3])}, tmp_path / name)
    if name.endswith("parquet"):
        written = pd.read_parquet(tmp_path / name)
    else:
        written = pd.read_csv(tmp_path / name, dtype={"person": str, "age": "Int64"})
    assert written["person"].tolist() == FRAME["person"].tolist()
    assert written["p"].tolist() == FRAME["p"].tolist()
    assert written["q"].tolist() == pytest.approx([0.1, 0.2, 1 / 3])
    for column in ("income", "age", "note"):
        assert written[column].isna().tolist() == [False, True, False]
    assert written["age"].dropna().tolist() == [30, 50]
    assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_write_keeps_the_dialect_of_text(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id;p;income\n007;0,25;"1.234,5"\n8;0,5;NA\n')
    table = PredictionTable.read(path, id="id")
    assert table.numbers("probabilities", "p").tolist() == [0.25, 0.5]
    assert table.reader.locate(0) == "line 2"
    prediction_table.write(table, {"q": np.array([0.125, 0.75])}, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == (
        "id;p;income;q\n007;0,25;1.234,5;0,125\n8;0,5;NA;0,75\n"
    )


@pytest.mark.parametrize("marker", MISSING)
def test_read_groups_has_the_missing_values_of_python(tmp_path: Path, marker: str) -> None:
    sex = ["f", "m", marker, "f", "m"]
    (attribute,) = attributes(sex, 5)
    assert attribute.groups == ("f", "m")
    assert attribute.sens.tolist() == [0, 1, -1, 0, 1]
    pd.DataFrame({"sex": sex, "p": 0.5}).to_csv(tmp_path / "in.csv", index=False)
    table = PredictionTable.read(tmp_path / "in.csv", id=None)
    groups = prediction_columns.read_groups(table, ["sex"], None, cross=False)
    assert groups[0].groups == attribute.groups
    assert groups[0].sens.tolist() == attribute.sens.tolist()


@pytest.mark.parametrize("safe", [True, False])
def test_write_quotes_text_that_a_spreadsheet_would_run(tmp_path: Path, safe: bool) -> None:
    path = tmp_path / "in.csv"
    cells = ["=1+1", "+cmd", "-x", "@sum", "-1.5", "-", "plain", ""]
    frame = pd.DataFrame({"=who": cells, "p": [0.5, -1.5] * 4})
    frame.to_csv(path, index=False)
    table = PredictionTable.read(path, id="=who")
    prediction_table.write(table, {"d": ["=no"] * 8}, tmp_path / "out.csv", safe=safe)
    written = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    mark = "'" if safe else ""
    assert list(written) == [f"{mark}=who", "p", "d"]
    expected = [f"{mark}{cell}" for cell in cells[:4]] + cells[4:]
    assert written[f"{mark}=who"].tolist() == expected
    assert written["p"].tolist() == frame["p"].tolist()
    assert set(written["d"]) == {f"{mark}=no"}
    again = PredictionTable.read(tmp_path / "out.csv", id="=who")  # as it was, marked or not
    assert again.columns == ["=who", "p", "d"]
    assert again.plain["=who"].to_pylist() == cells


def test_class_names_are_what_columns_do_not_share() -> None:
    assert class_names(["no", "yes"]) == ("no", "yes")
    assert class_names(["p_0", "p_1", "p_2"]) == ("0", "1", "2")
    assert class_names(["north", "nowhere"]) == ("north", "nowhere")
    assert class_names(["p", "p_1"]) == ("p", "p_1")


def table_of(tmp_path: Path, **columns: object) -> PredictionTable:
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    return PredictionTable.read(tmp_path / "t.csv")


def test_read_scores_finds_columns_that_sum_to_1(tmp_path: Path) -> None:
    p = np.linspace(0.1, 0.9, 5)
    table = table_of(tmp_path, p_no=1 - p, p_yes=p, q=p / 2)
    scores = prediction_columns.read_scores(table, taken={})
    assert scores.columns == ("p_no", "p_yes")
    assert scores.class_names == ("no", "yes")
    np.testing.assert_allclose(scores.values[:, 1], p)
    single = prediction_columns.read_scores(table, probabilities="q", taken={})
    np.testing.assert_allclose(single.values[:, 1], p / 2)
    odds = prediction_columns.read_scores(table, logits="q", taken={})
    assert (odds.kind, odds.are_log_odds) == ("logits", True)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"probabilities": "age"}, "probabilities"),
        ({"probabilities": "p,p"}, "probabilities"),
        ({"probabilities": "none"}, "probabilities"),
        ({"probabilities": "p", "logits": "p"}, "logits"),
        ({"decision": "empty"}, "decision"),
        ({"taken": {"p": "sensitive"}}, "sensitive"),
    ],
)
def test_read_scores_names_wrong_columns(
    tmp_path: Path, arguments: dict[str, object], argument: str
) -> None:
    table = table_of(tmp_path, p=[0.2, 0.5, 0.7], age=[20, 30, 40], empty=["a", "b", None])
    with pytest.raises(InputError) as error:
        prediction_columns.read_scores(table, **({"taken": {}} | arguments))  # type: ignore[arg-type]
    assert error.value.argument == argument


def test_read_labels_follow_the_classes_of_the_scores(tmp_path: Path) -> None:
    p = np.linspace(0.1, 0.9, 5)
    table = table_of(tmp_path, p_no=1 - p, p_yes=p, y=["yes", "no", "", "yes", "no"], s=p / 2)
    scores = prediction_columns.read_scores(table, probabilities="p_yes,p_no", taken={})
    labels = prediction_columns.read_labels(table, "y", scores)
    assert labels.class_names == ("yes", "no")
    assert labels.y.tolist() == [0, 1, -1, 0, 1]
    single = prediction_columns.read_scores(table, probabilities="s", taken={})
    named = prediction_columns.read_labels(table, "y", single, positive="no")
    assert named.class_names == ("yes", "no")


@pytest.mark.parametrize("positive", [None, "approved"])
def test_good_decision_is_the_last_class(tmp_path: Path, positive: str | None) -> None:
    p = np.linspace(0.1, 0.9, 5)
    table = table_of(tmp_path, p_approved=p, p_rejected=1 - p)
    scores = prediction_columns.read_scores(table, probabilities="p_approved,p_rejected", taken={})
    ordered = prediction_columns.with_positive_last(scores, positive)
    assert ordered.class_names == ("rejected", "approved")
    assert ordered.columns == ("p_rejected", "p_approved")
    np.testing.assert_allclose(ordered.values[:, 1], p)
    assert prediction_columns.with_positive_last(scores, "rejected") is scores


def test_mask_reads_true_and_false(tmp_path: Path) -> None:
    table = table_of(tmp_path, ours=["yes", "0", "True", ""], odd=["yes", "0", "maybe", ""])
    assert table.mask("population", "ours").tolist() == [True, False, True, False]
    with pytest.raises(InputError, match="'maybe'"):
        table.mask("population", "odd")


@pytest.mark.parametrize("safe", [True, False])
def test_cells_with_apostrophes_are_written_as_they_were(tmp_path: Path, safe: bool) -> None:
    cells = ["'-5", "'+1.5", "'=A1", "'@x", "it's", "-5", "''"]
    pd.DataFrame({"note": cells, "p": [0.5] * 7}).to_csv(tmp_path / "p.csv", index=False)
    table = PredictionTable.read(tmp_path / "p.csv")
    assert table.cells("id", "note") == ["'-5", "'+1.5", "=A1", "@x", "it's", "-5", "''"]
    write(table, {"new": list(range(7))}, tmp_path / "out.csv", safe=safe)
    assert pd.read_csv(tmp_path / "out.csv", dtype=str)["note"].tolist() == cells
