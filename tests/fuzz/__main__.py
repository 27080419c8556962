"""Long runs: ``python -m tests.fuzz --seed 7 --tables 20000 --jobs 16 --out fuzz.json``.

Every kind is one entry of the file, and replaces an older one of the same kind and seed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.provenance import code_hash
from tests.fuzz import KINDS
from tests.fuzz.harness import Outcome, Portion

PORTION = 250
COMMAND = "make fuzz SEED=… JOBS=… RECORD=… TABLES=… CONTENTS=… …, or python -m tests.fuzz"


def run_cases(kind: str, seed: int, count: int, jobs: int) -> dict[str, Any]:
    """Run some cases of a kind in several processes."""
    start = time.perf_counter()
    whole = Outcome(kind, seed)
    size = max(1, min(PORTION, count // (4 * jobs)))
    portions = [Portion(kind, seed, range(k, min(k + size, count))) for k in range(0, count, size)]
    with get_context("forkserver").Pool(min(jobs, len(portions)), maxtasksperchild=20) as pool:
        pool.apply(Portion(kind, seed, range(0)).run)  # one process compiles, and keeps it
        for part in pool.imap_unordered(Portion.run, portions):
            whole.ends += Counter(part.ends)
            whole.failures |= part.failures
    seconds = round(time.perf_counter() - start)
    return {"kind": kind, "seed": seed, **whole.summary(), "seconds": seconds, "jobs": jobs}


def merge(path: Path, run: dict[str, Any]) -> None:
    """Put a run into a file of runs of the same code; those of other code are left out."""
    code = code_hash("tables")
    content = json.loads(path.read_text(encoding="utf8")) if path.exists() else {}
    runs = content["runs"] if content.get("code") == code else []
    runs = [old for old in runs if (old["kind"], old["seed"]) != (run["kind"], run["seed"])]
    runs = sorted([*runs, run], key=lambda run: (list(KINDS).index(run["kind"]), run["seed"]))
    record = {"command": COMMAND, "code": code, "runs": runs}
    text = json.dumps(record, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    for kind in KINDS:
        parser.add_argument(
            f"--{kind.replace('_', '-')}", type=int, default=0, help="number of cases"
        )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    failed = 0
    for kind in KINDS:
        if not getattr(options, kind):
            continue
        run = run_cases(kind, options.seed, getattr(options, kind), options.jobs)
        failed += len(run["failures"])
        print(kind, json.dumps({**run, "failures": len(run["failures"])}), flush=True)
        for number, text in list(run["failures"].items())[:10]:
            print(f"--- {kind}, case {number}\n{text}", flush=True)
        if options.out:
            merge(options.out, run)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
