"""Commands that are killed at a random moment: run again, they end as if nothing had happened.

The program is imported once, and every run is a forked process, so that a kill falls into the work
of the command and not into its start.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

SMALL = "--data embedded:120 --epochs 4"
# The command, and the files that must be the same whenever it has ended.
COMMANDS = {
    "train": (f"train {SMALL} --splits 1 --no-picture --out out", ["model/model.safetensors"]),
    "compare": (
        f"compare {SMALL} --splits 1 --backbones mlp --strategies vanilla --workers 1 --out out",
        ["table.csv"],
    ),
    "tune": (f"tune {SMALL} --trials 2 --splits 1 --workers 1 --out out", ["best.json"]),
    "reproduce": ("reproduce statistics --data embedded:120 --out out", ["statistics.json"]),
    "debias": ("debias p.csv --sensitive s --out out", ["corrected.csv"]),
    "shard": ("shard --data embedded:120 --parts 2 --splits 1 --out out", ["manifest.json"]),
}
LIMIT_S = 300


@contextmanager
def started(command: str, place: Path) -> Iterator[int]:
    """Run a command in a forked process, which is killed at the end if it still runs."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.setsid()
            os.chdir(place)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.argv = ["fairmp", *command.split()]
            from fairmp.cli import main

            main()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)
    try:
        yield process
    finally:
        # Its workers too; what is gone already needs no signal.
        for kill in (os.killpg, os.kill):
            try:
                kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(process, 0) if alive(process) else None


def alive(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def finish(command: str, place: Path) -> int:
    """Run a command to its end, and return its status."""
    end = time.monotonic() + LIMIT_S
    with started(command, place) as process:
        while time.monotonic() < end:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
    raise TimeoutError(f"{command} did not end in {LIMIT_S} s")


def prepare(place: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{rng.random():.4f},{'fm'[k % 3 > 0]}" for k in range(300)]
    (place / "p.csv").write_text("p,s\n" + "\n".join(rows) + "\n")


def digests(out: Path, names: list[str]) -> list[str]:
    found = []
    for name in names:
        content = (out / name).read_bytes()
        if name == "table.csv":  # the last column is the time it took
            content = b"\n".join(line.rpartition(b",")[0] for line in content.splitlines())
        found.append(hashlib.sha256(content).hexdigest())
    return found


@functools.cache
def undisturbed(name: str) -> tuple[float, list[str], frozenset[str]]:
    """The time a command takes, the digests of its results, and the names of all files."""
    import tempfile

    command, names = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)
        if finish(command, place):  # compiles what is not compiled yet
            raise AssertionError((place / "log").read_text()[-2000:])
        shutil.rmtree(place / "out")
        start = time.perf_counter()
        assert finish(command, place) == 0
        took = time.perf_counter() - start
        return took, digests(place / "out", names), listing(place)


def listing(place: Path) -> frozenset[str]:
    return frozenset(str(path.relative_to(place)) for path in place.rglob("*"))


def case(rng: np.random.Generator, place: Path) -> str:
    name = str(rng.choice(list(COMMANDS)))
    command, names = COMMANDS[name]
    took, expected, files = undisturbed(name)
    prepare(place)
    with started(command, place) as process:
        time.sleep(took * rng.random())
        early = alive(process)
    if not early:
        shutil.rmtree(place / "out")  # it had ended: a new run refuses a folder with results
    status = finish(command, place)
    assert status == 0, (name, (place / "log").read_text()[-2000:])
    assert digests(place / "out", names) == expected, name
    assert listing(place) == files, (name, listing(place) ^ files)
    return f"{name}, {'killed' if early else 'ended before'}"


def warm_up() -> None:
    import fairmp.cli.compare
    import fairmp.cli.debias
    import fairmp.cli.reproduce
    import fairmp.cli.shard
    import fairmp.cli.train
    import fairmp.cli.tune
    import fairmp.distributed.writer
    import fairmp.report.figures
    import fairmp.search.tune
    import fairmp.training.classifier

    assert fairmp
    for name in COMMANDS:
        undisturbed(name)
