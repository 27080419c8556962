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
        "paid_guess": np.where(P > 0.5, "yes", "no"),
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
    columns = added_columns(corrected)
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
    arguments = {"decision": "choice", "positive": "take"}
    first, again, other = (
        debias_table(TableSpec(people, ["sex"], **arguments, seed=seed)) for seed in (0, 0, 1)
    )
    columns = [added_columns(one) for one in (first, again, other)]
    assert list(columns[0]) == ["decision_before", "decision_corrected"]
    assert columns[0]["decision_corrected"] == columns[1]["decision_corrected"]
    assert columns[0]["decision_corrected"] != columns[2]["decision_corrected"]


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_figures_of_drawn_decisions_are_those_of_the_table(people: Path, criterion: str) -> None:
    from fairlearn.metrics import (
        demographic_parity_difference,
        equalized_odds_difference,
        true_positive_rate_difference,
    )

    oracles = {
        "demographic_parity": demographic_parity_difference,
        "equal_opportunity": true_positive_rate_difference,
        "equalized_odds": equalized_odds_difference,
    }
    spec = TableSpec(
        people, ["sex"], decision="paid_guess", label="paid", criterion=[criterion], target=[0.02]
    )
    corrected = debias_table(spec)
    columns = added_columns(corrected)
    names = ("decision_before", "decision_corrected")
    decisions = [np.array(columns[name]) == "yes" for name in names]
    assert corrected.result.changed == (decisions[0] != decisions[1]).sum() > 0
    (measured,) = corrected.result.criteria
    y = FRAME["paid"] == "yes"
    gaps = [oracles[criterion](y, decided, sensitive_features=SEX) for decided in decisions]
    assert [measured.decisions_before, measured.decisions_after] == pytest.approx(gaps)
    assert corrected.result.accuracy_after == pytest.approx((decisions[1] == y).mean())
    assert gaps[1] < gaps[0]


def test_decisions_of_several_classes_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    group = rng.choice(["a", "b", "c"], 600)
    grade = np.where(rng.random(600) < 0.3 + 0.3 * (group == "a"), "A", rng.choice(["B", "C"], 600))
    frame = pd.DataFrame({"group": group, "grade": grade})
    frame.to_csv(tmp_path / "grades.csv", index=False)
    corrected = debias_table(TableSpec(tmp_path / "grades.csv", ["group"], decision="grade"))
    after = pd.Series(added_columns(corrected)["decision_corrected"])
    rates = pd.crosstab(group, after, normalize="index")
    (measured,) = corrected.result.criteria
    assert measured.decisions_after == pytest.approx((rates.max() - rates.min()).max())
    assert measured.decisions_after < 0.03 < 0.25 < measured.decisions_before


def test_correction_of_decisions_is_saved_only_if_it_decides(people: Path, tmp_path: Path) -> None:
    arguments = {"decision": "paid_guess", "label": "paid", "save": tmp_path / "c.json"}
    assert debias_table(TableSpec(people, ["sex"], **arguments)).result.changed
    with pytest.raises(InputError, match="decision: this correction gives probabilities"):
        debias_table(TableSpec(people, ["sex"], criterion=["equalized_odds"], **arguments))
    with pytest.raises(InputError, match="on: 'probabilities', but a column of decisions"):
        debias_table(TableSpec(people, ["sex"], decision="paid_guess", on="probabilities"))


def test_debias_table_keeps_log_odds(people: Path) -> None:
    corrected = debias_table(TableSpec(people, ["sex"], logits="z"))
    z = added_columns(corrected)["z_corrected"]
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


def test_added_columns_never_replace_a_column(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"s": rng.choice(["a", "b"], 40), "p": rng.random(40)})
    frame["decision_corrected"] = rng.choice(["yes", "no"], 40)
    frame.to_csv(tmp_path / "p.csv", index=False)
    spec = TableSpec(tmp_path / "p.csv", sensitive=("s",), probabilities="p")
    added = added_columns(debias_table(spec))
    assert list(added) == ["p_corrected_2", "decision_before_2", "decision_corrected_2"]


def test_scores_of_the_other_class_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    answers = FRAME["paid"].map({"yes": "rejected", "no": "approved"})  # p is that of "rejected"
    FRAME.assign(paid=answers).to_csv(path, index=False)

    def notes(**arguments: str) -> list[str]:
        spec = TableSpec(path, ["sex"], probabilities="p", label="paid", **arguments)  # type: ignore[arg-type]
        return [note for note in debias_table(spec).notes if "AUC" in note]

    (note,) = notes()
    assert "scores of 'rejected'" in note
    assert notes(positive="rejected") == []


