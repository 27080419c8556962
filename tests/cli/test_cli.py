"""The program as a user meets it: a process, its output, its exit status, its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp import FairClassifier
from fairmp.cli import main
from fairmp.datasets import social_network


def fairmp(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairmp", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_help_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, fairmp, fairmp.cli\n"
        "sys.argv = ['fairmp', '--help']\n"
        "try: fairmp.cli.main()\n"
        "except SystemExit as leave: assert leave.code == 0, leave.code\n"
        "heavy = {'torch', 'torch_geometric', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for command in ("demo", "train"):
        assert command in done.stdout


def test_version(tmp_path: Path) -> None:
    from fairmp import __version__

    assert fairmp("--version", cwd=tmp_path).stdout == f"fairmp {__version__}\n"


def test_the_core_imports_with_torch_scipy_and_pyg_alone(tmp_path: Path) -> None:
    blocked = ["pandas", "pyarrow", "sklearn", "typer", "rich", "matplotlib"]
    blocked += ["jinja2", "safetensors", "numba", "networkx", "pooch"]
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules.pop(name, None)\n"
        "import torch, torch_geometric\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "from fairmp import FMP, FairClassifier\n"
        "from fairmp.datasets import social_network\n"
        "data = social_network(n=300, average_degree=6)\n"
        "run = FairClassifier(FMP(), backbone='mlp', epochs=2).fit(data, progress=False).run_\n"
        "print(run.test.n)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "75"


def test_demo_tells_the_whole_story(tmp_path: Path) -> None:
    done = fairmp("demo", "--nodes", "3000", "--splits", "2", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "sensitive homophily 92.0 %" in done.stdout
    out = tmp_path / "out"
    names = sorted(p.name for p in out.iterdir())
    assert names == [
        *("model", "records.jsonl", "report.html", "report.json", "table.md", "tradeoff.png")
    ]
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    methods = list(dict.fromkeys(record["name"] for record in records))
    assert len(records) == 2 * len(methods)
    solvers = {(record["run"]["config"]["propagation"] or {}).get("solver") for record in records}
    assert solvers == {None, "paper", "papc", "projection"}
    assert (out / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    for method in methods:
        assert method in page
        assert method in done.stdout
    data = social_network(n=3000)
    assert FairClassifier.load(out / "model").predict(data).shape == (3000,)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]

    again = fairmp("demo", "--out", "out", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == (
        "fairmp: --out: out is not empty; give another folder, or add --overwrite\n"
    )


def test_train_saves_a_model_that_loads(tmp_path: Path) -> None:
    done = fairmp(
        *("train", "--data", "embedded:4000", "--epochs", "15", "--lr", "0.02", "--splits", "2"),
        *("--target", "0.02", "--backbone", "mlp", "--json", "--out", "t"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
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
        ("train --nodes no.csv", ["--edges: missing"]),
        ("train --label y", ["--label", "--nodes and --edges"]),
        ("train --nodes no.csv --edges no.csv --label y --sensitive s", ["no.csv"]),
        ("demo --nodes 3", ["--nodes", "3"]),
        ("demo --splits 0", ["--splits", "0"]),
        ("dance", ["dance"]),
        ("train --no-such-option", ["--no-such-option"]),
    ],
)
def test_bad_input_is_one_line(
    arguments: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("fairmp: ")
    for word in words:
        assert word in line
    assert not list(tmp_path.iterdir())


def test_in_a_process_too(tmp_path: Path) -> None:
    done = fairmp("train", "--target", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("fairmp: --target: 2.0")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def run(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
    with pytest.raises(SystemExit) as leave:
        main()
    return int(leave.value.code or 0)


def test_one_split_has_no_interval_and_one_decision_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
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
    own = "--nodes people.csv --edges ties.csv --label hired --sensitive sex --no-picture"
    assert run(f"train {own} --splits 1 --epochs 40 --lr 0.05 --out t", monkeypatch) == 0
    out = capsys.readouterr().out
    assert "test nodes, one split" in out
    assert "1 splits" not in out
    assert out.count("note: Everyone gets the decision 'no'") == 1
    assert out.count("note: In small samples a measured gap") == 1
    page = (tmp_path / "t" / "report.html").read_text(encoding="utf-8")
    assert "Everyone gets the decision &#39;no&#39;" in page
    assert "over 1 splits" not in page
    assert "On one split" in page


def test_the_target_of_many_groups_is_that_of_the_two_farthest_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    group = np.arange(240) % 4
    people = pd.DataFrame({"y": rng.random(240) < 0.2 + group / 6, "g": group, "x": group})
    people.assign(x=group + rng.normal(size=240), y=people.y.astype(int)).to_csv(
        "people.csv", index=False
    )
    ties = pd.DataFrame(rng.integers(240, size=(400, 2)), columns=["a", "b"])
    ties.to_csv("ties.csv", index=False)
    own = "--nodes people.csv --edges ties.csv --label y --sensitive g --no-picture --splits 1"
    assert run(f"train {own} --target 0.1 --epochs 5 --out t", monkeypatch) == 0
    page = (tmp_path / "t" / "report.html").read_text(encoding="utf-8")
    assert "≤ 10.0" in page
    figures = json.loads((tmp_path / "t" / "records.jsonl").read_text().splitlines()[0])
    smallest = min(row["count"] for row in figures["run"]["test"]["groups"])
    assert figures["run"]["test"]["dp"] <= 0.1 + 1 / smallest + 1e-9
    assert run(f"train {own} --solver papc --epochs 5 --out p", monkeypatch) == 0
    assert "≤ " not in (tmp_path / "p" / "report.html").read_text(encoding="utf-8")
