"""fairmp shard, and torchrun … fairmp train --shards."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp import FairClassifier
from fairmp.cli import main
from fairmp.datasets import from_tables
from fairmp.distributed import evaluate_shard, load_shard, predict_shard
from tests.distributed.jobs import program
from tests.distributed.together import started, together
from tests.distributed.torchrun import appears, environment, finish, ranks_of, start, torchrun

TRAIN = ["--epochs", "24", "--splits", "1", "--hidden", "16", "--checkpoint-every", "3"]
TRAIN += ["--solver", "papc", "--dropout", "0.3"]
WEIGHTS = Path("model") / "model.safetensors"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    n = 400
    sex = rng.integers(0, 2, n)
    hired = (rng.normal(size=n) + sex > 0.5).astype(int)
    nodes = pd.DataFrame(
        {
            "who": np.arange(n) + 1000,
            "hired": hired,
            "sex": np.where(sex, "m", "f"),
            "score": hired + rng.normal(size=n),
            "age": rng.integers(18, 70, n),
        }
    )
    ends = rng.integers(0, n, (2500, 2)) + 1000
    nodes.to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame(ends, columns=["one", "other"]).to_csv(folder / "edges.csv", index=False)
    return {
        "nodes": str(folder / "nodes.csv"),
        "edges": str(folder / "edges.csv"),
        "id": "who",
        "label": "hired",
        "sensitive": "sex",
    }


@pytest.fixture(scope="module")
def shards(tables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "s"
    words = [word for name, value in tables.items() for word in (f"--{name}", value)]
    run("shard", *words, "--parts", "4", "--out", str(folder))
    return folder


def run(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairmp", *words])
        with pytest.raises(SystemExit) as left:
            main()
    return int(left.value.code or 0)


def test_shard_reports_its_parts(
    shards: Path, tables: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name, value in tables.items() for word in (f"--{name}", value)]
    assert run("shard", *words, "--parts", "3", "--out", str(tmp_path / "s"), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert sum(part["nodes"] for part in record["parts"]) == record["nodes"] == 400
    assert run("shard", *words, "--parts", "3", "--out", str(tmp_path / "s")) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("shard", *words, "--parts", "3", "--out", str(tmp_path / "s"), "--overwrite") == 0
    assert "train --shards" in capsys.readouterr().out
    for wrong, says in (
        (["--parts", "401"], "--parts: 401 for 400 nodes"),
        (["--order", "best"], "--order: 'best' is unknown"),
        (["--data", "nba"], "cannot be combined with --nodes"),
        (["--label", "hire"], "--label: the node table has no column 'hire'"),
    ):
        assert run("shard", *words, *wrong, "--out", str(tmp_path / "t")) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert not (tmp_path / "t").exists()


def test_one_process_trains_the_same_on_shards_and_tables(
    shards: Path, tables: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--epochs", "8", "--splits", "2", "--hidden", "8", "--json"]
    options += ["--backbone", "mlp", "--lambda-s", "3"]
    words = [word for name, value in tables.items() for word in (f"--{name}", value)]
    assert run("train", "--shards", str(shards), *options, "--out", str(tmp_path / "a")) == 0
    sharded = json.loads(capsys.readouterr().out)
    assert run("train", *words, *options, "--no-picture", "--out", str(tmp_path / "b")) == 0
    plain = json.loads(capsys.readouterr().out)
    for one, other in zip(sharded, plain, strict=True):
        assert one["dataset"] == other["dataset"]
        assert {**one["run"], "seconds": 0}.keys() == {**other["run"], "seconds": 0}.keys()
        assert one["run"]["config"] == other["run"]["config"]
        assert one["run"]["split_seed"] == other["run"]["split_seed"]
        for part in ("train", "val", "test"):
            assert one["run"][part]["n"] == other["run"][part]["n"]
            assert one["run"][part]["accuracy"] == pytest.approx(
                other["run"][part]["accuracy"], abs=0.02
            )
    listing = [sorted(p.name for p in (tmp_path / k).iterdir()) for k in ("a", "b")]
    assert listing[0] == listing[1]

    # A model trained on shards is used on one machine, and the other way round.
    columns = {**tables, "sensitive": "sex"}
    data = from_tables(columns["nodes"], columns["edges"], id="who", label="hired", sensitive="sex")
    mine = load_shard(shards)
    for folder in ("a", "b"):
        model = FairClassifier.load(tmp_path / folder / "model")
        assert model.encoding_ == data.encoding
        for mode in ("batch", "per-node"):
            torch.testing.assert_close(
                predict_shard(model, mine, mode=mode),  # type: ignore[arg-type]
                model.predict_proba(data, mode=mode)[mine.number],  # type: ignore[arg-type]
                atol=1e-5,
                rtol=0,
            )
        expected = model.evaluate(data, nodes=data.test_mask, bootstrap=0)
        assert evaluate_shard(model, mine, bootstrap=0).accuracy == expected.accuracy


def test_wrong_options_end_in_one_line(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, says in (
        (["--data", "nba"], "--data: cannot be combined with --shards"),
        (["--splits", "9"], "--splits: no split with seed 3 was written"),
        (["--backbone", "gat"], "choose 'mlp', 'gcn', 'sgc' or 'appnp' for shards"),
        (["--timeout", "0"], "timeout: 0.0"),
        (["--target", "2"], "target: 2.0"),
    ):
        words = ["train", "--shards", str(shards), *wrong, "--out", str(tmp_path / "o")]
        assert run(*words) == 2, wrong
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
        assert not (tmp_path / "o").exists()
    assert run("train", "--shards", str(tmp_path), "--out", str(tmp_path / "o")) == 2
    assert "has no manifest.json" in capsys.readouterr().err


@pytest.fixture(scope="module")
def quiet(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights two ranks train when nothing happens."""
    folder = tmp_path_factory.mktemp("quiet")
    words = ["train", "--shards", str(shards), *TRAIN, "--out", "o"]
    outputs = together(2, program, folder, [words, words], group=False)
    assert [status for status, _, _ in outputs] == [0, 0], outputs
    assert "The first split's test part:" in outputs[0][1]
    assert outputs[1][1:] == ("", "")  # rank 0 alone tells
    return (folder / "o" / WEIGHTS).read_bytes()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_killed_rank_is_restarted_with_the_same_model(
    shards: Path, quiet: bytes, tmp_path: Path
) -> None:
    words = ["train", "--shards", str(shards), *TRAIN, "--out", "o"]
    process = start(torchrun(2, *words, restarts=2), tmp_path, environment())
    checkpoint = tmp_path / "o" / "checkpoint" / "split-0.pt"
    assert appears(checkpoint, process), (tmp_path / "log.err").read_text()
    os.kill(random.choice(ranks_of(process)), signal.SIGKILL)
    assert finish(process) == 0, (tmp_path / "log.err").read_text()
    assert "exitcode: -9" in (tmp_path / "log.err").read_text()
    assert (tmp_path / "o" / WEIGHTS).read_bytes() == quiet
    assert not checkpoint.parent.exists()


