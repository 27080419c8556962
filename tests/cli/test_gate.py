"""``--fail-over`` on every command that measures a gap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.metrics.counts import gap_interval
from tests.cli.conftest import Program


def test_debias_passes_or_fails(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sex = np.where(rng.random(400) < 0.5, "f", "m")
    p = np.clip(0.5 + 0.1 * (sex == "m") + 0.2 * rng.normal(size=400), 0.01, 0.99)
    y = (rng.random(400) < p).astype(int)
    pd.DataFrame({"p": p, "sex": sex, "y": y}).to_csv(tmp_path / "loans.csv", index=False)
    base = "debias loans.csv --sensitive sex --label y --temperature decisions"
    assert fairmp(f"{base} --fail-over 0.02 --out a")[0] == 0
    # From 400 people the gap may be larger than it looks.
    status, out, err = fairmp(f"{base} --fail-over 0.02 --fail-on upper-bound --out b --json")
    assert status == 3
    record = json.loads(out)["criteria"][0]
    decided = pd.read_csv(tmp_path / "b/corrected.csv")["decision_corrected"].to_numpy()
    rates = np.array([[decided[sex == g].mean()] for g in ("f", "m")])
    sizes = np.array([[(sex == g).sum()] for g in ("f", "m")], dtype=float)
    low, high = gap_interval(rates, sizes)
    assert record["decisions_interval"] == pytest.approx([low, high], abs=1e-3)
    low, high = record["decisions_interval"]
    assert err == (
        f"fairmp: the gap of demographic parity, sex is {100 * np.ptp(rates):.1f} points, 95 % "
        f"interval {100 * low:.1f} to {100 * high:.1f}: over --fail-over 0.02 (2 points)\n"
    )
    assert fairmp(f"{base} --fail-over {high + 0.001} --fail-on upper-bound --out c")[0] == 0
    assert fairmp(f"{base} --target 1 --fail-over 0.05 --out d")[0] == 3


@pytest.mark.parametrize("options", ["--fail-over 2", "--fail-over 0.1 --fail-on both"])
def test_wrong_limits_are_refused_before_any_work(
    fairmp: Program, tmp_path: Path, options: str
) -> None:
    status, _, err = fairmp(f"audit --data embedded:300 --out a {options}")
    assert status == 2
    assert err.startswith("fairmp: --")
    assert not list(tmp_path.iterdir())


def test_audit_train_and_predict_pass_or_fail(fairmp: Program, tmp_path: Path) -> None:
    audit = "audit --data embedded:600 --no-picture"
    status, out, _ = fairmp(f"{audit} --out a --json --fail-over 1")
    rates = [group["base_rates"][1] for group in json.loads(out)["groups"]]
    gap = max(rates) - min(rates)
    assert status == 0
    assert fairmp(f"{audit} --out b --fail-over {gap + 0.001}")[0] == 0
    status, _, err = fairmp(f"{audit} --out c --fail-over {gap - 0.001}")
    assert status == 3
    assert "the gap of the labels is" in err
    train = "train --data embedded:600 --splits 1 --epochs 3 --no-picture"
    assert fairmp(f"{train} --out t --fail-over 0.05")[0] == 0
    assert fairmp(f"{train} --out u --solver none --fail-over 0.0")[0] == 3
    assert (tmp_path / "u/report.html").exists()  # the results are there to look into
    status, _, err = fairmp("train --shards t --out v --fail-over 0.1")
    assert status == 2
    assert err.startswith("fairmp: --fail-over: goes without --shards")
    predict = "predict t --data embedded:600"
    assert fairmp(f"{predict} --out p.csv --fail-over 0.05")[0] == 0
    status, _, err = fairmp(f"{predict} --out q.csv --criterion equal-opportunity --fail-over 0")
    assert status == 3
    assert "equal opportunity" in err
    assert fairmp(f"{predict} --out r.csv --criterion fairness --fail-over 0")[0] == 2
    assert not (tmp_path / "r.csv").exists()
