"""Facebook friendships at Cornell: gender predicted, class years as two and as five groups.

    python -m benchmarks.facebook

The same MLP, by itself, with plain propagation and with FMP, on ten splits with the default
settings; figures are of decisions on the test nodes. Writes ``benchmarks/results/facebook.json``.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks import provenance
from benchmarks.tree_scores import write
from experiments.grids import PAPERS_LAMBDA_F
from fairmp import FMP, PPR, FairClassifier
from fairmp.datasets import Facebook100
from fairmp.datasets.splits import with_split

GROUPS = {"year>=2007": "from 2007 on or before", "year": "five class years"}
METHODS = {
    "MLP": None,
    "MLP + plain propagation": PPR(lambda_s="learned"),
    "MLP + FMP (paper)": FMP(lambda_s="learned", solver="paper", lambda_f=PAPERS_LAMBDA_F),
    "MLP + FMP, target 0.02": FMP(lambda_s="learned", target=0.02),
    "MLP + FMP, target 0": FMP(lambda_s="learned"),
}


def main() -> None:
    """Fit every method on every split, print the figures, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/facebook.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for sensitive, groups in GROUPS.items():
        graph = Facebook100(os.environ.get("FAIRMP_DATA"), sensitive=sensitive)[0]
        for split in range(options.splits):
            data = with_split(graph, seed=split)
            for method, propagation in METHODS.items():
                start = time.perf_counter()
                model = FairClassifier(propagation, backbone="mlp")
                model.fit(data, seed=split, bootstrap=0, progress=False)
                test = model.run_.test
                figures = {name: getattr(test, name) for name in ("accuracy", "dp", "eo")}
                rows.append({"groups": groups, "split": split, "method": method, **figures})
                print(*rows[-1].values(), f"{time.perf_counter() - start:.1f} s", flush=True)
    write(options.out, {**provenance("models")}, rows)


if __name__ == "__main__":
    main()
