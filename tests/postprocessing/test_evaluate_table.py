"""A table of predictions is evaluated by the classes and groups of a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing import evaluate_table as module

RNG = np.random.default_rng(0)
P = RNG.random(200)
SEX = np.where(RNG.random(200) < 0.5, "f", "m")
FRAME = pd.DataFrame(
    {"p(yes)": P, "p(no)": 1 - P, "sex": SEX, "paid": np.where(P > 0.4, "yes", "no")}
)

evaluate_table = partial(
    module.evaluate_table,
    class_names=("no", "yes"),
    group_names=("sex = f", "sex = m"),
    sensitive="sex",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_evaluate_table_equals_evaluate(table: Path) -> None:
    evaluation = evaluate_table(table, label="paid")
    proba = np.stack([1 - P, P], 1)
    y, sens = (P > 0.4).astype(int), (SEX == "m").astype(int)
    expected = evaluate(y, proba, sensitive_features=sens)
    assert evaluation.accuracy == pytest.approx(expected.accuracy)
    assert evaluation.dp == pytest.approx(expected.dp)
    assert evaluation.class_names == ("no", "yes")


@pytest.mark.parametrize("how", ["decision", "decision_if_present"])
def test_evaluate_table_measures_the_column_of_decisions(table: Path, how: str) -> None:
    decided = np.where((SEX == "m") | (P > 0.7), "yes", "no")
    FRAME.assign(choice=decided).to_csv(table, index=False)
    evaluation = evaluate_table(table, label="paid", **{how: "choice"})
    expected = evaluate(FRAME["paid"], decided, sensitive_features=SEX, positive="yes")
    by_score = evaluate_table(table, label="paid")
    for key in ("accuracy", "dp", "eo", "impact_ratio"):
        assert getattr(evaluation, key) == pytest.approx(getattr(expected, key))
    assert evaluation.dp > by_score.dp + 0.1
    assert (evaluation.auc, evaluation.groups[0].score_counts) == (
        by_score.auc,
        by_score.groups[0].score_counts,
    )
    differing = (decided != np.where(P > 0.5, "yes", "no")).sum()
    assert any(f"{differing} rows differ" in note for note in evaluation.notes)
    with pytest.raises(InputError, match="'f' in column 'sex' is not a class"):
        evaluate_table(table, decision="sex")


def test_evaluate_table_uses_labels_that_are_present(table: Path) -> None:
    assert not np.isnan(evaluate_table(table, label_if_present="paid").accuracy)
    FRAME.drop(columns="paid").to_csv(table, index=False)
    assert np.isnan(evaluate_table(table, label_if_present="paid").accuracy)
    with pytest.raises(InputError, match="label"):
        evaluate_table(table, label="paid")


def test_evaluate_table_counts_rows_of_unknown_group(table: Path) -> None:
    FRAME.assign(sex=np.where(np.arange(200) < 7, "x", SEX)).to_csv(table, index=False)
    assert any("7 rows of unknown group" in note for note in evaluate_table(table).notes)


def test_evaluate_table_refuses_other_classes(table: Path) -> None:
    with pytest.raises(InputError) as error:
        evaluate_table(table, class_names=("no", "maybe", "yes"))
    assert error.value.argument == "predictions"


def test_groups_and_labels_keep_the_type_they_had_in_training(table: Path) -> None:
    codes = np.where(SEX == "f", "01", "02")
    frame = FRAME.assign(sex=codes).rename(columns={"p(no)": "p(00)", "p(yes)": "p(01)"})
    frame.assign(paid=np.where(P > 0.4, "01", "00")).to_csv(table, index=False)
    names = ("sex = 1", "sex = 2"), ("01", "02", "2A")  # numbers, and text
    for group_names in names:
        evaluation = evaluate_table(
            table, class_names=("00", "01"), group_names=group_names, label="paid"
        )
        counts = [group.count for group in evaluation.groups]
        assert counts[:2] == [(SEX == "f").sum(), (SEX == "m").sum()]
        assert evaluation.accuracy == pytest.approx(((P > 0.4) == (P > 0.5)).mean())
