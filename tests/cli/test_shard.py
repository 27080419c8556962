"""``fairmp shard`` says how to train on what it wrote."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairmp.cli import main
from tests.distributed.torchrun import environment


def test_printed_torchrun_command_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["shard", "--data", "embedded:400", "--parts", "1", "--splits", "1", "--seed", "7"]
    monkeypatch.setattr(sys, "argv", ["fairmp", *words, "--out", "my shards"])
    with pytest.raises(SystemExit) as leave:
        main()
    assert not leave.value.code
    torchrun, *arguments = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert torchrun == "torchrun"
    alone = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *alone, *arguments, "--epochs", "2"],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fairmp-train" / "report.html").is_file()
    assert "one split" in done.stdout
