"""Tables of the documentation on training: the defaults, and baselines beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import t

from experiments.committed import FIGURES, TITLES, cell, exists, points, read
from fairmp.comparison import Record
from fairmp.metrics.pareto import hypervolume_over_splits
from fairmp.report.formats import Table, spread

NETWORKS = {
    **{name: name.upper() for name in ("mlp", "gcn", "gat", "sgc", "appnp")},
    **{f"residual-{name}": f"{name.upper()}, residual" for name in ("gcn", "gat", "sage")},
    **{name: name.upper() for name in ("link", "linkx")},
}
PENALTIES = ("regulariser", "adversary")
TREES = {"trees": "trees", "neighbourhood-trees": "trees, neighbourhood"}
CORRECTED = " + ThresholdOptimizer"
MAX_COST = 0.01  # of validation accuracy, of a penalty
STUDIED = {**TITLES, "bail-without-time": "Bail without TIME"}


def defaults() -> Table:
    """``FairClassifier()`` as it comes, on every graph."""
    rows = []
    for graph, summary in read("defaults-crossfit")["summary"].items():
        cells = [
            _with_half_width(summary[f"{mode} {figure}"])
            for mode in ("batch", "per_node")
            for figure in ("accuracy", "dp")
        ]
        rows.append([TITLES[graph], *cells, f"{100 * summary['one_node']:.2f}"])
    header = ["graph", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node", "ΔDP, per node"]
    return Table("", [*header, "one node"], rows)


def crossfit() -> Table:
    """What cross-fitting brings to the defaults, corrected and not, on the same splits."""
    folds, one_fold = (read(f"defaults-{name}") for name in ("crossfit", "one-fold"))
    rows = []
    for graph in folds["summary"]:
        cells = []
        for part in ("batch", "uncorrected"):
            after, before = (_accuracies(records, graph, part) for records in (folds, one_fold))
            half = _half_width(after - before)
            difference = f"{100 * float((after - before).mean()):+.2f} ± {100 * half:.2f}"
            cells += [f"{100 * float(before.mean()):.1f}", difference]
        gaps = [
            f"{100 * record['summary'][graph]['per_node dp']['mean']:.1f}"
            for record in (one_fold, folds)
        ]
        rows.append([TITLES[graph], *cells, *gaps])
    header = ["graph", "accuracy %, one fold", "cross-fitted", "uncorrected, one fold"]
    header += ["cross-fitted", "ΔDP per node, one fold", "cross-fitted"]
    return Table("", header, rows)


def _accuracies(content: Record, graph: str, part: str) -> np.ndarray:
    """Accuracy on each split, in batch or without a correction (target 1)."""
    records = [record for record in content["records"] if record["data"] == graph]
    records.sort(key=lambda record: record["split"])
    figures = [r["batch"] if part == "batch" else r["targets"]["1.0"] for r in records]
    return np.array([figure["accuracy"] for figure in figures])


def _half_width(differences: np.ndarray) -> float:
    """Half the 95 % interval of a mean (Student's t)."""
    count = len(differences)
    return float(t.ppf(0.975, count - 1) * differences.std(ddof=1) / count**0.5)


def _with_half_width(summary: Record) -> str:
    return points(summary["mean"], summary["interval"][1] - summary["mean"])


def tuned(graph: str) -> dict[str, list[Record]]:
    """Records of the tuned baselines on one graph, by method, with its strength if it has one."""
    by_method: dict[str, list[Record]] = {}
    for record in read("baselines")["records"]:
        if record["data"] != graph:
            continue
        name = (NETWORKS | TREES)[record["method"]]
        if "strategy" in record:
            name += f" + {record['strategy']} {record['strength']:g}"
        by_method.setdefault(name, []).append(record)
        if "fair" in record:
            corrected = {**record, "test": record["fair"]}
            by_method.setdefault(name + CORRECTED, []).append(corrected)
    return by_method


def _recorded(titles: dict[str, str], methods: dict[str, list[Record]]) -> list[str]:
    """Titles of the methods that were run."""
    return [title for title in titles.values() if title in methods]


def ours(graph: str) -> list[Record]:
    """Records of ``FairClassifier()`` on one graph."""
    return [record for record in read("defaults")["records"] if record["data"] == graph]


def best_gnn(graph: str) -> str:
    """The graph network of the highest validation accuracy."""
    methods = tuned(graph)
    names = [name for name in _recorded(NETWORKS, methods) if name != "MLP"]
    return max(names, key=lambda name: _mean(methods[name], "val", "accuracy"))


def _mean(records: Sequence[Record], part: str, figure: str) -> float:
    return sum(float(record[part][figure]) for record in records) / len(records)


def _penalised(methods: dict[str, list[Record]], strategy: str) -> list[str]:
    """Methods with a penalty at any strength."""
    return [name for name in methods if strategy in name]


def _without_penalty(name: str) -> str:
    return name.split(" + ")[0]


def baselines() -> Table:
    """Accuracy and ΔDP of the defaults and of tuned baselines, one column per graph."""
    rows: dict[str, list[str]] = {}
    for graph in TITLES:
        for name, text in _baseline_cells(graph):
            rows.setdefault(name, []).append(text)
    table = [[name, *cells] for name, cells in rows.items()]
    return Table("", ["accuracy % / ΔDP", *TITLES.values()], table)


def _baseline_cells(graph: str) -> Iterator[tuple[str, str]]:
    methods = tuned(graph)
    yield "FMP, defaults", _accuracy_and_gap(ours(graph), "batch")
    yield "FMP, defaults, per node", _accuracy_and_gap(ours(graph), "per_node")
    trees = [name + part for name in _recorded(TREES, methods) for part in ("", CORRECTED)]
    for name in (*_recorded(NETWORKS, methods), *trees):
        yield name, _accuracy_and_gap(methods[name])
    for strategy in PENALTIES:
        names = _penalised(methods, strategy)
        plain = methods[_without_penalty(names[0])]
        floor = _mean(plain, "val", "accuracy") - MAX_COST
        near = [name for name in names if _mean(methods[name], "val", "accuracy") >= floor]
        best = min(near or names, key=lambda name: _mean(methods[name], "val", "dp"))
        yield f"best + {strategy}", _accuracy_and_gap(methods[best])


def _accuracy_and_gap(records: Sequence[Record], part: str = "test") -> str:
    accuracy = cell(spread([record[part]["accuracy"] for record in records]))
    dp = _mean(records, part, "dp")
    return f"{accuracy} / {100 * dp:.{2 if dp < 0.01 else 1}f}"


def bounds() -> Table:
    """What a fair model could reach on each graph, and what the defaults reach."""
    rows = []
    for graph, title in TITLES.items():
        methods, fair, gnn = tuned(graph), ours(graph), best_gnn(graph)
        limit = sum(record["base_rate_bound"] for record in fair) / len(fair)
        unfair = {
            name: _mean(methods[name], "test", "accuracy")
            for name in _recorded(NETWORKS | TREES, methods)
        }
        uncorrected = [record["targets"]["1.0"]["accuracy"] for record in fair]
        unfair["FMP, uncorrected"] = sum(uncorrected) / len(fair)
        best = max(unfair, key=unfair.__getitem__)
        gnn_accuracy = {record["split"]: record["test"]["accuracy"] for record in methods[gnn]}
        gains = [record["batch"]["accuracy"] - gnn_accuracy[record["split"]] for record in fair]
        rows.append(
            [
                title,
                f"{100 * limit:.1f}",
                f"{100 * unfair[best]:.1f} ({best})",
                f"{100 * min(limit, unfair[best]):.1f}",
                cell(spread([record["batch"]["accuracy"] for record in fair])),
                f"{100 * unfair[gnn]:.1f} ({gnn})",
                cell(spread(gains)),
            ]
        )
    header = ["graph", "base rates allow", "best unfair model", "bound", "FMP, defaults"]
    return Table("", [*header, "best unfair GNN", "FMP less that"], rows)


def tradeoffs() -> Table:
    """Hypervolume of accuracy against ΔDP: the defaults over targets, and the tuned baselines."""
    rows: dict[str, list[str]] = {}
    for graph in TITLES:
        for name, curve in _curves(graph).items():
            rows.setdefault(name, []).append(cell(hypervolume_over_splits(curve)))
    table = [[name, *cells] for name, cells in rows.items()]
    return Table("", ["hypervolume, %", *TITLES.values()], table)


def _curves(graph: str) -> dict[str, list[Record]]:
    """Points of each method's trade-off curve on a graph, as records of a comparison."""
    fair, methods = ours(graph), tuned(graph)
    majority = {record["split"]: record["majority"] for record in fair}

    def point(split: int, strength: float, test: Record) -> Record:
        return {
            "split": split,
            "strength": strength,
            "majority": majority[split],
            "run": {"test": test},
        }

    def at(strength: float, name: str) -> list[Record]:
        return [point(record["split"], strength, record["test"]) for record in methods[name]]

    curves = {"FMP, defaults": [point(record["split"], 0.0, record["batch"]) for record in fair]}
    for record in fair:
        for target, test in record["targets"].items():
            curves["FMP, defaults"].append(point(record["split"], float(target), test))
    for name in _recorded(NETWORKS, methods):
        curves[name] = at(0.0, name)
    for strategy in PENALTIES:
        names = _penalised(methods, strategy)
        curve = at(0.0, _without_penalty(names[0]))
        for name in names:
            curve += at(methods[name][0]["strength"], name)
        curves[f"best + {strategy}"] = curve
    for name in _recorded(TREES, methods):
        curves[name + CORRECTED] = [*at(0.0, name), *at(1.0, name + CORRECTED)]
    return curves


def studies() -> Table:
    """The defaults where few groups are known, and where labels are wrong."""
    if not exists("studies"):
        return Table("", ["no records"], [])
    rows = []
    for graph, conditions in read("studies")["summary"].items():
        for condition, summary in conditions.items():
            cells = [
                _with_half_width(summary[f"{mode} {figure}"])
                for mode in ("batch", "per_node")
                for figure in ("accuracy", "dp")
            ]
            cells.append(f"{100 * summary['uncorrected dp']['mean']:.1f}")
            cells.append(f"{100 * summary['right_groups']:.1f}")
            rows.append([STUDIED[graph], condition, *cells])
    header = ["graph", "training saw", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node"]
    return Table("", [*header, "ΔDP, per node", "ΔDP, uncorrected", "test groups right %"], rows)


def balanced(name: str = "balanced") -> Table:
    """FMP beside fairlearn with class-balanced training nodes."""
    rows = []
    for entry in read(name)["table"]:
        cells = [points(mean, high - mean) for mean, _, high in (entry["accuracy"], entry["dp"])]
        graph = entry.get("data", "credit").partition("+")[0]
        rows.append([TITLES[graph], entry["method"], *cells])
    return Table("", ["graph", "method", "accuracy %", "ΔDP"], rows)


def facebook() -> Table:
    """Gender at Cornell, with two and with five groups of class years."""
    by_method: dict[tuple[str, str], list[Record]] = {}
    for record in read("facebook")["rows"]:
        by_method.setdefault((record["groups"], record["method"]), []).append(record)
    rows = [
        [*key, *(cell(spread([record[figure] for record in records])) for figure in FIGURES)]
        for key, records in by_method.items()
    ]
    return Table("", ["groups", "method", *FIGURES.values()], rows)
