"""What a correction knows: the two tracks of results, which are never mixed, and their floor.

*Batch*: the groups of the nodes that are predicted together are used, and their gap is a fact about
these nodes. *Per node*: each node is decided alone, and the gap carries sampling error, so that it
is shown beside its sampling floor. Without a correction there is no track.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairmp.comparison import Record
from fairmp.comparison.grid import PENALTIES
from fairmp.metrics.intervals import sampling_floor

NO_CORRECTION, PER_NODE, BATCH = "none", "per node", "batch"
TRACKS = {
    "thresholds-batch": BATCH,
    **dict.fromkeys((*PENALTIES, "thresholds-val", "per-node"), PER_NODE),
}


def track_of(run: Record) -> str:
    """The track of a comparison's run.

    Example:
        >>> test = {"mode": None}
        >>> spec = {"backbone": "gcn", "strategy": "regulariser"}
        >>> track_of({"family": "GCN + regulariser", "spec": spec, "run": {"test": test}})
        'per node'
    """
    if run["run"]["test"].get("mode") == "batch":
        return BATCH
    strategy = run["spec"]["strategy"]
    if strategy == "vanilla":
        # FairGNN and NIFTY are trained to be fair, and decide each node alone.
        is_rival = ":" in run["spec"]["backbone"] and not run["family"].endswith("Backbone")
        return PER_NODE if is_rival else NO_CORRECTION
    return TRACKS[strategy]


def floor_of(tests: Sequence[Record]) -> float:
    """Mean sampling floor of evaluations, from the sizes of their groups and the overall rate."""
    floors = []
    for test in tests:
        counts = [group["count"] for group in test["groups"]]
        rate = np.mean([group["positive_rate"] for group in test["groups"]])
        floors.append(sampling_floor(counts, float(rate)))
    return float(np.mean(floors))


def gap_header(floor: float) -> str:
    """Header of a column of gaps with their floor.

    Example:
        >>> gap_header(0.022)
        'ΔDP (floor 2.2)'
    """
    return f"ΔDP (floor {100 * floor:.1f})"
