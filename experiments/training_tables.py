"""Tables of the documentation on training: the defaults, and baselines beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import t

from experiments.attribution_tables import (
    BLEND,
    DEFAULT,
    DEFAULT_ALONE,
    ONE_FOLD,
    ROWS,
    floor,
    targets,
    values,
)
from experiments.committed import FIGURES, TITLES, cell, exists, points, read
from experiments.tracks import BATCH, NO_CORRECTION, PER_NODE
from fairmp.comparison import Record
from fairmp.metrics.pareto import hypervolume_over_splits
from fairmp.report.formats import Table, spread

NETWORKS = {
    **{name: name.upper() for name in ("mlp", "gcn", "appnp")},
    **{f"residual-{name}": f"{name.upper()}, residual" for name in ("gcn", "gat", "sage")},
    **{name: name.upper() for name in ("link", "linkx")},
}
OURS = "FMP, defaults"
LAYER = ("plain propagation", "MLP + FMP", "MLP + FMP (paper)", "MLP + FMP (released)")
PENALTIES = ("regulariser", "adversary")
TREES = {"trees": "trees", "neighbourhood-trees": "trees, neighbourhood"}
CORRECTED = " + ThresholdOptimizer"
MAX_COST = 0.01  # of validation accuracy, of a penalty
STUDIED = {**TITLES, "bail-without-time": "Bail without TIME"}


def ours(graph: str) -> list[Record]:
    """Records of ``FairClassifier()`` on one graph, one per split."""
    records = [record for record in read("attribution")["records"] if record["data"] == graph]
    return sorted(records, key=lambda record: record["split"])


def floor_on(graph: str) -> str:
    """The sampling floor of the test nodes of a graph's splits, in points."""
    return f"{100 * floor(ours(graph)):.1f}"


