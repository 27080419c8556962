"""A table of predictions is evaluated by the classes and groups of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing.evaluate_table import EvaluationSpec, evaluate_table

RNG = np.random.default_rng(0)
P = RNG.random(200)
SEX = np.where(RNG.random(200) < 0.5, "f", "m")
FRAME = pd.DataFrame(
    {"p(yes)": P, "p(no)": 1 - P, "sex": SEX, "paid": np.where(P > 0.4, "yes", "no")}
)


@pytest.fixture
def spec(tmp_path: Path) -> EvaluationSpec:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    return EvaluationSpec(tmp_path / "t.csv", ("no", "yes"), ("sex = f", "sex = m"), "sex")


def test_evaluate_table_equals_evaluate(spec: EvaluationSpec) -> None:
    found = evaluate_table(replace(spec, label="paid"))
    proba = np.stack([1 - P, P], 1)
    y, sens = (P > 0.4).astype(int), (SEX == "m").astype(int)
    expected = evaluate(proba, y, sens)
    assert found.accuracy == pytest.approx(expected.accuracy)
    assert found.dp == pytest.approx(expected.dp)
    assert found.class_names == ("no", "yes")


def test_evaluate_table_uses_labels_that_are_present(spec: EvaluationSpec) -> None:
    optional = replace(spec, label_if_present="paid")
    assert not np.isnan(evaluate_table(optional).accuracy)
    FRAME.drop(columns="paid").to_csv(spec.predictions, index=False)
    assert np.isnan(evaluate_table(optional).accuracy)
    with pytest.raises(InputError, match="label"):
        evaluate_table(replace(spec, label="paid"))


def test_evaluate_table_counts_rows_of_unknown_group(spec: EvaluationSpec) -> None:
    FRAME.assign(sex=np.where(np.arange(200) < 7, "x", SEX)).to_csv(spec.predictions, index=False)
    assert any("7 rows of unknown group" in note for note in evaluate_table(spec).notes)


def test_evaluate_table_refuses_other_classes(spec: EvaluationSpec) -> None:
    with pytest.raises(InputError) as error:
        evaluate_table(replace(spec, class_names=("no", "maybe", "yes")))
    assert error.value.argument == "predictions"
