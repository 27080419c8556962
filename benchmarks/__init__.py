"""Measurements behind the documentation: run ``python -m benchmarks.NAME`` from the root."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from experiments.provenance import Scope, code_hash


def provenance(scope: Scope) -> dict[str, str]:
    """The command that was typed and the hash of the code that ran, for a record."""
    return {"command": typed_command(), "code": code_hash(scope)}


def typed_command() -> str:
    """Return the command that was typed, for a record."""
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
