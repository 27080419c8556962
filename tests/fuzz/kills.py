"""Commands that are killed at a random moment: run again, they end as if nothing had happened.

The program is imported once, and every run is a forked process, so that a kill falls into the work
of the command and not into its start. Under torchrun the work begins with its first file.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairmp import cli
from tests.distributed.torchrun import environment, torchrun

SMALL = "--data embedded:120 --epochs 4"
TORCHRUN = "torchrun "
EXPERIMENTS = "experiments "
# What some of the commands read.
BEFORE = (
    f"train {SMALL} --splits 1 --no-picture --out run",
    "shard --data embedded:120 --parts 2 --splits 1 --out shards",
)
# The command, and the files that must be the same whenever it has ended.
COMMANDS = {
    "train": (f"train {SMALL} --splits 1 --no-picture --out out", ["out/model/model.safetensors"]),
    "compare": (
        f"compare {SMALL} --splits 1 --methods mlp --strategies vanilla --workers 1 --out out",
        ["out/table.csv"],
    ),
    "tune": (
        f"tune {SMALL} --trials 12 --splits 1 --workers 1 --out out",
        ["out/best.json", "out/trials.csv", "out/model/model.safetensors"],
    ),
    "statistics": (
        f"{EXPERIMENTS}statistics --data embedded:120 --out out",
        ["out/statistics.json"],
    ),
    "debias": ("debias p.csv --sensitive s --out out", ["out/corrected.csv"]),
    "debias --save": (
        "debias p.csv --sensitive s --save out-c.json --out out.csv",
        ["out.csv", "out-c.json"],
    ),
    "shard": ("shard --data embedded:120 --parts 2 --splits 1 --out out", ["out/manifest.json"]),
    "train --shards": (
        f"{TORCHRUN}train --shards shards --epochs 30 --splits 1 --checkpoint-every 3 --out out",
        ["out/model/model.safetensors"],
    ),
    "audit": ("audit --data embedded:120 --no-picture --out out", ["out/audit.json"]),
    "predict": ("predict run --data embedded:120 --out out.csv", ["out.csv"]),
    "report": ("report run --out out.html", ["out.html"]),
    "monitor": ("monitor run p.csv --sensitive s --out out", ["out/monitor.json"]),
    "speed": (
        f"{EXPERIMENTS}speed --nodes 60 --edges 200 --features 3 --rounds 1 --out out",
        [],
    ),
}
IMPORTED_LATER = (  # by commands, when they run
    *("experiments.speed", "experiments.statistics", "fairmp.distributed.writer"),
    *("fairmp.report.figures", "fairmp.tuning.tune", "fairmp.training.classifier"),
)
DONE = ("is not empty", "exists")  # what a command says if the results were there before the kill
LIMIT_S = 300


class Run(NamedTuple):
    """A run of a command that is not killed."""

    waits_s: float  # until its work begins
    takes_s: float
    digests: list[str]
    files: frozenset[str]


@contextmanager
def started(command: str, place: Path) -> Iterator[int]:
    """Run a command in a forked process, which is killed at the end if it still runs."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.setsid()
            os.chdir(place)
            log = os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if command.startswith(TORCHRUN):
                words = torchrun(2, *command.removeprefix(TORCHRUN).split())
                os.execve(sys.executable, words, environment())
            _run(command)
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)
    try:
        yield process
    finally:
        kill(process)


def _run(command: str) -> None:
    """Run a command of either program in this process."""
    if command.startswith(EXPERIMENTS):
        from experiments.__main__ import main

        sys.argv = command.split()
    else:
        from fairmp.cli import main

        sys.argv = ["fairmp", *command.split()]
    main()


def kill(process: int) -> None:
    """Kill a process and all it has started, and wait until they are gone."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)  # it starts no more of them
    family = [process, *descendants(process)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)
    while any(state(member) not in "ZX" for member in family):
        time.sleep(0.01)


def descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from descendants(child)


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def finish(command: str, place: Path) -> tuple[int, float]:
    """Run a command to its end; its status, and the seconds until its first file."""
    begin, first, before = time.monotonic(), 0.0, listing(place)
    with started(command, place) as process:
        while time.monotonic() < begin + LIMIT_S:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), first
            if not first and listing(place) != before:
                first = time.monotonic() - begin
            time.sleep(0.02)
    raise TimeoutError(f"{command} did not end in {LIMIT_S} s")


def digests(place: Path, names: list[str]) -> list[str]:
    """Checksums of results, without their times."""
    sums = []
    for name in names:
        content = (place / name).read_bytes()
        if name.startswith("out/") and name.endswith(".csv"):
            frame = pd.read_csv(place / name, dtype=str)
            content = frame.drop(columns=frame.filter(regex="seconds")).to_csv().encode()
        sums.append(hashlib.sha256(content).hexdigest())
    return sums


def listing(place: Path) -> frozenset[str]:
    """Names of all files and folders; unlike ``rglob`` it tolerates those that disappear."""
    paths = (f"{at}/{name}" for at, *names in os.walk(place) for name in chain(*names))
    return frozenset(os.path.relpath(path, place) for path in paths)


def success(command: str, place: Path) -> float:
    """Run a command that must succeed; the seconds until its first file."""
    status, first = finish(command, place)
    assert status == 0, (command, said(place)[-2000:])
    return first


def said(place: Path) -> str:
    """What the command printed last."""
    return (place.parent / "log").read_text()


@functools.cache
def template() -> tempfile.TemporaryDirectory[str]:
    """A folder with what the commands read."""
    folder = tempfile.TemporaryDirectory()
    place = Path(folder.name) / "work"
    place.mkdir()
    rng = np.random.default_rng(0)
    rows = [f"{rng.random():.4f},group {int(k % 3 > 0)}" for k in range(300)]
    (place / "p.csv").write_text("p,s\n" + "\n".join(rows) + "\n")
    for command in BEFORE:
        success(command, place)
    return folder


def prepare(place: Path) -> Path:
    return Path(shutil.copytree(Path(template().name) / "work", place / "work"))


def remove(place: Path) -> None:
    """Remove the results, for a new run."""
    for path in place.glob("out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@functools.cache
def undisturbed(name: str) -> Run:
    """Run a command without killing it."""
    command, names = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = prepare(Path(folder))
        success(command, place)  # compiles what is not compiled yet
        remove(place)
        start = time.monotonic()
        first = success(command, place)
        took = time.monotonic() - start
        waits = first if command.startswith(TORCHRUN) else 0.0
        return Run(waits, took, digests(place, names), listing(place))


def case(rng: np.random.Generator, folder: Path) -> str:
    """Kill a command at a random moment, and run it again."""
    name = str(rng.choice(list(COMMANDS)))
    command, names = COMMANDS[name]
    usual = undisturbed(name)
    place = prepare(folder)
    with started(command, place) as process:
        time.sleep(usual.waits_s + (usual.takes_s - usual.waits_s) * rng.random())
        early = alive(process)
    if not early:
        remove(place)  # it had ended: a new run refuses results that are there
    status, _ = finish(command, place)
    there = early and status in (1, 2) and any(text in said(place) for text in DONE)
    assert status == 0 or there, (name, said(place)[-4000:])
    assert digests(place, names) == usual.digests, name
    assert listing(place) == usual.files, (name, listing(place) ^ usual.files)
    return f"{name}, {'killed' if early else 'ended before'}"


def warm_up() -> None:
    """Import what the commands need, so that forked processes have it."""
    for name in (*(f"fairmp.cli.{name}" for name in cli.COMMANDS), *IMPORTED_LATER):
        import_module(name)
    template()
