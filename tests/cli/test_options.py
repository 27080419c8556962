from __future__ import annotations

import json
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest
import typer

from fairmp.cli.options import (
    GATE_CRITERIA,
    GATE_STATUS,
    CriterionGate,
    Gap,
    Gate,
    Graph,
    Results,
    Tables,
    Training,
    criterion_name,
    expand,
    option,
    parse_bins,
    smoothing,
    with_protocol,
)
from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.metrics.intervals import gap_interval
from fairmp.training import defaults
from tests.cli.conftest import Program

WIDE = Gap("the gap of parity", 0.02, (0.0, 0.1))


@dataclass(frozen=True)
class Size:
    nodes: Annotated[int, option("Nodes.", ..., min=1)] = 3
    names: Annotated[list[str] | None, option("Names.", ...)] = None


def parsed(command: Any, *words: str) -> Any:
    """Run a command in a program of its own; return what it returned."""
    app = typer.Typer()
    app.command()(expand(command))
    return app(list(words), standalone_mode=False)


def test_expand_makes_an_option_of_each_field() -> None:
    seen = []

    def command(size: Size, seed: int = 0) -> None:
        seen.append((size, seed))

    parsed(command)
    parsed(command, "--nodes", "7", "--names", "a", "--names", "b", "--seed", "1")
    assert seen == [(Size(), 0), (Size(7, ["a", "b"]), 1)]


def settled(*words: str) -> dict[str, Any]:
    results = []

    def command(context: typer.Context, training: Training, backbone: str = "auto") -> None:
        before = dict(context.params)
        results.append(training.settle(context))
        assert context.params == before

    parsed(command, *words)
    return results[0]


def test_settle_has_one_set_of_defaults() -> None:
    settings = settled()
    assert settings["num_layers"] == defaults.NUM_LAYERS
    assert settings["epochs"] == defaults.EPOCHS
    assert settings["patience"] == defaults.PATIENCE


def test_settle_takes_the_papers_settings_except_for_typed_options() -> None:
    settings = settled("--paper", "--lr", "0.5", "--layers", "4")
    assert (settings["lr"], settings["num_layers"]) == (0.5, 4)
    assert settings["backbone"] == defaults.PAPER["backbone"]
    assert settings["patience"] is None


def test_settle_without_patience_trains_all_epochs() -> None:
    assert settled("--patience", "0")["patience"] is None


def test_smoothing_is_a_number_or_learned() -> None:
    assert smoothing("2.5") == smoothing(2.5) == 2.5
    assert smoothing(None) == defaults.LAMBDA_S
    assert smoothing("learned") == "learned"
    with pytest.raises(InputError, match="--lambda-s"):
        smoothing("much")


def test_parse_bins_takes_a_number_or_edges() -> None:
    assert parse_bins(None) is None
    assert parse_bins("3") == 3
    assert parse_bins("25,40.5") == [25.0, 40.5]
    for text in ("three", "25,old"):
        with pytest.raises(InputError, match="--sensitive-bins"):
            parse_bins(text)


COMPLETE: dict[str, Any] = {"nodes": "n.csv", "edges": "e.csv", "label": "y", "sensitive": ["s"]}


def test_tables_are_all_named_or_none() -> None:
    assert Tables(**COMPLETE).has_tables()
    assert not Tables().has_tables()
    for name in COMPLETE.keys() - {"edges"}:  # a table may do without
        partial = {key: value for key, value in COMPLETE.items() if key != name}
        with pytest.raises(InputError, match=f"^--{name}: missing"):
            Tables(**partial).has_tables()
    with pytest.raises(InputError, match=r"^--drop: "):
        Tables(drop=["age"]).has_tables()


def test_graph_is_a_data_set_or_tables() -> None:
    assert Graph(**COMPLETE).has_tables()
    with pytest.raises(InputError, match=r"^--data: 'nba'"):
        Graph(**COMPLETE, data="nba").has_tables()


def test_files_are_the_arguments_of_from_tables() -> None:
    with Tables(**COMPLETE, drop=["a"], sensitive_bins="2").files() as arguments:
        assert arguments == {
            "nodes": Path("n.csv"),
            "edges": Path("e.csv"),
            "id": None,
            "label": "y",
            "sensitive": "s",
            "sensitive_bins": 2,
            "drop": ("a",),
            "unknown": None,
            "categorical": (),
            "min_group": 0,
        }


