"""The program as a user meets it: its output, its exit status, its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import FairClassifier, __version__
from fairmp.cli import COMMANDS
from fairmp.datasets import social_network
from tests.cli.conftest import Program


def test_help_lists_every_command(fairmp: Program) -> None:
    status, out, _ = fairmp("--help")
    assert status == 0
    for command in COMMANDS:
        assert f" {command} " in out


def test_version_is_printed(fairmp: Program) -> None:
    assert fairmp("--version") == (0, f"fairmp {__version__}\n", "")


def test_module_is_the_program(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fairmp", "train", "--target", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith("fairmp: --target: 2.0")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_closed_output_ends_the_program_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "fairmp", "data", "list"]
    done = subprocess.run(words, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, timeout=100)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_train_saves_a_model_that_loads(fairmp: Program, tmp_path: Path) -> None:
    status, shown, err = fairmp(
        "train --data embedded:4000 --epochs 15 --lr 0.02 --splits 2 --target 0.02 --backbone mlp "
        "--json --out t"
    )
    assert status == 0, err
    records = json.loads(shown)
    assert len(records) == 2
    assert records[0]["run"]["config"]["propagation"]["target"] == 0.02
    model = FairClassifier.load(tmp_path / "t" / "model")
    data = social_network(n=4000)
    figures = model.evaluate(data, nodes=data.test_mask, bootstrap=0)
    assert figures.accuracy == pytest.approx(records[0]["run"]["test"]["accuracy"])
    assert figures.dp < 0.04
    assert (tmp_path / "t" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --target 1.5", ["--target: 1.5", "[0, 1]"]),
        ("train --solver papc --target 0.1", ["--target: --solver papc does", "projection"]),
        ("train --solver plain --target 0.1", ["--target: --solver plain does", "projection"]),
        ("train --lambda-f 2", ["--lambda-f: --solver projection does", "papc or paper"]),
        ("train --solver none --k 3", ["--k: --solver none does not use it"]),
        ("train --solver plain --group-free", ["--group-free: --solver plain does not use it"]),
        ("train --solver paper --confidence 0.9", ["--confidence: --solver paper does not use"]),
        ("compare --solver paper --target 0.1", ["--target: --solver paper does"]),
        ("train --out /proc/x/y", ["--out: /proc/x/y cannot be written to"]),
        ("audit --out /proc/x", ["--out: /proc/x cannot be written to"]),
        ("compare --out /proc/x", ["--out: /proc/x cannot be written to"]),
        ("predict no --out /proc/x.csv", ["--out: /proc cannot be written to"]),
        (f"train --out {'x' * 300}", ["xxx cannot be written to", "too long"]),
        ("train --solver magic", ["--solver: 'magic'", "projection"]),
        ("train --backbone rnn", ["--backbone: 'rnn'"]),
        ("train --epochs none", ["--epochs", "none"]),
        ("train --epochs 0", ["--epochs: 0"]),
        ("train --splits 0", ["--splits", "0"]),
        ("train --k 0", ["--k: 0"]),
        ("train --seed -1", ["--seed", "-1"]),
        ("train --dropout 2", ["--dropout: 2.0"]),
        ("train --hidden 0", ["--hidden: 0"]),
        ("train --device abacus", ["--device: 'abacus'"]),
        ("train --lr -1", ["--lr: -1"]),
        ("train --data nowhere", ["nowhere"]),
        ("train --nodes no.csv", ["--label: missing"]),
        ("train --label y", ["--label: needs --nodes"]),
        ("train --nodes no.csv --edges no.csv --label y --sensitive s", ["no.csv"]),
        ("demo --nodes 3", ["--nodes", "3"]),
        ("demo --splits 0", ["--splits", "0"]),
        ("dance", ["dance"]),
        ("train --no-such-option", ["--no-such-option"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    fairmp: Program, arguments: str, words: list[str], tmp_path: Path
) -> None:
    status, out, err = fairmp(arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("fairmp: ")
    for word in words:
        assert word in line
    assert not list(tmp_path.iterdir())


def test_help_of_train_is_short_and_help_all_complete(fairmp: Program) -> None:
    status, short, _ = fairmp("train --help")
    assert status == 0
    assert short.index("--nodes") < short.index("--target") < short.index("Example")
    assert "--dropout" not in short
    status, full, _ = fairmp("train --help-all")
    assert status == 0
    assert {"--nodes", "--dropout", "--shards"} <= set(full.replace("│", " ").split())


def test_train_notes_one_split_and_a_constant_decision(fairmp: Program, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "hired": np.where(np.arange(200) % 20 == 0, "yes", "no"),
            "sex": rng.choice(["f", "m"], 200),
            "age": 40 + rng.integers(2, size=200),
        }
    )
    people.to_csv("people.csv", index=False)
    ties = pd.DataFrame(rng.integers(200, size=(400, 2)), columns=["a", "b"])
    ties.to_csv("ties.csv", index=False)
    tables = "--nodes people.csv --edges ties.csv --label hired --sensitive sex --no-picture"
    status, out, _ = fairmp(f"train {tables} --splits 1 --epochs 40 --lr 0.05 --out t")
    assert status == 0
    assert "test part, one split" in out
    assert "1 splits" not in out
    assert out.count("note: Everyone gets the decision 'no'") == 1
    assert out.count("note: In small samples a measured gap") == 1
    page = (tmp_path / "t" / "report.html").read_text(encoding="utf-8")
    assert "Everyone gets the decision &#39;no&#39;" in page
    assert "over 1 splits" not in page


def test_target_of_many_groups_bounds_the_two_farthest_apart(
    fairmp: Program, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    group = np.arange(240) % 4
    people = pd.DataFrame({"y": rng.random(240) < 0.2 + group / 6, "g": group, "x": group})
    people.assign(x=group + rng.normal(size=240), y=people.y.astype(int)).to_csv(
        "people.csv", index=False
    )
    ties = pd.DataFrame(rng.integers(240, size=(400, 2)), columns=["a", "b"])
    ties.to_csv("ties.csv", index=False)
    tables = "--nodes people.csv --edges ties.csv --label y --sensitive g"
    short = "--no-picture --splits 1 --backbone mlp --epochs 5"
    assert fairmp(f"train {tables} {short} --target 0.1 --out t")[0] == 0
    page = (tmp_path / "t" / "report.html").read_text(encoding="utf-8")
    assert "≤ 10.0" in page
    figures = json.loads((tmp_path / "t" / "records.jsonl").read_text().splitlines()[0])
    smallest = min(row["count"] for row in figures["run"]["test"]["groups"])
    assert figures["run"]["test"]["dp"] <= 0.1 + 1 / smallest + 1e-9
    assert fairmp(f"train {tables} {short} --solver papc --out p")[0] == 0
    assert "≤ " not in (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
