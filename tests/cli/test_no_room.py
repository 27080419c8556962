"""A full disk, a folder that cannot be written to or is in use: one line, and nothing left."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pytest

from fairmp import outputs
from fairmp.cli import main

COMMANDS = {
    "train": "train --solver none --data embedded:120 --epochs 2 --splits 1 --no-picture --out out",
    "audit": "audit --data embedded:120 --no-picture --out out",
    "shard": "shard --data embedded:900 --parts 1 --splits 1 --out out",
    "debias": "debias p.csv --sensitive s --out out",
    "compare": "compare --data embedded:120 --epochs 2 --splits 1 --backbones mlp --workers 1"
    " --strategies vanilla --out out",
    "statistics": "reproduce statistics --data embedded:120 --out out",
}


@pytest.fixture
def fairmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    rng = np.random.default_rng(0)
    rows = [f"{rng.random():.4f},{'fm'[k % 3 > 0]}" for k in range(900)]
    (tmp_path / "p.csv").write_text("p,s\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut it off, unnoticed

    def run(arguments: str, largest_file: int | None = None) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fairmp", *arguments.split()])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, limits[1]))
        try:
            with pytest.raises(SystemExit) as leave:
                main()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return int(leave.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_no_room_on_the_disk(fairmp, tmp_path: Path, command: str) -> None:
    limit = 1_000 if command == "statistics" else 8_000
    status, err = fairmp(COMMANDS[command], largest_file=limit)
    assert status in (1, 2)
    last = err.strip().splitlines()[-1]
    assert last.startswith("fairmp: ")
    assert "too large" in last or "no space" in last
    left = {path.name for path in tmp_path.iterdir()}
    # The records of a comparison are kept: the same command continues.
    assert left <= {"p.csv", "out"} if command == "compare" else left == {"p.csv"}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "debias"])
def test_a_folder_that_cannot_be_made(fairmp, tmp_path: Path, command: str) -> None:
    status, err = fairmp(COMMANDS[command].replace("--out out", "--out /proc/out"))
    assert status == 2
    assert err.startswith("fairmp: --out: /proc/out cannot be written to")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_use(fairmp, tmp_path: Path, command: str) -> None:
    staging = tmp_path / ".out.partial"
    lock = outputs._lock(staging)
    assert lock is not None
    with lock:
        outputs.WAIT_S, before = 0.1, outputs.WAIT_S
        try:
            status, err = fairmp(COMMANDS[command])
        finally:
            outputs.WAIT_S = before
        assert (status, err.count("\n")) == (2, 1), err
        assert "--out: out is being written to by process" in err
        assert staging.is_dir()