def test_fingerprint_depends_on_contents_and_columns(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    nodes.write_text("a\n1\n")
    edges.write_text("a,b\n1,1\n")
    places: dict[str, Any] = {**COMPLETE, "nodes": str(nodes), "edges": str(edges)}
    first = Tables(**places).fingerprint()
    assert first.startswith("n-")
    assert Tables(**places).fingerprint() == first
    assert Tables(**places, drop=["a"]).fingerprint() != first
    edges.write_text("a,b\n1,2\n")
    assert Tables(**places).fingerprint() != first


def test_weights_are_refused_where_they_have_no_use() -> None:
    Tables().without_weights()
    with pytest.raises(InputError, match=r"^--weight: 'w'"):
        Tables(weight="w").without_weights()


def test_results_go_to_a_new_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fairmp-x", "fairmp-x-2"):
        results = Results()
        folder = results.folder("x")
        assert folder == Path(name)
        with results.staging(folder) as staging:
            (staging / "file").touch()
    with pytest.raises(InputError, match=r"^out: fairmp-x is not empty"):
        Results(out=Path("fairmp-x")).folder("x")


def test_protocol_is_part_of_each_name() -> None:
    assert with_protocol(None, None) == ["embedded"]
    assert with_protocol(["a", "b"], "nifty") == ["a+nifty", "b+nifty"]


@pytest.mark.parametrize(
    ("gate", "gap"),
    [
        (Gate(None, "estimate"), Gap("the gap of parity", 1.0, None)),
        (Gate(0.02, "estimate"), WIDE),
        (Gate(0.02, "estimate"), Gap("the gap of parity", 0.02 + 1e-12, None)),
        (Gate(0.1, "upper-bound"), WIDE),
    ],
)
def test_gate_lets_pass_what_is_within_the_limit(gate: Gate, gap: Gap) -> None:
    gate.check(gap, gap)


@pytest.mark.parametrize(
    ("gate", "gap", "words"),
    [
        (
            Gate(0.01, "estimate"),
            WIDE,
            ["2.0 points", "0.0 to 10.0", "over the limit of --fail-above 0.01"],
        ),
        (Gate(0.02, "upper-bound"), WIDE, ["over the limit of --fail-above 0.02 (2 points)"]),
        (Gate(0.5, "upper-bound"), Gap("the gap of parity", 0.02, None), ["has no bound"]),
        (Gate(0.5, "estimate"), Gap("the gap of parity", nan, None), ["cannot be measured"]),
    ],
)
def test_gate_stops_what_exceeds_the_limit_or_is_unknown(
    gate: Gate, gap: Gap, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as leave:
        gate.check(Gap("other", 0.0, (0.0, 0.0)), gap)
    assert leave.value.exit_code == GATE_STATUS
    (line,) = capsys.readouterr().err.splitlines()
    for word in ("the gap of parity", *words):
        assert word in line


@pytest.mark.parametrize(
    ("excess", "people", "passes"),
    [
        (0.5, 400, True),  # rounding of one node
        (1.5, 400, False),
        (0.5, 20, False),  # one node is five points: the gap is what it is
        (0.0, 20, True),
    ],
)
def test_gate_passes_one_node_where_it_is_at_most_a_point(
    excess: float, people: int, passes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    one_node = 1 / people
    gap = Gap("the gap of parity", 0.02 + excess * one_node, (0.0, 0.5), one_node=one_node)
    if passes:
        Gate(0.02, "estimate").check(gap)
        assert ("up to one node" in capsys.readouterr().err) == (excess > 0)
    else:
        with pytest.raises(typer.Exit):
            Gate(0.02, "estimate").check(gap)
        assert ("one node of the smallest group is 5.0" in capsys.readouterr().err) == (
            people == 20
        )


@pytest.mark.parametrize("fail_on", ["estimate", "upper-bound"])
def test_gate_of_the_impact_ratio(fail_on: str, capsys: pytest.CaptureFixture[str]) -> None:
    ratio = Gap("the impact ratio", 0.85, (0.7, 0.95))
    gate = Gate(None, fail_on, 0.8)
    if fail_on == "estimate":
        gate.check(impact_ratio=ratio)
        ratio = Gap("the impact ratio", 0.75, (0.7, 0.95))
    with pytest.raises(typer.Exit):
        gate.check(Gap("the gap of parity", 1.0, None), impact_ratio=ratio)
    assert "the impact ratio is 0." in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        gate.check(impact_ratio=Gap.impact_ratio({"impact_ratio": None}))
    assert "cannot be measured" in capsys.readouterr().err


def test_gate_reads_every_gap_of_an_evaluation() -> None:
    sex = ["f", "f", "m", "m"] * 5
    figures = evaluate([1, 0, 1, 0] * 5, [0.8, 0.3, 0.9, 0.4] * 5, sensitive_features=sex).to_dict()
    for criterion in GATE_CRITERIA:
        assert not np.isnan(Gap.of_evaluation(figures, criterion).estimate)
    assert Gap.impact_ratio(figures).estimate == figures["impact_ratio"] == 1.0


def test_unknown_criterion_lists_names_as_they_are_typed() -> None:
    assert criterion_name("Equalised-Odds") == "equalized_odds"
    assert criterion_name("false-positive-rate-parity") == "false_positive_rate_parity"
    with pytest.raises(InputError, match="'foo' is unknown") as error:
        criterion_name("foo")
    assert "equal-opportunity" in str(error.value)
    assert "_" not in str(error.value)


def test_gate_refuses_wrong_options() -> None:
    with pytest.raises(InputError, match="--fail-below"):
        Gate(None, "estimate", 1.5)
    with pytest.raises(InputError, match="--fail-above"):
        Gate(2.0, "estimate")
    with pytest.raises(InputError, match="--fail-on"):
        Gate(0.1, "both")
    with pytest.raises(InputError, match="--criterion"):
        CriterionGate(0.1, "estimate", None, "fairness")


def test_gap_of_evaluation_reads_the_criterion() -> None:
    figures = {"dp": 0.1, "eo": 0.2, "intervals": {"dp": [0.05, 0.2], "eo": [None, None]}}
    assert Gap.of_evaluation(figures, "demographic-parity").interval == [0.05, 0.2]
    assert Gap.of_evaluation(figures, "equal-opportunity") == Gap(
        "the gap of equal opportunity", 0.2, None
    )
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
    assert fairmp(f"{base} --fail-above 0.02 --out a")[0] == 0
    # From 400 people the gap may be larger than it looks.
    status, out, err = fairmp(f"{base} --fail-above 0.02 --fail-on upper-bound --out b --json")
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
        f"interval {100 * low:.1f} to {100 * high:.1f}: over the limit of --fail-above 0.02 "
        "(2 points)\n"
    )
    assert fairmp(f"{base} --fail-above {high + 0.001} --fail-on upper-bound --out c")[0] == 0
    assert fairmp(f"{base} --target 1 --fail-above 0.05 --out d")[0] == 3


@pytest.mark.parametrize("options", ["--fail-above 2", "--fail-above 0.1 --fail-on both"])
def test_wrong_limit_is_refused_before_any_work(
    fairmp: Program, tmp_path: Path, options: str
) -> None:
    status, _, err = fairmp(f"audit --data embedded:300 --out a {options}")
    assert status == 2
    assert err.startswith("fairmp: --")
    assert not list(tmp_path.iterdir())


def test_audit_train_and_predict_pass_or_fail(fairmp: Program, tmp_path: Path) -> None:
    audit = "audit --data embedded:600 --no-picture"
    status, out, _ = fairmp(f"{audit} --out a --json --fail-above 1")
    rates = [group["base_rates"][1] for group in json.loads(out)["groups"]]
    gap = max(rates) - min(rates)
    assert status == 0
    assert fairmp(f"{audit} --out b --fail-above {gap + 0.001}")[0] == 0
    status, _, err = fairmp(f"{audit} --out c --fail-above {gap - 0.001}")
    assert status == 3
    assert "the gap of the labels is" in err
    train = "train --data embedded:600 --backbone mlp --splits 1 --epochs 3 --no-picture"
    assert fairmp(f"{train} --out t --fail-above 0.05")[0] == 0
    assert fairmp(f"{train} --out u --solver none --fail-above 0.0")[0] == 3
    assert (tmp_path / "u/report.html").exists()  # the results are there to look into
    status, _, err = fairmp("train --shards t --out v --fail-above 0.1")
    assert status == 2
    assert err.startswith("fairmp: --fail-above: cannot be combined with --shards")
    predict = "predict t --data embedded:600"
    assert fairmp(f"{predict} --out p.csv --fail-above 0.05")[0] == 0
    status, _, err = fairmp(f"{predict} --out q.csv --criterion equal-opportunity --fail-above 0")
    assert status == 3
    assert "equal opportunity" in err
    assert fairmp(f"{predict} --out r.csv --criterion fairness --fail-above 0")[0] == 2
    assert not (tmp_path / "r.csv").exists()


def test_gap_of_one_node_over_the_target_passes(capsys: pytest.CaptureFixture[str]) -> None:
    Gate(0.02, "estimate").check(Gap("the gap of parity", 0.0206, None, one_node=0.004))
    assert "one node" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        Gate(0.02, "estimate").check(Gap("the gap of parity", 0.025, None, one_node=0.004))