def test_training_killed_twice_resumes_to_the_same_model(
    shards: Path, quiet: bytes, tmp_path: Path
) -> None:
    """Each rank once, after a checkpoint; benchmarks/distributed.py does ten at random moments."""
    words = ["train", "--shards", str(shards), *TRAIN, "--out", "o"]
    checkpoint = tmp_path / "o" / "checkpoint" / "split-0.pt"
    seen = 0.0
    for victim in (0, 1):
        processes, _ = started(2, program, tmp_path, [words, words])
        assert appears(checkpoint, processes[victim], after=seen)
        seen = checkpoint.stat().st_mtime if checkpoint.exists() else 0.0
        for process in (processes[victim], processes[1 - victim]):  # as torchrun ends the others
            process.kill()
            process.join()
    outputs = together(2, program, tmp_path, [[*words, "--overwrite"]] * 2, group=False)
    assert [status for status, _, _ in outputs] == [0, 0], outputs
    assert (tmp_path / "o" / WEIGHTS).read_bytes() == quiet


def test_ranks_with_different_commands_stop_in_one_line(shards: Path, tmp_path: Path) -> None:
    words = ["train", "--shards", str(shards), "--out", "o", "--epochs"]
    outputs = together(2, program, tmp_path, [[*words, "5"], [*words, "6"]], group=False)
    assert [status for status, _, _ in outputs] == [2, 2]
    lines = [line for _, _, error in outputs for line in error.splitlines()]
    assert len(lines) == 1
    assert "configuration: the ranks disagree on epochs: rank 0 has 5, rank 1 has 6" in lines[0]
    assert not (tmp_path / "o").exists()


def test_unfinished_training_is_resumed(shards: Path, tmp_path: Path) -> None:
    words = ["train", "--shards", str(shards), *TRAIN, "--out"]
    (status, _, _), *_ = together(1, program, tmp_path, [[*words, "quiet"]])
    assert status == 0
    checkpoint = tmp_path / "again" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "split-0.pt.draft").write_bytes(b"cut off")
    (status, _, error), *_ = together(1, program, tmp_path, [[*words, "again"]])
    assert status == 0, error
    names = ["records.jsonl", "report.html"]
    assert {*names} <= {path.name for path in (tmp_path / "again").iterdir()}
    assert not checkpoint.exists()
    # A finished one is not trained over.
    (status, _, error), *_ = together(1, program, tmp_path, [[*words, "again"]])
    assert status == 2
    assert "is not empty" in error
