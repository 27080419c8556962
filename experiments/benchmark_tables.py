"""Tables of the documentation on post-processing, audits, speed and fuzzing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.committed import TITLES, exists, read
from fairmp.comparison import Record
from fairmp.report.formats import Table

FITS = (  # records of whole fits, and on what
    ("fit", "CPU"),
    ("fit-pokec-z-dense", "dense features, CPU"),
    ("fit-pokec-z", "CPU"),
    ("fit-pokec-n", "CPU"),
    ("fit-gpu", "H200"),
)
FITTED = {
    "MLP + plain propagation": "plain propagation",
    "MLP + FMP": "FMP",
    "PyG MLP + APPNP, edge_index": "PyG APPNP",
    "PyG MLP + APPNP, sparse tensor": "PyG APPNP, sparse",
    "PyG GCN": "PyG GCN",
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
        rows.append([TITLES[graph], *cells])
    names = [*methods, "difference"]
    header = [f"{name} {figure}" for name in names for figure in ("accuracy", f"Δ{gap.upper()}")]
    return Table("", ["graph", *header], rows)


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


def scaling() -> Table:
    """Time and memory of an epoch by the number of edges."""
    rows = []
    for entry in read("scale")["training"]:
        seconds = entry["seconds_epoch"]
        rows.append(
            [
                f"{entry['directed_edges']:,}",
                f"{seconds:.{3 if seconds < 0.1 else 2}f} s",
                f"{entry['nanoseconds_an_edge']:.0f}",
                f"{entry['peak_bytes_an_edge_beside_features']:.0f}",
            ]
        )
    return Table("", ["directed edges", "epoch", "ns per edge", "bytes per edge"], rows)


def epochs() -> Table:
    """Milliseconds of one epoch on three machines, and ratios to PyG's MLP."""
    names = {"CPU": "epoch", "Pokec-n": "epoch-pokec-n", "H200": "epoch-gpu"}
    machines = {title: read(name)["milliseconds"] for title, name in names.items()}
    rows = []
    for network in machines["CPU"]:
        cells = []
        for milliseconds in machines.values():
            time = milliseconds[network]
            cells.append(f"{time:.{2 if time < 5 else 1}f}")
            cells.append(f"{time / milliseconds['PyG MLP']:.2f}")
        rows.append([network, *cells])
    header = [text for title in machines for text in (title, "× PyG MLP")]
    return Table("", ["network", *header], rows)


def fuzz() -> Table:
    """Cases of every fuzzer: how many were tried with which seeds, how they ended, what failed."""
    by_kind: dict[str, list[Record]] = {}
    for run in read("fuzz")["runs"]:
        by_kind.setdefault(run["kind"], []).append(run)
    rows = []
    for kind, runs in by_kind.items():
        ends: Counter[str] = Counter()
        for run in runs:
            for end, count in run["ends"].items():
                # A kill is of a command; a failure is counted in its own column.
                name = end.rpartition(", ")[2] if kind == "kills" else end.partition(":")[0]
                ends[name] += count
        for end in [end for end in ends if end.startswith("FAILED")]:
            del ends[end]
        rows.append(
            [
                f"`{kind}`",
                ", ".join(str(run["seed"]) for run in runs),
                f"{sum(run['tried'] for run in runs):,}",
                ", ".join(f"{end} {count:,}" for end, count in ends.most_common()),
                f"{sum(len(run['failures']) for run in runs):,}",
            ]
        )
    return Table("", ["fuzzer", "seeds", "cases", "ended", "failed"], rows)


def fits() -> Table:
    """Seconds of whole fits of an MLP, and multiples of them, for every graph that was measured."""
    rows = []
    for name, device in FITS:
        if not exists(name):
            continue
        for graph, times in read(name)["graphs"].items():
            ratios = times["times_the_mlp"]
            cells = [f"× {ratios[method]:.2f}" if method in ratios else "–" for method in FITTED]
            rows.append([f"{graph}, {device}", f"{min(times['seconds']['MLP']):.1f} s", *cells])
    return Table("", ["graph", "MLP", *FITTED.values()], rows)


def orders() -> Table:
    """Nanoseconds per edge of an epoch in two orders of the nodes."""
    rows = []
    for graph, times in read("locality")["graphs"].items():
        rows.append(
            [
                graph,
                f"{times['nanoseconds_per_edge_given']:.0f}",
                f"{times['nanoseconds_per_edge_locality']:.0f}",
                f"{times['given_over_locality']:.2f}",
            ]
        )
    return Table("", ["graph", "given", "locality", "given / locality"], rows)


def coverage() -> Table:
    """Coverage of intervals where communities are decided alike."""
    rows = []
    for case in read("intervals-communities")["cases"]:
        widths = [f"{100 * width:.1f}" for width in case["width"]]
        rows.append(
            [
                f"{case['count']} of {case['size']}" + (", unequal" if case["unequal"] else ""),
                f"{case['effect']:g}",
                f"{case['homophily']:g}",
                *(f"{case['coverage'][key]:.1%}" for key in ("nodes", "clusters")),
                " → ".join(widths),
            ]
        )
    header = ["communities", "effect", "homophily", "as independent nodes", "by cluster"]
    return Table("", [*header, "width, points"], rows)


def fair_layers() -> Table:
    """Forward and backward passes of the layer, and of another that holds a gap."""
    rows = []
    for entry in read("fair-layers")["table"]:
        times = entry["milliseconds"]
        cells = [f"{times[name]:,.1f} ms" for name in ("fairmp", "fairness-training")]
        rows.append([f"{entry['rows']:,}", *cells, f"{entry['ratio']:.0f}"])
    return Table("", ["rows", "FMP, one step", "fairness-training", "ratio"], rows)
