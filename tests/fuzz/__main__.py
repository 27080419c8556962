"""Long runs: ``python -m tests.fuzz --seed 7 --tables 20000 --jobs 2 --out fuzz.json``."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz import KINDS
from tests.fuzz.harness import Outcome, portion

PORTION = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, help="number of cases")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {}
    failed = 0
    for kind in KINDS:
        count = getattr(given, kind)
        if not count:
            continue
        start = time.perf_counter()
        whole = Outcome(kind, given.seed)
        jobs = [
            (kind, given.seed, range(k, min(k + PORTION, count))) for k in range(0, count, PORTION)
        ]
        with get_context("forkserver").Pool(given.jobs, maxtasksperchild=20) as pool:
            for part in pool.imap(portion, jobs):
                whole.ends += Counter(part.ends)
                whole.failures |= part.failures
        seconds = time.perf_counter() - start
        found[kind] = {**whole.summary(), "seconds": round(seconds)}
        failed += len(whole.failures)
        print(kind, json.dumps({**found[kind], "failures": len(whole.failures)}), flush=True)
        for number, text in list(whole.failures.items())[:10]:
            print(f"--- {kind}, case {number}\n{text}", flush=True)
        if given.out:
            given.out.write_text(json.dumps({"seed": given.seed, **found}, indent=1) + "\n")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
