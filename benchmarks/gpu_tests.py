"""Run the tests that need a CUDA device, and record how many passed.

    python -m benchmarks.gpu_tests        # further arguments are pytest's, such as -n 8

Only the files that have such tests are collected: the others need packages that a machine with a
GPU may not have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import provenance
from fairmp.training.run import versions

ROOT = Path(__file__).parents[1]
OUT = Path(__file__).parent / "results" / "gpu-tests.json"


def files() -> list[str]:
    """Test files that have the marker."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [path for path in paths if "gpu" in path.read_text(encoding="utf-8")]
    return [path.relative_to(ROOT).as_posix() for path in marked] + ["tests/kernels/cuda"]


def main() -> int:
    """Run the tests, write the record, and return pytest's exit status."""
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", *sys.argv[1:]]
        status = subprocess.run([sys.executable, *words, *files()], cwd=ROOT, check=False)
        [suite] = ET.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    record = {
        **provenance("layer"),
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "passed": 2 * counts["tests"] - sum(counts.values()),
        "failed": counts["failures"] + counts["errors"],
        "skipped": counts["skipped"],
        "seconds": round(time.perf_counter() - start, 1),
    }
    OUT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return status.returncode


if __name__ == "__main__":
    sys.exit(main())
