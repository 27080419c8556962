"""The shell scripts of ``examples/`` run as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "new_people.sh"


def test_example_script_succeeds_and_reports_the_gate(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, words in (("python", ""), ("fairmp", "-m fairmp ")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [SCRIPT, tmp_path / "work", "15000"],
        env={**os.environ, "PATH": path, "EPOCHS": "10"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "work" / "report.html").exists()
    assert "over the limit of --fail-above 0.02" in done.stderr
