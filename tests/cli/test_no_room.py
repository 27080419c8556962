"""A full disk, a folder that cannot be written to or is in use: one line, and nothing left."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from experiments import __main__ as experiments
from fairmp import outputs
from fairmp.cli import main as fairmp_main

SMALL = "--data embedded:120"
TRAIN = f"train --solver none --backbone mlp {SMALL} --epochs 2 --splits 1 --no-picture"
FOLDERS = {
    "train": f"{TRAIN} --out out",
    "train --shards": "train --shards shards --epochs 2 --splits 1 --out out",
    "audit": f"audit {SMALL} --no-picture --out out",
    "shard": "shard --data embedded:900 --parts 1 --splits 1 --out out",
    "debias": "debias p.csv --sensitive s --out out",
    "monitor": "monitor run p.csv --sensitive s --out out",
    "speed": "experiments speed --nodes 60 --edges 200 --features 3 --rounds 1 --out out",
    "demo": "demo --nodes 500 --splits 1 --out out",
    "compare": f"compare {SMALL} --epochs 2 --splits 1 --methods mlp --workers 1"
    " --strategies vanilla --out out",
    "tune": f"tune {SMALL} --epochs 2 --splits 1 --trials 1 --out out",
    "statistics": f"experiments statistics {SMALL} --out out",
    "topology": f"experiments topology {SMALL} --out out",
    "runtime": f"experiments runtime --quick {SMALL} --out out",
    "synthetic": "experiments synthetic --quick --out out",
    "table1": f"experiments table1 --quick {SMALL} --workers 1 --out out",
}
FILES = {
    "debias": "debias p.csv --sensitive s --out out.csv",
    "debias --save": "debias p.csv --sensitive s --out out.csv --save out-c.json",
    "predict": f"predict run {SMALL} --out out.csv",
    "report": "report run --out out.html",
    "report --card": "report run --card --out out.html",
}
SLOW = {"demo", "runtime", "synthetic", "table1"}  # refused like the others, but at work for long
ALL = {**FOLDERS, **{f"{name}, file": command for name, command in FILES.items()}}
QUICK = [name for name in ALL if name not in SLOW]
RESUMED = {"compare", "tune", "train --shards"}  # what is done is kept: the same command continues
PROGRAMS = ("fairmp: ", "experiments: ")
Run = Callable[..., tuple[int, str]]


def said(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a program; its status, and what it says on standard error."""
    words = arguments.split()
    main = experiments.main if words[0] == "experiments" else fairmp_main
    sys.argv = words if words[0] == "experiments" else ["fairmp", *words]
    with pytest.raises(SystemExit) as leave:
        main()
    return int(leave.value.code or 0), capsys.readouterr().err


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands read."""
    folder, here, words = tmp_path_factory.mktemp("inputs"), Path.cwd(), sys.argv
    rng = np.random.default_rng(0)
    rows = [f"{rng.random():.4f},group {int(k % 3 > 0)}" for k in range(900)]
    (folder / "p.csv").write_text("p,s\n" + "\n".join(rows) + "\n")
    try:
        os.chdir(folder)
        for command in (f"{TRAIN} --out run", f"shard {SMALL} --parts 1 --splits 1 --out shards"):
            sys.argv = ["fairmp", *command.split()]
            with pytest.raises(SystemExit) as leave:
                fairmp_main()
            assert not leave.value.code
    finally:
        os.chdir(here)
        sys.argv = words
    return folder


@pytest.fixture
def fairmp(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut it off, unnoticed

    def run(arguments: str, largest_file: int | None = None) -> tuple[int, str]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, limits[1]))
        try:
            return said(arguments, capsys)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return run


@pytest.mark.parametrize("command", QUICK)
def test_full_disk(fairmp: Run, inputs: Path, tmp_path: Path, command: str) -> None:
    small = ("statistics", "monitor", "speed", "predict, file", "train --shards")
    status, err = fairmp(ALL[command], largest_file=800 if command in small else 4_000)
    assert status in (1, 2)
    last = err.strip().splitlines()[-1]
    assert last.startswith(PROGRAMS)
    assert "too large" in last or "no space" in last or "disk I/O error" in last
    left = {path.name for path in tmp_path.iterdir()} - {path.name for path in inputs.iterdir()}
    assert left <= ({"out"} if command in RESUMED else set())


@pytest.mark.parametrize("command", ALL)
def test_place_that_cannot_be_written_to(
    fairmp: Run, inputs: Path, tmp_path: Path, command: str
) -> None:
    status, err = fairmp(ALL[command].replace("--out out", "--out /proc/out"))
    assert status in (1, 2)
    assert err.startswith(PROGRAMS)
    assert "/proc" in err
    assert err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == len(list(inputs.iterdir()))


@pytest.fixture
def anyone(tmp_path: Path) -> Iterator[Path]:
    """A read-only folder, for a user whom that binds; it does not bind root."""
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "locked", os.geteuid() == 0
        folder.mkdir(mode=0o555)
        for path in (Path(name), *tmp_path.rglob("*")):
            path.chmod(0o755)
        if root:
            os.seteuid(65534)
        try:
            if not os.access(tempfile.gettempdir(), os.W_OK):
                pytest.skip("the user nobody has no folder for temporary files")
            yield folder
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("command", FOLDERS)
def test_read_only_folder(
    command: str, anyone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    status, err = said(FOLDERS[command].replace("--out out", f"--out {anyone}/out"), capsys)
    assert status == 2, err
    assert err.startswith(PROGRAMS)
    assert f"--out: {anyone}/out cannot be written to (Permission denied)" in err
    assert err.count("\n") == 1
    assert not list(anyone.iterdir())


@pytest.mark.parametrize("command", FOLDERS)
def test_folder_in_use(
    fairmp: Run, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / ".out-aaaaaaaa.partial"
    staging.mkdir()
    (staging / outputs.OWNER).write_text("process 7 on a machine\nout\n")
    monkeypatch.setattr(outputs, "WAIT_S", 0.1)
    with FileLock(staging / outputs.LOCK):
        status, err = fairmp(FOLDERS[command])
        assert (status, err.count("\n")) == (2, 1), err
        assert "--out: out is being written to by process 7" in err
        assert (staging / outputs.OWNER).exists()


@pytest.mark.parametrize("command", FILES)
def test_file_written_by_another_process_meanwhile(
    fairmp: Run, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal, sync = tmp_path / FILES[command].partition("--out ")[2].split()[0], outputs._sync

    def late(path: Path) -> None:
        goal.write_text("theirs")
        sync(path)

    monkeypatch.setattr(outputs, "_sync", late)
    status, err = fairmp(FILES[command])
    assert (status, err.count("\n")) == (2, 1), err
    assert f"{goal.name} exists by now" in err
    assert goal.read_text() == "theirs"
    assert not list(tmp_path.glob("*.partial"))