def test_groups_of_a_correction_keep_the_type_they_had(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name, before, now in (
        ("text", ["01", "1E3", "2A"], ["01", "1E3"]),  # all numbers now
        ("numbers", ["1", "2", "3"], ["1.0", "02", "3"]),
        ("booleans", ["True", "False"], ["1", "0"]),
    ):
        groups = rng.choice(before, 300)
        table = pd.DataFrame({"p": rng.random(300).round(4), "g": groups})
        table.to_csv(tmp_path / "a.csv", index=False)
        fitted = debias_table(TableSpec(tmp_path / "a.csv", ["g"], save=tmp_path / "c.json"))
        assert fitted.corrector is not None
        fitted.corrector.save(tmp_path / "c.json")
        new = table[table["g"].isin(before[: len(now)])]
        spellings = dict(zip(before, now, strict=False))
        new.assign(g=new["g"].map(spellings)).to_csv(tmp_path / "b.csv", index=False)
        applied = debias_table(TableSpec(tmp_path / "b.csv", ["g"], apply=tmp_path / "c.json"))
        expected = fitted.result.predictions[new.index.to_numpy()]
        np.testing.assert_array_equal(applied.result.predictions, expected, err_msg=name)
        assert not applied.notes[1:], name


def test_crossed_groups_of_a_correction_keep_the_type_they_had(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"p": rng.random(400).round(4), "g": rng.choice(["01", "2", "2A"], 400)})
    table["h"] = rng.choice([1, 2], 400)
    table.to_csv(tmp_path / "a.csv", index=False)
    spec = TableSpec(tmp_path / "a.csv", ["g", "h"], cross=True, save=tmp_path / "c.json")
    fitted = debias_table(spec)
    assert fitted.corrector is not None
    fitted.corrector.save(tmp_path / "c.json")
    new = table[table["g"] != "2A"]
    new.to_csv(tmp_path / "b.csv", index=False)
    spec = TableSpec(tmp_path / "b.csv", ["g", "h"], cross=True, apply=tmp_path / "c.json")
    applied = debias_table(spec)
    expected = fitted.result.predictions[new.index.to_numpy()]
    np.testing.assert_array_equal(applied.result.predictions, expected)


def test_new_groups_are_left_alone_with_a_note(people: Path, tmp_path: Path) -> None:
    fitted = debias_table(TableSpec(people, ["sex"], save=tmp_path / "c.json"))
    assert fitted.corrector is not None
    fitted.corrector.save(tmp_path / "c.json")
    FRAME.assign(sex=np.where(SEX == "f", "x", SEX)).to_csv(tmp_path / "new.csv", index=False)
    applied = debias_table(TableSpec(tmp_path / "new.csv", ["sex"], apply=tmp_path / "c.json"))
    assert any("not seen in fit (x)" in note for note in applied.notes)
    np.testing.assert_allclose(applied.result.predictions[SEX == "f", 1], P[SEX == "f"])


def test_groups_that_differ_as_text_stay_apart(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"p": rng.random(300), "g": rng.choice(["007", "7", "8"], 300)})
    table.to_csv(tmp_path / "t.csv", index=False)
    [attribute] = debias_table(TableSpec(tmp_path / "t.csv", ["g"])).inputs.groups
    assert attribute.groups == ("007", "7", "8")


def test_labels_are_the_classes_of_that_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    proba = rng.dirichlet([1, 1, 0.1], 300)
    names = ["01", "02", "2A"]  # those that occur look like the numbers 1 and 2
    table = pd.DataFrame(proba, columns=[f"p({name})" for name in names])
    table["g"] = rng.choice(["a", "b"], 300)
    table["y"] = np.where(proba[:, 0] > proba[:, 1], "01", "02")
    table.to_csv(tmp_path / "t.csv", index=False)
    result = debias_table(TableSpec(tmp_path / "t.csv", ["g"], label="y")).result
    assert result.accuracy_before > 0.9
    table["y"] = np.where(table["y"] == "01", "1", "3")  # no classes of these names
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="label: column 'y' has 1, 3, the predictions have 01"):
        debias_table(TableSpec(tmp_path / "t.csv", ["g"], label="y"))
