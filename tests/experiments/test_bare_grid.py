"""The grid on a machine that has little installed, killed and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Data

from experiments import graph_files, grids
from fairmp.comparison import compare
from fairmp.comparison.grid import run_specs
from tests.comparison.test_compare import figures, small, table

ROOT = Path(__file__).parents[2]
GRID = "--methods mlp,fmp --strategies vanilla,regulariser,thresholds-val --splits 4 --hidden 8"


def started(folder: Path, out: Path, workers: int) -> subprocess.Popen[str]:
    """The grid in a process of its own, where only what a bare machine has can be imported."""
    absent = ["pandas", "pyarrow", "typer", "rich", "matplotlib", "safetensors"]
    code = (
        "import sys\n"
        f"for name in {absent!r}: sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from experiments.bare_grid import main\n"
        "if __name__ == '__main__': sys.exit(main())\n"
    )
    words = [*GRID.split(), "--npz", str(folder), "--out", str(out), "--workers", str(workers)]
    script = folder / "start.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script), *words, "--epochs", "40", "--lr", "0.02"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_grid_killed_at_any_moment_continues_to_the_same_table(tmp_path: Path) -> None:
    graph_files.save(small(), tmp_path / "small.npz")
    setting = replace(grids.RECORDED, epochs=40, lr=0.02, hidden=8)
    strategies = ["vanilla", "regulariser", "thresholds-val"]
    grid = run_specs(["small"], ["mlp", "fmp"], strategies, splits=4, setting=setting)

    def load(name: str) -> Data:
        return graph_files.from_npz(name, tmp_path)

    undisturbed = compare.run(grid, load, tmp_path / "undisturbed.jsonl")
    out = tmp_path / "killed.jsonl"
    for workers in (2, 1):
        process = started(tmp_path, out, workers)
        assert process.stderr is not None
        for line in process.stderr:  # one per record, after one on what is done already
            if line.startswith("3/"):
                break
        children = children_of(process.pid)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert wait_for(lambda children=children: not any(map(alive, children)))
    assert 0 < len(compare.read(out)) < len(grid)
    resumed = compare.run(grid, load, out)
    assert len(grid) == lines_of(out)
    assert figures(resumed) == figures(undisturbed)
    assert table(resumed) == table(undisturbed)


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition: Any, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())
