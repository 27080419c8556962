"""Tables of the documentation on post-processing, audits, intervals and fuzzing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from experiments import unknown
from experiments.committed import TITLES, cell, read, runs
from experiments.training_tables import floor_on
from fairmp.comparison import Record
from fairmp.report.formats import Table

COVERED = {
    "nodes": "independent nodes",
    "clusters": "true communities",
    "found, 0.2": "found, 20 % mixing",
    "found, 0.4": "found, 40 % mixing",
}
AUDITED = {
    "features": "features",
    "one step": "after one step",
    "predicted": "predicted",
    "five steps": "after five",
    "random features": "random features after five",
}


def decisions() -> Table:
    """Gaps of decisions with target 0: the largest over the splits."""
    methods = ("FMP", "trees", "trees, two digits")
    by_graph: dict[str, dict[str, Record]] = {}
    for entry in read("decisions")["table"]:
        if entry["target"] == 0:
            by_graph.setdefault(entry["graph"], {})[entry["method"]] = entry
    rows = []
    for graph, entries in by_graph.items():
        cells = []
        for method in methods:
            cells.append(_interval(entries[method]["accuracy"]))
            cells.append(f"{100 * entries[method]['largest_dp']:.2f}")
        drawn = f"{entries['trees, two digits']['drawn']:.0f}"
        rows.append([TITLES[graph], *cells, drawn])
    header = [f"{name}: {figure}" for name in methods for figure in ("accuracy", "largest ΔDP")]
    return Table("", ["graph", *header, "drawn"], rows)


def new_nodes(criterion: str) -> Table:
    """Our correction beside fairlearn's, found on validation nodes and applied to test nodes."""
    gap, constraint = {
        "equal_opportunity": ("eo", "true_positive_rate_parity"),
        "demographic_parity": ("dp", "demographic_parity"),
    }[criterion]
    methods = {
        "plain": "as predicted",
        "Debiaser": f"Debiaser, {criterion}, decisions",
        "fairlearn": f"ThresholdOptimizer, {constraint}",
    }
    has_floor = gap == "dp"  # that of the true positive rate has no record
    record = read("odds")
    entries = {(entry["graph"], entry["method"]): entry for entry in record["table"]}
    rows = []
    for difference in record["differences"]:
        if difference["criterion"] != criterion:
            continue
        graph = difference["graph"]
        cells = [
            _interval(entries[graph, method][figure])
            for method in methods.values()
            for figure in ("accuracy", gap)
        ]
        cells += [_interval(difference[figure], sign="+") for figure in ("accuracy", gap)]
        rows.append([TITLES[graph], *cells, *([floor_on(graph)] if has_floor else [])])
    names = [*methods, "difference"]
    header = [f"{name} {figure}" for name in names for figure in ("accuracy", f"Δ{gap.upper()}")]
    return Table("", ["graph", *header, *(["floor"] if has_floor else [])], rows)


def _interval(interval: Sequence[float], sign: str = "") -> str:
    """A mean and half of its interval, in points with one digit."""
    mean, _, high = interval
    return f"{100 * mean:{sign}.1f} ± {100 * (high - mean):.1f}"


def audits() -> Table:
    """Group predictability before and after averaging, on every graph."""
    graphs = read("audit")["graphs"]
    columns = {
        key: title
        for key, title in AUDITED.items()
        if all(key in figures for figures in graphs.values())
    }
    rows = []
    for name, figures in graphs.items():
        cells = [f"{100 * figures['homophily']:.1f}", f"{figures['adjusted']:.2f}"]
        for key in columns:
            cells.append("–" if figures[key] is None else f"{100 * figures[key]:.1f}")
        rows.append([name, *cells])
    return Table("", ["graph", "ε %", "adjusted", *columns.values()], rows)


def fuzz() -> Table:
    """Cases of every fuzzer: how many were tried with which seeds, how they ended, what failed."""
    by_kind: dict[str, list[Record]] = {}
    for run in read("fuzz")["runs"]:
        by_kind.setdefault(run["kind"], []).append(run)
    rows = []
    for kind, fuzzed in by_kind.items():
        ends: Counter[str] = Counter()
        for run in fuzzed:
            for end, count in run["ends"].items():
                # A kill is of a command; a failure is counted in its own column.
                name = end.rpartition(", ")[2] if kind == "kills" else end.partition(":")[0]
                ends[name] += count
        for end in [end for end in ends if end.startswith("FAILED")]:
            del ends[end]
        rows.append(
            [
                f"`{kind}`",
                ", ".join(str(run["seed"]) for run in fuzzed),
                f"{sum(run['tried'] for run in fuzzed):,}",
                ", ".join(f"{end} {count:,}" for end, count in ends.most_common()),
                f"{sum(len(run['failures']) for run in fuzzed):,}",
            ]
        )
    return Table("", ["fuzzer", "seeds", "cases", "ended", "failed"], rows)


def coverage() -> Table:
    """Coverage of intervals where communities are decided alike."""
    rows = []
    for case in read("intervals-communities")["cases"]:
        rows.append(
            [
                f"{case['count']} of {case['size']}" + (", unequal" if case["unequal"] else ""),
                f"{case['effect']:g}",
                f"{case['homophily']:g}",
                *(f"{case['coverage'][key]:.1%}" for key in COVERED),
                " / ".join(f"{100 * case['width'][key]:.1f}" for key in COVERED),
            ]
        )
    header = ["communities", "effect", "homophily", *COVERED.values(), "widths, points"]
    return Table("", header, rows)


def mini_batches() -> Table:
    """Networks trained on batches, corrected once or batch by batch."""
    rows = []
    for entry in read("mini-batches")["table"]:
        trained, is_whole = entry["trained"], entry["corrected"] == 1
        accuracy, dp = (
            f"{100 * mean:.{digits}f} ± {100 * (high - mean):.{digits}f}"
            for (mean, _, high), digits in ((entry["accuracy"], 1), (entry["dp"], 2))
        )
        batches = "all nodes" if trained == 1 else f"{trained} batches"
        rows.append([batches, "once" if is_whole else "batch by batch", accuracy, dp])
    return Table("", ["trained on", "corrected", "accuracy %", "ΔDP"], rows)


def unknown_groups(*shares: str) -> Table:
    """The true gap where so many per cent of the groups are known, others left or estimated."""
    by_graph: dict[str, list[Record]] = {}
    for record in runs("unknown"):
        by_graph.setdefault(record["dataset"], []).append(record)
    means = {graph: unknown.intervals(records) for graph, records in by_graph.items()}
    rows = []
    for share in shares:
        row = [f"{share} %"]
        for intervals in means.values():
            left, estimated = (
                intervals[treatment, float(share) / 100]
                for treatment in (unknown.UNCHANGED, unknown.ESTIMATED)
            )
            right = estimated["right"]
            known = "–" if math.isnan(right.mean) else f"{100 * right.mean:.1f}"
            row += [cell(left["dp"]), cell(estimated["dp"]), known]
        rows.append(row)
    columns = ["left alone", "estimated", "right %"]
    return Table(
        "", ["known", *(f"{graph}: {column}" for graph in means for column in columns)], rows
    )
