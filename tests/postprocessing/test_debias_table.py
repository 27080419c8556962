"""A table of predictions is corrected as its columns say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import debias
from fairmp.errors import InputError
from fairmp.postprocessing.debias_table import TableSpec, added_columns, debias_table

RNG = np.random.default_rng(0)
N = 400
SEX = np.where(RNG.random(N) < 0.5, "f", "m")
P = (1 / (1 + np.exp(-RNG.normal(size=N) - (SEX == "m")))).round(6)
FRAME = pd.DataFrame(
    {
        "p": P,
        "sex": SEX,
        "paid": np.where(RNG.random(N) < P, "yes", "no"),
        "choice": np.where(P > 0.5, "take", "leave"),
        "z": np.log(P / (1 - P)).round(6),
    }
)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_table_equals_debias(people: Path, on: str) -> None:
    spec = TableSpec(people, ["sex"], probabilities="p", label="paid", target=[0.02], on=on)  # type: ignore[arg-type]
    corrected = debias_table(spec)
    y = (FRAME["paid"] == "yes").astype(int)
    expected = debias(P, SEX, target=0.02, y=y, on=on, full_output=True)
    np.testing.assert_allclose(corrected.result.predictions[:, 1], expected.predictions)
    assert corrected.result.classes == ("no", "yes")
    columns = added_columns(corrected, seed=0)
    assert list(columns) == ["p_corrected", "decision_before", "decision_corrected"]
    np.testing.assert_allclose(columns["p_corrected"], expected.predictions)


def test_debias_table_saves_and_applies_a_correction(people: Path, tmp_path: Path) -> None:
    fitted = debias_table(TableSpec(people, ["sex"], save=tmp_path / "c.json"))
    assert fitted.corrector is not None
    fitted.corrector.save(tmp_path / "c.json")
    FRAME[:50].drop(columns="paid").to_csv(tmp_path / "new.csv", index=False)
    applied = debias_table(TableSpec(tmp_path / "new.csv", ["sex"], apply=tmp_path / "c.json"))
    np.testing.assert_array_equal(applied.result.predictions, fitted.result.predictions[:50])


def test_debias_table_draws_decisions_without_scores(people: Path) -> None:
    corrected = debias_table(TableSpec(people, ["sex"], decision="choice", positive="take"))
    assert corrected.result.on == "probabilities"
    first, again, other = (added_columns(corrected, seed=seed) for seed in (0, 0, 1))
    assert first["decision_corrected"] == again["decision_corrected"]
    assert first["decision_corrected"] != other["decision_corrected"]
    assert abs(np.ptp([first["p_corrected"][g == SEX].mean() for g in "fm"])) < 1e-4


def test_debias_table_keeps_log_odds(people: Path) -> None:
    corrected = debias_table(TableSpec(people, ["sex"], logits="z"))
    z = added_columns(corrected, seed=0)["z_corrected"]
    assert np.ptp([(z[g == SEX] > 0).mean() for g in "fm"]) <= 1 / min(
        (g == SEX).sum() for g in "fm"
    )


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"sensitive": []}, "sensitive"),
        ({"sensitive": ["age"]}, "sensitive"),
        ({"features": "z"}, "features"),
        ({"save": Path("c.json"), "estimate_sens": True}, "estimate_sens"),
        ({"apply": Path("c.json"), "target": [0.1]}, "target"),
        ({"apply": Path("c.json"), "save": Path("d.json")}, "save"),
        ({"criterion": ["equal_opportunity"]}, "label"),
        ({"weight": "sex"}, "weight"),
        ({"label": "paid", "positive": "maybe"}, "positive"),
        ({"target": [0.1, 0.2]}, "target"),
    ],
)
def test_debias_table_names_wrong_arguments(
    people: Path, arguments: dict[str, object], argument: str
) -> None:
    settings = {"sensitive": ["sex"], "probabilities": "p"} | arguments
    with pytest.raises(InputError) as error:
        debias_table(TableSpec(people, **settings))  # type: ignore[arg-type]
    assert error.value.argument == argument
