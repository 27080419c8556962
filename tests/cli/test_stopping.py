"""The program is stopped, by Ctrl-C or a request to end: it says so, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
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


def stopped(*arguments: str, by: signal.Signals, cwd: Path, when: str) -> tuple[int, str, str]:
    """Start the program, and stop it once something of that name stays in its folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmp", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_stopped_train_leaves_nothing_and_says_so(tmp_path: Path, by: signal.Signals) -> None:
    words = ("train", "--data", "embedded:500", "--solver", "none", "--epochs", "1000000")
    words += ("--backbone", "mlp", "--patience", "0")
    status, out, err = stopped(*words, "--out", "t", by=by, cwd=tmp_path, when=".t.partial")
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
