"""``--fail-over`` on every command that measures a gap."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from fairmp.cli.gate import STATUS, CriterionGate, Gap, Gate
from fairmp.errors import InputError
from fairmp.metrics.counts import gap_interval
from tests.cli.conftest import Program

WIDE = Gap("parity", 0.02, (0.0, 0.1))


@pytest.mark.parametrize(
    ("gate", "gap"),
    [
        (Gate(None, "estimate"), Gap("parity", 1.0, None)),
        (Gate(0.02, "estimate"), WIDE),
        (Gate(0.02, "estimate"), Gap("parity", 0.02 + 1e-12, None)),
        (Gate(0.1, "upper-bound"), WIDE),
    ],
)
def test_gate_lets_pass_what_is_within_the_limit(gate: Gate, gap: Gap) -> None:
    gate.check(gap, gap)


@pytest.mark.parametrize(
    ("gate", "gap", "words"),
    [
        (Gate(0.01, "estimate"), WIDE, ["2.0 points", "0.0 to 10.0", "over --fail-over 0.01"]),
        (Gate(0.02, "upper-bound"), WIDE, ["over --fail-over 0.02 (2 points)"]),
        (Gate(0.5, "upper-bound"), Gap("parity", 0.02, None), ["has no upper bound"]),
        (Gate(0.5, "estimate"), Gap("parity", nan, None), ["cannot be measured"]),
    ],
)
def test_gate_stops_what_exceeds_the_limit_or_is_unknown(
    gate: Gate, gap: Gap, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as leave:
        gate.check(Gap("other", 0.0, (0.0, 0.0)), gap)
    assert leave.value.exit_code == STATUS
    (line,) = capsys.readouterr().err.splitlines()
    for word in ("the gap of parity", *words):
        assert word in line


def test_gate_refuses_wrong_options() -> None:
    with pytest.raises(InputError, match="--fail-over"):
        Gate(2.0, "estimate")
    with pytest.raises(InputError, match="--fail-on"):
        Gate(0.1, "both")
    with pytest.raises(InputError, match="--criterion"):
        CriterionGate(0.1, "estimate", "fairness")


def test_gap_of_evaluation_reads_the_criterion() -> None:
    figures = {"dp": 0.1, "eo": 0.2, "intervals": {"dp": [0.05, 0.2], "eo": [None, None]}}
    assert Gap.of_evaluation(figures, "demographic-parity").interval == [0.05, 0.2]
    assert Gap.of_evaluation(figures, "equal-opportunity") == Gap("equal opportunity", 0.2, None)
    for unknown in (None, {}, {"dp": None}):
        gap = Gap.of_evaluation(unknown, "demographic-parity")
        assert np.isnan(gap.estimate)
        assert gap.interval is None


def test_debias_passes_or_fails(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sex = np.where(rng.random(400) < 0.5, "f", "m")
    p = np.clip(0.5 + 0.1 * (sex == "m") + 0.2 * rng.normal(size=400), 0.01, 0.99)
    y = (rng.random(400) < p).astype(int)
    pd.DataFrame({"p": p, "sex": sex, "y": y}).to_csv(tmp_path / "loans.csv", index=False)
    base = "debias loans.csv --sensitive sex --label y"
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
def test_wrong_limit_is_refused_before_any_work(
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
    train = "train --data embedded:600 --backbone mlp --splits 1 --epochs 3 --no-picture"
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
