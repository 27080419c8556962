"""The paper's tables and figures, one file each: ``python -m experiments --list``.

Run from the root of a checkout; this package is not part of the wheel.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
