from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from fairmp import FairClassifier
from fairmp.cli.output import rerun_command
from fairmp.datasets import from_tables, social_network
from fairmp.tuning import tune as _imported_before_patches  # noqa: F401
from fairmp.tuning import workers
from tests.cli.conftest import Program

TABLES = ["--nodes", "people.csv", "--edges", "ties.csv", "--id", "who"]
TABLES += ["--label", "hired", "--sensitive", "region"]
SHORT = ["--epochs", "4", "--splits", "2", "--trials", "4", "--space", "hidden=8", "--out", "t"]
# What fairmp train has by default, so that its command can say all of it.
PLAIN = ["--space", "on=decisions"]


@pytest.fixture
def fairmp(fairmp: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program in a folder with two tables, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    data = social_network(n=240, average_degree=6, features=4)
    rows = ["who,region,hired,a,b,c,d"]
    for i, x in enumerate(data.x.tolist()):
        region, hired = "north" if data.sens[i] else "south", "yes" if data.y[i] else "no"
        rows.append(f"p{i},{region},{hired}," + ",".join(f"{value:.4f}" for value in x))
    (tmp_path / "people.csv").write_text("\n".join(rows) + "\n")
    ties = [f"p{a},p{b}" for a, b in data.edge_index.T.tolist() if a < b]
    (tmp_path / "ties.csv").write_text("one,other\n" + "\n".join(ties) + "\n")
    return fairmp


def test_tune_writes_continues_and_refuses(fairmp: Program, tmp_path: Path) -> None:
    status, out, err = fairmp("tune", *TABLES, *SHORT, *PLAIN, "--dp", "0.1")
    assert status == 0, err
    assert err == "4 trials, 0 done already, 4 to go in t.\n"
    assert "the best accuracy with ΔDP ≤ 10 points" in out
    tables = [line for line in out.splitlines() if not line.startswith("Again: ")]
    assert max(map(len, tables)) <= 80
    folder = tmp_path / "t"
    names = {"best.json", "front.csv", "trials.csv", "tradeoff.png", "tradeoff.svg"}
    assert {path.name for path in folder.iterdir()} == names | {
        "model",
        "report.html",
        "report.json",
        "study.db",
    }
    assert (folder / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    assert best["met"]
    assert best["chosen"]["validation"]["dp"] <= 0.1
    assert "Try another target" in (folder / "report.html").read_text(encoding="utf-8")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert sum(report["panel"]["nodes"]) == best["chosen"]["model_test"]["n"]

    # The command it names trains the same model.
    words = shlex.split(best["chosen"]["train_command"])
    assert best["chosen"]["train_command"] in out
    status, _, err = fairmp(*words[1:], "--out", "again")
    assert status == 0, err
    data = from_tables("people.csv", "ties.csv", id="who", label="hired", sensitive="region")
    tuned, again = (FairClassifier.load(place) for place in ("t/model", "again/model"))
    assert tuned.config() == again.config()
    np.testing.assert_array_equal(tuned.predict_proba(data), again.predict_proba(data))
    described = (Path(p, "model.safetensors").read_bytes() for p in ("t/model", "again/model"))
    assert next(described) == next(described)

    status, out, err = fairmp(
        "tune", *TABLES, *SHORT, *PLAIN, "--dp", "0.1", "--trials", "6", "--json"
    )
    assert status == 0, err
    assert err == "6 trials, 4 done already, 2 to go in t.\n"
    continued = json.loads(out)
    assert continued["trials"] == {"asked": 6, "done": 6, "failed": 0, "running": 0}
    assert json.loads((folder / "best.json").read_text(encoding="utf-8")) == continued

    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    status, out, err = fairmp("tune", *TABLES, *SHORT, *PLAIN, "--front")
    assert (status, out) == (2, "")
    assert "was made with goal = 0.1, this run has front" in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_tune_front_is_ordered_by_gap(fairmp: Program, tmp_path: Path) -> None:
    status, out, err = fairmp("tune", *TABLES, *SHORT, "--front", "--criterion", "eo")
    assert status == 0, err
    assert "accuracy against ΔEO" in out
    assert "Pareto front" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("Again: ")) <= 80
    best = json.loads((tmp_path / "t" / "best.json").read_text(encoding="utf-8"))
    gaps = [entry["validation"]["eo"] for entry in best["front"]]
    assert gaps == sorted(gaps)
    assert all("test" in entry for entry in best["front"])


def test_unmet_goal_is_written_and_said(fairmp: Program, tmp_path: Path) -> None:
    status, _, err = fairmp(
        *("tune", *TABLES, *SHORT, "--dp", "0", "--method", "gcn", "--strategy", "regulariser")
    )
    assert status == 1
    line = err.splitlines()[-1]
    assert line.startswith("fairmp: None of 4 trials has ΔDP ≤ 0 points on the validation nodes")
    assert "the closest, trial" in line
    assert "--trials" in line
    best = json.loads((tmp_path / "t" / "best.json").read_text(encoding="utf-8"))
    assert not best["met"]
    assert FairClassifier.load(tmp_path / "t" / "model").backbone == "gcn"


def test_stopped_tune_says_what_is_kept(fairmp: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    train, seen = workers.train, []

    def stop(*arguments: object, **options: object) -> object:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return train(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(workers, "train", stop)
        status, out, err = fairmp("tune", *TABLES, *SHORT)
    assert (status, out) == (130, "")
    assert err.endswith("fairmp: stopped; 2 trials are kept, the same command continues\n")
    status, _, err = fairmp("tune", *TABLES, *SHORT)
    assert "4 trials, 2 done already, 2 to go in t." in err
    assert status in (0, 1)


def test_password_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "postgresql://me:secret@host/db"
    for words in (["--storage", place], [f"--storage={place}"]):
        monkeypatch.setattr(sys, "argv", ["fairmp", "tune", *words])
        again = rerun_command()
        assert "secret" not in again
        assert "me:***@host/db" in again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dp", "2"], "--dp: 2.0"),
        (["--dp", "0.1", "--front"], "--front: cannot be combined with --dp"),
        (["--dp", "0.1", "--eo", "0.1"], "--eo: cannot be combined with --dp"),
        (
            ["--dp", "0.1", "--criterion", "eo"],
            "--dp: cannot be combined with --criterion eo; give --eo",
        ),
        (["--criterion", "odds"], "--criterion: 'odds'"),
        (["--trials", "0"], "--trials"),
        (["--workers", "0"], "--workers"),
        (["--timeout", "-1"], "timeout: -1"),
        (["--method", "rnn"], "--method: 'rnn'"),
        (["--strategy", "hope"], "strategy: 'hope'"),
        (["--strategy", "adversary", "--epochs", "20"], "epochs: 20 end before the strategy"),
        (["--space", "lr=0"], "space: lr=0 is outside"),
        (["--device", "abacus"], "device: 'abacus'"),
        (["--storage", "nosuch://host/db"], "storage: nosuch://host/db cannot be used"),
        (["nba", "--data", "german"], "--data: 'german'"),
        (["--label", "colour"], "--label: "),
        (["--out", "people.csv"], "--out: people.csv is a file"),
        (["--out", "."], "--out: . is not empty"),
    ],
)
def test_wrong_input_ends_in_one_line_and_leaves_nothing(
    fairmp: Program, tmp_path: Path, arguments: list[str], message: str
) -> None:
    tables = [] if "nba" in arguments else TABLES
    status, out, err = fairmp("tune", *tables, "--out", "t", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"people.csv", "ties.csv", "cache"}


def test_missing_optuna_names_the_extra(
    fairmp: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in [name for name in sys.modules if name.startswith("fairmp.tuning")]:
        monkeypatch.delitem(sys.modules, name)
    status, _, err = fairmp("tune", *TABLES, *SHORT)
    assert status == 2
    assert err == "fairmp: optuna: not installed; pip install 'fairmp[tune]'\n"
    assert not (tmp_path / "t").exists()


def test_unknown_data_set_is_blamed_on_the_argument(fairmp: Program) -> None:
    status, _, err = fairmp("tune nope --out nowhere")
    assert status == 2
    assert err.startswith("fairmp: DATASET: ")
