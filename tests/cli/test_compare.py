from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.comparison import compare
from fairmp.comparison.grid import METHODS, STRATEGIES

GRID = ["--data", "embedded:240", "--methods", "mlp,fmp", "--strategies", "vanilla,regulariser"]
SHORT = ["--epochs", "5", "--hidden", "8", "--splits", "2", "--workers", "1"]


def test_compare_writes_continues_and_refuses(fairmp, tmp_path: Path) -> None:
    status, out, err = fairmp("compare", *GRID, *SHORT, "--out", "c")
    assert status == 0, err
    assert "8 runs, 0 done already, 8 to go" in err
    assert "FMP + regulariser h=5" in out
    assert "Hypervolume" in out
    folder = tmp_path / "c"
    names = {path.name for path in folder.iterdir()}
    expected = {"records.jsonl", "report.html", "report.json"}
    expected |= {"table.md", "table.tex", "table.csv"}
    assert expected | {"tradeoff-embedded-network.png"} == names
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text(encoding="utf-8"))))
    assert [row["splits"] for row in rows] == ["2"] * 4
    headline = json.loads((folder / "report.json").read_text(encoding="utf-8"))["summary"]
    fairest = min(rows, key=lambda row: float(row["dp"]))
    assert f"{fairest['method']} has the smallest ΔDP: " in headline
    assert f"{100 * float(fairest['accuracy']):.1f} % accuracy" in headline
    record = json.loads((folder / "records.jsonl").read_text().splitlines()[0])
    assert record["spec"]["setting"]["epochs"] == 5
    assert {"fairmp", "torch"} <= set(record["run"]["versions"])

    table = (folder / "table.csv").read_text()
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:50])
    status, out, err = fairmp("compare", *GRID, *SHORT, "--out", "c", "--json")
    assert status == 0, err
    assert "8 runs, 3 done already, 5 to go" in err
    without_times = [row.rsplit(",", 1)[0] for row in table.splitlines()]
    again = (folder / "table.csv").read_text().splitlines()
    assert [row.rsplit(",", 1)[0] for row in again] == without_times
    record = json.loads(out)
    assert len(record["tables"]["embedded network"]) == 4
    assert record["failed"] == []

    before = (folder / "records.jsonl").read_bytes()
    status, out, err = fairmp("compare", *GRID, *SHORT, "--epochs", "6", "--out", "c")
    assert status == 2
    assert err.count("\n") == 1
    assert "epochs=5, this run has epochs=6" in err
    assert (folder / "records.jsonl").read_bytes() == before

    status, out, err = fairmp("compare", *GRID, *SHORT, "--splits", "3", "--out", "c")
    assert status == 0
    assert "12 runs, 8 done already, 4 to go" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "mpl"], "'mpl' is unknown"),
        (["--strengths", "much"], "--strengths: 'much'"),
        (["--data", "nbs"], "did you mean 'nba'"),
        (["--data", "embedded:many"], "embedded:many"),
        (["--device", "abacus"], "device: 'abacus'"),
        (["--epochs", "20"], "epochs: 20 end before the strategy"),
        (["--targets", "2"], "target"),
    ],
)
def test_wrong_comparison_ends_in_one_line(
    fairmp, tmp_path: Path, arguments: list[str], message: str
) -> None:
    status, _, err = fairmp("compare", "--out", "c", *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_settings_are_those_of_train_or_the_papers(fairmp, tmp_path: Path) -> None:
    words = ["--data", "embedded:240", "--splits", "1", "--json"]
    single_run = ["--methods", "fmp", "--strategies", "vanilla", "--workers", "1"]
    for name, settings in {
        "defaults": [],
        "paper": ["--paper", "--epochs", "4"],
        "typed": ["--lambda-s", "2", "--patience", "0", "--epochs", "4", "--no-calibrate"],
        "papc": ["--solver", "papc", "--epochs", "4"],
    }.items():
        status, _, err = fairmp("compare", *words, *single_run, *settings, "--out", f"c-{name}")
        assert status == 0, err
        train = ["train", *words, *settings, "--backbone", "mlp", "--no-picture"]
        status, out, err = fairmp(*train, "--out", f"t-{name}")
        assert status == 0, err
        [record] = compare.read(tmp_path / f"c-{name}" / "records.jsonl")
        [trained] = json.loads(out)
        assert record["run"]["config"] == trained["run"]["config"]
        assert record["run"]["test"]["accuracy"] == trained["run"]["test"]["accuracy"]
    status, _, err = fairmp("compare", *words, *single_run, "--out", "c-paper")
    assert status == 2
    assert "epochs=4, this run has epochs=300" in err


def test_folder_of_something_else_is_left_alone(fairmp, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("all my work")
    status, _, err = fairmp("compare", *GRID, *SHORT, "--out", "c")
    assert status == 2
    assert "not empty" in err
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["thesis.tex"]


def test_stopped_compare_says_what_is_kept(fairmp, monkeypatch: pytest.MonkeyPatch) -> None:
    train, seen = compare.train, []

    def stop(*arguments: object, **named: object) -> object:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return train(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(compare, "train", stop)
    status, _, err = fairmp("compare", *GRID, *SHORT, "--out", "c")
    assert status == 130
    assert "stopped; 2 new runs are in" in err
    assert len(compare.read("c/records.jsonl")) == 2


def test_compare_on_your_own_tables(fairmp, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 160
    people = pd.DataFrame({"who": [f"p{k}" for k in range(n)], "age": rng.normal(size=n)})
    people["sex"] = rng.choice(["f", "m"], n)
    people["hired"] = np.where(people["age"] + (people["sex"] == "m") > 0.5, "yes", "no")
    people.to_csv("people.csv", index=False)
    edges = pd.DataFrame(rng.choice(people["who"], (600, 2)), columns=["a", "b"])
    edges.to_csv("edges.csv", index=False)
    tables = ["--nodes", "people.csv", "--edges", "edges.csv", "--id", "who", "--label", "hired"]
    words = ["compare", *tables, "--sensitive", "sex", *SHORT, "--out", "c"]
    words += ["--methods", "ppr,fmp", "--strategies", "vanilla,thresholds-batch,per-node"]
    status, out, err = fairmp(*words, "--workers", "2")
    assert status == 0, err
    assert "10 runs, 0 done already" in err
    assert "FMP, per node target=0" in out
    assert "[" in out  # two splits have a range, not an interval
    assert "±" not in out
    assert "10 runs, 10 done already" in fairmp(*words)[2]
    # Other contents are another graph: nothing is taken from the records of the first.
    people["age"] += 1
    people.to_csv("people.csv", index=False)
    assert "10 runs, 0 done already" in fairmp(*words)[2]
    status, _, err = fairmp(*words, "--data", "nba")
    assert (status, err.count("\n")) == (2, 1)
    status, _, err = fairmp("compare", "--nodes", "people.csv", "--out", "d")
    assert (status, err.count("\n")) == (2, 1)
    assert not (tmp_path / "d").exists()


def test_protocol_fixes_the_split_and_varies_the_initialisation(fairmp, tmp_path: Path) -> None:
    words = ["--data", "embedded:240", "--protocol", "fairgnn", "--epochs", "3", "--out"]
    grid = ["--methods", "fmp", "--strategies", "vanilla", "--splits", "2", "--workers", "1"]
    status, out, err = fairmp("compare", *words, "c", *grid)
    assert status == 0, err
    runs = [record["run"] for record in compare.read(tmp_path / "c" / "records.jsonl")]
    assert [(run["seed"], run["split_seed"]) for run in runs] == [(0, None), (1, None)]
    assert "fairgnn protocol" in out
    settings = ["--splits", "2", "--backbone", "mlp", "--no-picture", "--json"]
    status, out, err = fairmp("train", *words, "t", *settings)
    assert status == 0, err
    seeds = [(row["run"]["seed"], row["run"]["split_seed"]) for row in json.loads(out)]
    assert seeds == [(0, None), (1, None)]
    for wrong in (["--protocol", "fair"], ["--protocol", "nifty"]):
        status, _, err = fairmp("train", "--data", "embedded:240", *wrong, "--out", "w")
        assert (status, err.count("\n")) == (2, 1)
        assert not (tmp_path / "w").exists()


def test_no_name_is_cut_off_in_the_help(fairmp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("train", "compare"):
        status, out, _ = fairmp(command, "--help")
        assert status == 0
        assert "…" not in out
    for name in (*STRATEGIES, *METHODS):
        assert name in out
