"""Coverage of the intervals for gaps, in simulated cases whose truth is known.

Run ``python -m benchmarks.intervals``; it writes ``benchmarks/results/intervals.json``. With
``--communities`` nodes are correlated within communities, and intervals of independent nodes are
compared with those of the true communities and of the clusters that ``graph_clusters`` finds in
edges drawn between the nodes (``intervals-communities.json``).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import provenance
from fairmp.metrics import evaluate, graph_clusters

SIZES = (20, 60, 200, 1000, 5000)  # nodes of all groups together
GROUPS = (2, 5)
GAPS = (0.0, 0.05, 0.15, 0.3)
BASE_RATES = (0.1, 0.3, 0.5, 0.65, 0.7)  # 5 × 2 × 4 × 5 = 200 cases
METRICS = ("dp", "eo", "odds")


def simulate(
    n: int, groups: int, gap: float, base: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decisions, labels and groups; every rate rises evenly by ``gap`` over the groups."""
    sens = np.r_[np.repeat(np.arange(groups), 2), rng.integers(0, groups, n - 2 * groups)]
    y = np.r_[np.tile([0, 1], groups), rng.integers(0, 2, n - 2 * groups)]
    rate = base + gap * sens / (groups - 1)
    return (rng.random(n) < rate).astype(int), y, sens


@dataclass(frozen=True)
class Communities:
    """Communities whose members are decided alike, and belong to one group more often."""

    count: int
    size: int  # on average
    unequal: float  # variance of their sizes, relative to the mean's square
    effect: float  # by how much a community's rate differs from the mean, at most
    homophily: float  # share of the group that prevails in a community

    def draw(
        self, gap: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Communities, groups and decisions."""
        mean = np.full(self.count, float(self.size))
        if self.unequal:
            mean = self.size * rng.gamma(1 / self.unequal, self.unequal, self.count)
        cluster = np.repeat(np.arange(self.count), np.maximum(rng.poisson(mean), 1))
        prevails = rng.random(self.count) < 0.5
        share = np.where(prevails, self.homophily, 1 - self.homophily)
        sens = (rng.random(len(cluster)) < share[cluster]).astype(int)
        rate = 0.4 + rng.uniform(-self.effect, self.effect, self.count)[cluster] + gap * sens
        return cluster, sens, (rng.random(len(cluster)) < rate).astype(int)


def draw_edges(cluster: np.ndarray, mixing: float, rng: np.random.Generator) -> np.ndarray:
    """Draw edges (2×E) of sorted communities, a share ``mixing`` of them to any other node.

    The other edges stay within the community. Small communities have fewer, since an edge that is
    drawn twice counts once.
    """
    n = len(cluster)
    source = np.repeat(np.arange(n), rng.poisson(DEGREE / 2, n))
    sizes = np.bincount(cluster)
    starts = np.cumsum(sizes) - sizes
    own = cluster[source]
    inside = starts[own] + (rng.random(len(source)) * sizes[own]).astype(int)
    anywhere = rng.integers(0, n, len(source))
    target = np.where(rng.random(len(source)) < mixing, anywhere, inside)
    return np.stack([source, target])


COMMUNITIES = (
    Communities(40, 25, 0.0, 0.3, 0.9),
    Communities(40, 25, 1.0, 0.3, 0.9),
    Communities(100, 20, 0.5, 0.3, 0.95),
    Communities(20, 50, 0.5, 0.2, 0.9),
    Communities(200, 5, 0.0, 0.3, 0.8),
    Communities(40, 25, 0.0, 0.3, 0.5),
    Communities(100, 10, 0.0, 0.0, 0.8),
)
GAP = 0.1
DEGREE = 10  # of the nodes, on average
MIXING = (0.2, 0.4)  # shares of edges that lead to any node


def community_coverage(repeats: int) -> list[dict[str, object]]:
    """Coverage and width with and without clusters, for each kind of communities."""
    cases = []
    for setting in COMMUNITIES:
        covered: dict[str, list[bool]] = {}
        widths: dict[str, list[float]] = {}
        for repeat in range(repeats):
            rng = np.random.default_rng(repeat)
            cluster, sens, decisions = setting.draw(GAP, rng)
            clusters = {"nodes": None, "clusters": cluster}
            for mixing in MIXING:
                edges = draw_edges(cluster, mixing, rng)
                clusters[f"found, {mixing:g}"] = graph_clusters(edges, len(cluster))
            for name, codes in clusters.items():
                evaluation = evaluate(
                    None, decisions, sensitive_features=sens, clusters=codes, bootstrap=1
                )
                low, high = evaluation.intervals["dp"]
                covered.setdefault(name, []).append(low <= GAP <= high)
                widths.setdefault(name, []).append(high - low)
        case = {
            **asdict(setting),
            "coverage": {name: float(np.mean(values)) for name, values in covered.items()},
            "width": {name: float(np.mean(values)) for name, values in widths.items()},
        }
        cases.append(case)
        print(case, flush=True)
    return cases


def main() -> None:
    """Simulate every case and write how often the truth is covered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--communities", action="store_true", help="correlated nodes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.communities:
        record = {
            **provenance("metrics"),
            "repeats": arguments.repeats,
            "nominal": 0.95,
            "cases": community_coverage(arguments.repeats),
        }
        path = arguments.out / "intervals-communities.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return
    cases = []
    for k, (n, groups, gap, base) in enumerate(product(SIZES, GROUPS, GAPS, BASE_RATES)):
        rng = np.random.default_rng(k)
        covered, contained, width = dict.fromkeys(METRICS, 0), dict.fromkeys(METRICS, 0), 0.0
        for _ in range(arguments.repeats):
            pred, y, sens = simulate(n, groups, gap, base, rng)
            evaluation = evaluate(y, np.eye(2)[pred], sensitive_features=sens, bootstrap=1)
            for key in METRICS:
                low, high = evaluation.intervals[key]
                covered[key] += low <= gap <= high
                contained[key] += low <= getattr(evaluation, key) <= high
            width += evaluation.intervals["dp"][1] - evaluation.intervals["dp"][0]
        cases.append(
            {
                "nodes": n,
                "groups": groups,
                "gap": gap,
                "base_rate": base,
                "coverage": {key: covered[key] / arguments.repeats for key in METRICS},
                "contains_estimate": {key: contained[key] / arguments.repeats for key in METRICS},
                "dp_width": width / arguments.repeats,
            }
        )
    coverage = [case["coverage"][key] for case in cases for key in METRICS]  # type: ignore[index]
    contains = [case["contains_estimate"][key] for case in cases for key in METRICS]  # type: ignore[index]
    summary = {
        "cases": len(cases),
        "repeats": arguments.repeats,
        "nominal": 0.95,
        "smallest_coverage": min(coverage),
        "mean_coverage": float(np.mean(coverage)),
        "smallest_share_that_contains_its_estimate": min(contains),
    }
    text = (
        json.dumps({**provenance("metrics"), "summary": summary, "cases": cases}, indent=1) + "\n"
    )
    (arguments.out / "intervals.json").write_text(text, encoding="utf-8")
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
