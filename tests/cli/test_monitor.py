"""``fairmp monitor`` after ``train`` and ``predict``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from tests.cli.conftest import Program


def test_monitor_compares_new_predictions_with_training(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 1000
    sex, age = np.where(rng.random(n) < 0.5, "f", "m"), rng.normal(size=n)
    loan = np.where(age + 0.5 * (sex == "m") + rng.normal(size=n) > 0, "yes", "no")
    people = pd.DataFrame({"person": range(n), "sex": sex, "age": age, "loan": loan})
    people.to_csv("people.csv", index=False)
    edges = pd.DataFrame({"a": rng.integers(0, n, 2000), "b": rng.integers(0, n, 2000)})
    edges.to_csv("edges.csv", index=False)
    tables = "--nodes people.csv --edges edges.csv"
    status, _, err = fairmp(
        f"train {tables} --id person --label loan --sensitive sex --splits 1 --epochs 30 --lr 0.05 "
        "--no-picture --out run"
    )
    assert status == 0, err
    assert fairmp(f"predict run {tables} --out new.csv")[0] == 0

    status, out, err = fairmp("monitor run new.csv --out same --json")
    assert status == 0, err
    record = json.loads(out)
    assert not record["changed"]
    test = json.loads((tmp_path / "run/records.jsonl").read_text().splitlines()[0])["run"]["test"]
    assert record["training"] == test
    frame = pd.read_csv("new.csv")
    by_name = {figure["name"]: figure for figure in record["figures"]}
    assert by_name["share of f"]["after"] == (frame["sex"] == "f").mean()
    assert by_name["accuracy"]["after"] == (frame["decision"] == frame["loan"]).mean()
    assert "Then and now" in (tmp_path / "same/report.html").read_text()

    # Men are scored higher, most women are gone, and no labels have come in yet.
    men = frame["sex"] == "m"
    frame.loc[men, "p(yes)"] = np.clip(frame.loc[men, "p(yes)"] + 0.3, 0, 1)
    frame["p(no)"] = 1 - frame["p(yes)"]
    frame["decision"] = np.where(frame["p(yes)"] > 0.5, "yes", "no")
    frame = frame[men | (rng.random(n) < 0.5)].drop(columns="loan")
    frame.to_csv("later.csv", index=False)
    status, out, err = fairmp("monitor run later.csv --out later --fail-above 0.05")
    assert status == 3
    assert "the gap of demographic parity is" in err
    assert "Changed by more than sampling error: share of f" in out
    assert "scores of m" in out.split("Changed")[1]

    status, _, err = fairmp("monitor new.csv run --out swapped")
    assert (status, err) == (
        2,
        "fairmp: RUN: new.csv is not a folder; give the folder that 'fairmp train' wrote\n",
    )

    # Decisions are those of the column, whatever the probabilities say.
    overruled = pd.read_csv("new.csv").assign(
        decision=lambda t: np.where(t.sex == "m", "yes", "no")
    )
    overruled.to_csv("overruled.csv", index=False)
    status, out, err = fairmp("monitor run overruled.csv --out overruled --json --fail-above 0.5")
    assert status == 3
    assert json.loads(out)["now"]["dp"] == 1.0
    assert fairmp("monitor run overruled.csv --out ratio --fail-below 0.8")[0] == 3

    # With the probabilities of two models in a table, the option says which are meant.
    both = frame.assign(**{"q(no)": frame["p(yes)"], "q(yes)": frame["p(no)"]})
    both.to_csv("both.csv", index=False)
    assert fairmp("monitor run both.csv --out wrong")[0] == 2
    assert fairmp("monitor run both.csv --probabilities p(no),p(yes) --out both")[0] == 0

    for wrong in ("monitor . later.csv", "monitor run people.csv", "monitor run none.csv"):
        status, _, err = fairmp(f"{wrong} --out wrong")
        assert status == 2
        assert len(err.splitlines()) == 1
    assert fairmp("monitor run later.csv --sensitive age --out wrong")[0] == 2
    assert not (tmp_path / "wrong").exists()
