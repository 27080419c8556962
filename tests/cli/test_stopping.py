"""The program is stopped, by Ctrl-C or a request to end: it says so, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Python ends itself by the signal, whoever caught it, where it came amid code made from text; a
# shell calls both 130.
SLOW_MODULE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
finished = True
"""
PROGRAM = """
import signal
from fairmp.cli import install_signal_handlers
install_signal_handlers()
try:
    import slow
    signal.pause()
except KeyboardInterrupt:
    print("finished", slow.finished)
"""
ENDED = (130, -signal.SIGINT)


@pytest.fixture(autouse=True)
def hangup_ends_programs() -> Iterator[None]:
    """Programs inherit an ignored signal, as under nohup, but not a handler."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


def stopped(*arguments: str, by: signal.Signals, cwd: Path, when: str) -> tuple[int, str, str]:
    """Start the program, and stop it once something of that name stays in its folder."""
    with subprocess.Popen(
        [sys.executable, "-m", "fairmp", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until, before, now = time.monotonic() + 100, [], list(cwd.glob(when))
            while (not now or now != before) and time.monotonic() < until:
                time.sleep(0.5)
                before, now = now, list(cwd.glob(when))
            process.send_signal(by)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


def test_interrupt_during_an_import_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_MODULE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "finished True\n", done.stderr


STARTING = """
import os, signal, sys
from fairmp import cli
cli.configure_process = lambda name: os.kill(os.getpid(), signal.{name})
sys.argv = ["fairmp", "--version"]
cli.main()
"""
ENDING = """
import atexit, os, signal, sys
from fairmp import cli
atexit.register(lambda: os.kill(os.getpid(), signal.{name}))
sys.argv = ["fairmp", "--version"]
cli.main()
"""
IGNORING = """
import signal
from fairmp.cli import install_signal_handlers
signal.signal(signal.SIGHUP, signal.SIG_IGN)
install_signal_handlers()
signal.raise_signal(signal.SIGHUP)
print("goes on")
"""


def run_text(program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_stopped_while_it_starts_or_ends_without_traceback(name: str) -> None:
    starting = run_text(STARTING.format(name=name))
    assert starting.returncode in ENDED
    assert starting.stderr == "fairmp: stopped; nothing was written\n"
    ending = run_text(ENDING.format(name=name))
    assert ending.returncode in (0, -getattr(signal, name))
    assert ending.stderr == ""


def test_nohup_is_respected() -> None:
    assert run_text(IGNORING).stdout == "goes on\n"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_train_leaves_nothing_and_says_so(tmp_path: Path, by: signal.Signals) -> None:
    words = ("train", "--data", "embedded:500", "--solver", "none", "--epochs", "1000000")
    words += ("--backbone", "mlp", "--patience", "0")
    status, out, err = stopped(*words, "--out", "t", by=by, cwd=tmp_path, when=".t-*.partial")
    assert status in ENDED, err
    assert out == ""
    assert err.splitlines()[-1] == "fairmp: stopped; nothing was written"
    assert not list(tmp_path.iterdir())


def test_stopped_compare_says_once_what_is_kept(tmp_path: Path) -> None:
    words = ("compare", "--data", "embedded:300", "--epochs", "5000", "--methods", "mlp")
    words = (*words, "--patience", "0", "--workers", "1", "--out", "c")
    status, _, err = stopped(*words, by=signal.SIGTERM, cwd=tmp_path, when="c")
    assert status in ENDED, err
    assert err.count("stopped") == 1
    assert "the same command continues" in err


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_is_imported_without_traceback(by: signal.Signals, tmp_path: Path) -> None:
    stopping = f"import os, time\nos.kill(os.getpid(), {int(by)})\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(stopping)  # any thread may be the one to be interrupted
    process = subprocess.run(
        [sys.executable, "-m", "fairmp", "--version"],
        cwd=tmp_path,  # first on the path, so that this is the typer that is imported
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stderr) == (-by, "")
