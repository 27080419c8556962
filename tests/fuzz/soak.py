"""Memory and results over many calls: ``python -m tests.fuzz.soak --fits 1000 --calls 100000``."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from experiments.provenance import code_hash
from fairmp import FMP, FairClassifier, debias
from fairmp.datasets import social_network

ROOM_MB = 50  # that memory may grow after the first tenth of the calls


def memory_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def repeated(call: Callable[[], object], count: int) -> Iterator[tuple[int, float]]:
    """Do some work many times; the memory after each twentieth part of it."""
    for k in range(count):
        call()
        if (k + 1) % max(count // 20, 1) == 0:
            gc.collect()
            yield k + 1, memory_mb()


def watch(name: str, call: Callable[[], object], count: int) -> dict[str, object]:
    """Repeat work, and refuse memory that grows."""
    start, seen = time.perf_counter(), []
    for done, size in repeated(call, count):
        seen.append(round(size, 1))
        print(f"{name}: {done} of {count}, {size:.0f} MB", file=sys.stderr, flush=True)
    growth = seen[-1] - seen[min(2, len(seen) - 1)]
    assert growth < ROOM_MB, f"{name}: memory grew by {growth:.0f} MB: {seen}"
    seconds = round(time.perf_counter() - start)
    return {"calls": count, "seconds": seconds, "first_mb": seen[0], "last_mb": seen[-1]}


def fits(count: int) -> dict[str, object]:
    """Fits of one model on one graph end with the same weights every time."""
    data = social_network(200, average_degree=6)
    weights: list[torch.Tensor] = []

    def fit() -> None:
        model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=3, hidden=8)
        model.fit(data, bootstrap=0, progress=False)
        flat = torch.cat([p.detach().flatten() for p in model.network_.parameters()])
        weights[:] = weights or [flat]
        assert torch.equal(flat, weights[0])

    return watch("fit", fit, count)


def corrections(count: int) -> dict[str, object]:
    """Corrections of one table are the same every time."""
    rng = np.random.default_rng(0)
    logits, sens = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    first = debias(logits, sens, target=0.02)

    def correct() -> None:
        assert np.array_equal(debias(logits, sens, target=0.02), first)

    return watch("debias", correct, count)


def predictions(count: int, threads: int = 8) -> dict[str, object]:
    """Threads that share a model predict what one of them does."""
    data = social_network(200, average_degree=6)
    model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=3, hidden=8)
    model.fit(data, bootstrap=0, progress=False)
    expected = model.predict_proba(data)

    def predict(_: int) -> None:
        assert torch.equal(model.predict_proba(data), expected)

    def together() -> None:
        list(pool.map(predict, range(threads)))

    with ThreadPoolExecutor(threads) as pool:
        return {"threads": threads, **watch("predict", together, count)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {
        "command": shlex.join(["python", "-m", "tests.fuzz.soak", *sys.argv[1:]]),
        "code": code_hash("models"),
        "fit": fits(options.fits),
        "debias": corrections(options.calls),
        "predict": predictions(max(options.calls // 100, 1)),
    }
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