def defaults() -> Table:
    """``FairClassifier()`` as it comes, on every graph."""
    rows = []
    for graph, title in TITLES.items():
        records = ours(graph)
        cells = [
            _with_half_width(values(records, row, figure))
            for row in (DEFAULT, DEFAULT_ALONE)
            for figure in ("accuracy", "dp")
        ]
        one_node, seconds = (
            float(np.mean([record[key] for record in records]))
            for key in ("one_node", "processor_seconds")
        )
        rows.append([title, *cells, floor_on(graph), f"{100 * one_node:.2f}", f"{seconds:.0f}"])
    header = ["graph", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node", "ΔDP, per node"]
    return Table("", [*header, "floor", "one node", "seconds"], rows)


def crossfit() -> Table:
    """What cross-fitting brings to the defaults, corrected and not, on the same splits."""
    uncorrected, batch, per_node = ONE_FOLD
    rows = []
    for graph, title in TITLES.items():
        records, cells = ours(graph), []
        for one_fold, cross_fitted in ((batch, DEFAULT), (uncorrected, BLEND)):
            before = np.array(values(records, one_fold, "accuracy"))
            gains = np.array(values(records, cross_fitted, "accuracy")) - before
            gain = f"{100 * float(gains.mean()):+.2f} ± {100 * _half_width(gains):.2f}"
            cells += [f"{100 * float(before.mean()):.1f}", gain]
        gaps = [
            f"{100 * float(np.mean(values(records, row, 'dp'))):.1f}"
            for row in (per_node, DEFAULT_ALONE)
        ]
        rows.append([title, *cells, *gaps, floor_on(graph)])
    header = ["graph", "accuracy %, one fold", "cross-fitted", "uncorrected, one fold"]
    header += ["cross-fitted", "ΔDP per node, one fold", "cross-fitted", "floor"]
    return Table("", header, rows)


def _half_width(differences: np.ndarray) -> float:
    """Half the 95 % interval of a mean (Student's t)."""
    count = len(differences)
    return float(t.ppf(0.975, count - 1) * differences.std(ddof=1) / count**0.5)


def _with_half_width(shares: Sequence[float]) -> str:
    return points(float(np.mean(shares)), _half_width(np.array(shares)))


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


def compared() -> list[str]:
    """Graphs on which the baselines were tuned and run."""
    recorded = {record["data"] for record in read("baselines")["records"]}
    return [graph for graph in TITLES if graph in recorded]


def _recorded(titles: dict[str, str], methods: dict[str, list[Record]]) -> list[str]:
    """Titles of the methods that were run."""
    return [title for title in titles.values() if title in methods]


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
    for graph in compared():
        for name, text in _baseline_cells(graph):
            rows.setdefault(name, []).append(text)
    return _one_column_per_graph("accuracy % / ΔDP", rows)


def _one_column_per_graph(figure: str, rows: dict[str, list[str]]) -> Table:
    header = [figure, "track", *(TITLES[graph] for graph in compared())]
    return Table("", header, [[name, _track(name), *cells] for name, cells in rows.items()])


def _track(name: str) -> str:
    """The track of a row beside the baselines."""
    if name in LAYER:
        return ROWS[name]
    if name == OURS:
        return BATCH
    is_plain = name in (NETWORKS | TREES).values()
    return NO_CORRECTION if is_plain else PER_NODE


def _baseline_cells(graph: str) -> Iterator[tuple[str, str]]:
    methods = tuned(graph)
    for title, row in ((OURS, DEFAULT), (f"{OURS}, per node", DEFAULT_ALONE)):
        yield title, _accuracy_and_gap([record["rows"][row] for record in ours(graph)])
    for row in LAYER:
        yield row, _accuracy_and_gap([record["rows"][row] for record in ours(graph)])
    trees = [name + part for name in _recorded(TREES, methods) for part in ("", CORRECTED)]
    for name in (*_recorded(NETWORKS, methods), *trees):
        yield name, _accuracy_and_gap(_tests(methods[name]))
    for strategy in PENALTIES:
        names = _penalised(methods, strategy)
        plain = methods[_without_penalty(names[0])]
        floor = _mean(plain, "val", "accuracy") - MAX_COST
        near = [name for name in names if _mean(methods[name], "val", "accuracy") >= floor]
        best = min(near or names, key=lambda name: _mean(methods[name], "val", "dp"))
        yield f"best + {strategy}", _accuracy_and_gap(_tests(methods[best]))


def _tests(records: Sequence[Record]) -> list[Record]:
    return [record["test"] for record in records]


def _accuracy_and_gap(tests: Sequence[Record]) -> str:
    accuracy = cell(spread([test["accuracy"] for test in tests]))
    dp = float(np.mean([test["dp"] for test in tests]))
    return f"{accuracy} / {100 * dp:.{2 if dp < 0.01 else 1}f}"


def bounds() -> Table:
    """What a fair model could reach on each graph, and what the defaults reach."""
    rows = []
    for graph in compared():
        methods, fair, gnn = tuned(graph), ours(graph), best_gnn(graph)
        limit = sum(record["base_rate_bound"] for record in fair) / len(fair)
        unfair = {
            name: _mean(methods[name], "test", "accuracy")
            for name in _recorded(NETWORKS | TREES, methods)
        }
        unfair["FMP, uncorrected"] = float(np.mean(values(fair, BLEND, "accuracy")))
        best = max(unfair, key=unfair.__getitem__)
        gnn_accuracy = {record["split"]: record["test"]["accuracy"] for record in methods[gnn]}
        accuracies = {record["split"]: record["rows"][DEFAULT]["accuracy"] for record in fair}
        gains = [accuracies[split] - gnn_accuracy[split] for split in accuracies]
        rows.append(
            [
                TITLES[graph],
                f"{100 * limit:.1f}",
                f"{100 * unfair[best]:.1f} ({best})",
                f"{100 * min(limit, unfair[best]):.1f}",
                cell(spread(list(accuracies.values()))),
                f"{100 * unfair[gnn]:.1f} ({gnn})",
                cell(spread(gains)),
            ]
        )
    header = ["graph", "base rates allow", "best unfair model", "bound", f"{OURS} (batch)"]
    return Table("", [*header, "best unfair GNN", "FMP less that"], rows)


def tradeoffs() -> Table:
    """Hypervolume of accuracy against ΔDP: the defaults over targets, and the tuned baselines."""
    rows: dict[str, list[str]] = {}
    for graph in compared():
        for name, curve in _curves(graph).items():
            rows.setdefault(name, []).append(cell(hypervolume_over_splits(curve)))
    return _one_column_per_graph("hypervolume, %", rows)


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

    curves = {
        OURS: [
            point(record["split"], float(target), test)
            for record in fair
            for target, test in targets(record).items()
        ]
    }
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
                _summarised(summary[f"{mode} {figure}"])
                for mode in ("batch", "per_node")
                for figure in ("accuracy", "dp")
            ]
            cells.append(floor_on(graph) if graph in TITLES else "–")
            cells.append(f"{100 * summary['uncorrected dp']['mean']:.1f}")
            cells.append(f"{100 * summary['right_groups']:.1f}")
            rows.append([STUDIED[graph], condition, *cells])
    header = ["graph", "training saw", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node"]
    header += ["ΔDP, per node", "floor", "ΔDP, uncorrected", "test groups right %"]
    return Table("", header, rows)


def _summarised(summary: Record) -> str:
    return points(summary["mean"], summary["interval"][1] - summary["mean"])


def balanced(name: str = "balanced") -> Table:
    """FMP beside fairlearn with class-balanced training nodes."""
    rows = []
    for entry in read(name)["table"]:
        cells = [points(mean, high - mean) for mean, _, high in (entry["accuracy"], entry["dp"])]
        graph = entry["data"].partition("+")[0]
        rows.append([TITLES[graph], entry["method"], *cells, f"{100 * entry['floor'][0]:.1f}"])
    return Table("", ["graph", "method", "accuracy %", "ΔDP", "floor"], rows)


def facebook() -> Table:
    """Gender at Cornell, with two and with five groups of class years."""
    by_method: dict[tuple[str, str], list[Record]] = {}
    for record in read("facebook")["rows"]:
        by_method.setdefault((record["groups"], record["method"]), []).append(record)
    rows = []
    for (groups, method), records in by_method.items():
        track = BATCH if "FMP" in method else NO_CORRECTION
        cells = [cell(spread([record[figure] for record in records])) for figure in FIGURES]
        rows.append([groups, method, track, *cells])
    return Table("", ["groups", "method", "track", *FIGURES.values()], rows)


def german_gcn() -> Table:
    """Graph networks on German under NIFTY's protocol, by training and rule for the epoch."""
    by_setting: dict[tuple[str, str, str], list[Record]] = {}
    for record in read("german-gcn")["rows"]:
        setting = (record["network"], record["training"], record["epoch kept"])
        by_setting.setdefault(setting, []).append(record)
    keys = ("auc", "accuracy", "dp")
    rows = [
        [*setting, *(cell(spread([record[key] for record in records])) for key in keys)]
        for setting, records in by_setting.items()
    ]
    return Table("", ["network", "training", "epoch kept", "AUC", "accuracy %", "ΔDP"], rows)
