"""Measurements behind the documentation: run ``python -m benchmarks.NAME`` from the root."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def typed_command() -> str:
    """Return the command that was typed, for a record."""
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
