"""Start the program under torchrun, as people do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 150.0


def environment(**variables: str) -> dict[str, str]:
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD", "MASTER"))
    }
    return {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "COLUMNS": "100",
        **variables,
    }


def torchrun(size: int, *words: str, restarts: int = 0) -> list[str]:
    options = ["--nnodes=1", f"--nproc-per-node={size}", f"--max-restarts={restarts}"]
    options += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "fairmp", *words]


def start(
    command: Sequence[str], folder: Path, environment: dict[str, str], name: str = "log"
) -> subprocess.Popen[bytes]:
    """Start a command in a folder; what it says goes to files there."""
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True
        )


def finish(process: subprocess.Popen[bytes], patience: float = PATIENCE) -> int:
    """Wait for a command; one that takes too long is ended with all it started."""
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes torchrun has started."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def appears(path: Path, process: Any, after: float = 0.0) -> bool:
    """Wait until a file is there, and younger than a time; ``False`` if the process ends first."""
    until = time.monotonic() + PATIENCE
    popen = isinstance(process, subprocess.Popen)
    while time.monotonic() < until:
        try:
            if path.stat().st_mtime > after:
                return True
        except FileNotFoundError:
            pass
        if (process.poll() is not None) if popen else not process.is_alive():
            return False
        time.sleep(0.01)
    return False
