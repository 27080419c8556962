"""Write the tables of the documentation from the records under ``benchmarks/results``.

    python benchmarks/doc_tables.py          # rewrite the tables in docs/*.md
    python benchmarks/doc_tables.py --check  # status 1 if a table is not that of the records

A table stands between ``<!-- table: KIND ARGUMENTS -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairmp.comparison.page import compared
from fairmp.metrics import Interval
from fairmp.report.figures import over_splits
from fairmp.report.formats import Table, markdown, spread
from fairmp.reproduction import paper
from fairmp.reproduction.experiments import published_tables, runtime_tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "compare"
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FIGURES = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO"}
Record = dict[str, Any]


@cache
def records(name: str) -> tuple[Record, ...]:
    """Records of ``NAME.jsonl.gz`` that did not fail; none if there is no such file."""
    path = RESULTS / f"{name}.jsonl.gz"
    if not path.exists():
        return ()
    with gzip.open(path, "rt", encoding="utf8") as file:
        found = [json.loads(line) for line in file]
    return tuple(record for record in found if "failed" not in record)


def cell(value: Interval) -> str:
    """An interval in points, with a second digit where it is small."""
    digits = 1 if 100 * value.mean >= 2 or value.mean != value.mean else 2
    text = f"{100 * value.mean:.{digits}f}"
    if value.low != value.low:
        return text
    if value.n < 5:
        return f"{text} [{100 * value.low:.{digits}f}, {100 * value.high:.{digits}f}]"
    return f"{text} ± {50 * (value.high - value.low):.{digits}f}"


def row(name: str, own: Iterable[Record], keys: Iterable[str] = FIGURES) -> list[str]:
    """One row: means over the splits of some records."""
    tests = [record["run"]["test"] for record in own]
    return [name, *(cell(spread([test[key] for test in tests])) for key in keys)]


def methods(data: str) -> Table:
    """Every method at its default strength, and FMP with λ_s chosen on validation nodes."""
    own = [record for record in records("table") if record["data"] == data]
    rows = []
    for name in dict.fromkeys(record["name"] for record in own):
        shown = name.removesuffix(" target=0").replace("PPR", "plain propagation")
        rows.append(row(shown, [record for record in own if record["name"] == name]))
    smooth = {r["split"]: r for r in own if r["family"] == "FMP"}
    flat = {
        r["split"]: r for r in records("unsmoothed") if r["data"] == data and r["strength"] == 0
    }
    if flat and smooth.keys() <= flat.keys():
        accuracy = lambda record: record["run"]["val"]["accuracy"]  # noqa: E731
        chosen = [max(smooth[k], flat[k], key=accuracy) for k in smooth]
        rows.append(row("FMP, λ_s = 0", [flat[k] for k in smooth]))
        rows.append(row("FMP, λ_s by validation", chosen))
    return Table("", ["method", *FIGURES.values()], rows)


def claims(name: str) -> Table:
    """Verdicts on the paper's claims, from the records of an experiment."""
    own = records({"table1": "table"}.get(name, name))
    if name == "table1":
        found = paper.table1_claims([*own, *records("fairgnn")])
    elif name == "pareto":
        found = paper.pareto_claims(compared([*own, *records("ranges")]).hypervolumes)
    elif name == "runtime":
        found = paper.runtime_claims(own)
    else:
        found = paper.hyperparameter_claims(own)
    table = paper.claims_table(found)
    return Table("", table.header, table.rows)


def areas() -> Table:
    """Hypervolumes of all families, one column per data set."""
    volumes = compared([*records("pareto"), *records("ranges")]).hypervolumes
    families = dict.fromkeys(family for column in volumes.values() for family in column)
    rows = [
        [f, *(cell(column[f]) if f in column else "–" for column in volumes.values())]
        for f in families
    ]
    return Table("", ["method", *volumes], rows)


def side_by_side(data: str) -> Table:
    """The paper's Table 1 beside ours, on one data set."""
    own = [r for r in (*records("table"), *records("fairgnn")) if r["data"] == data]
    return _only(paper.side_by_side(own))


def published_rows(data: str) -> Table:
    """Published rows beside ours, on one data set."""
    own = [r for r in records("published") if r["data"] == data]
    if own:
        return _only(published_tables(own))
    quoted = paper.printed()["published"].get(paper.paper_key(data), [])
    rows = [[name, f"quoted: {source}", *map(str, values)] for name, source, *values in quoted]
    return Table("", ["method", "source", "accuracy %", "AUC", "F1", "ΔDP", "ΔEO"], rows)


TITLES = {
    "nba": "NBA",
    "german": "German",
    "pokec-province": "Pokec province",
    "bail": "Bail",
    "credit": "Credit",
    "facebook100": "Facebook100",
    "pokec-n-graph": "Pokec-n, 3 features",
}


def read(name: str) -> Record:
    """The result of one benchmark."""
    return json.loads((RESULTS.parent / f"{name}.json").read_text(encoding="utf8"))


def points(mean: float, half: float) -> str:
    """A mean and the half width of its interval, in points."""
    digits = 1 if 100 * mean >= 10 else 2
    return f"{100 * mean:.{digits}f} ± {100 * half:.{digits}f}"


def defaults() -> Table:
    """``FairClassifier()`` as it comes, on every graph."""
    keys = [f"{mode} {figure}" for mode in ("batch", "per_node") for figure in ("accuracy", "dp")]
    rows = []
    for graph, own in read("defaults")["summary"].items():
        found = [
            points(own[key]["mean"], own[key]["interval"][1] - own[key]["mean"]) for key in keys
        ]
        rows.append([TITLES[graph], *found, f"{100 * own['one_node']:.2f}"])
    header = ["graph", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node", "ΔDP, per node"]
    return Table("", [*header, "one node"], rows)


NETWORKS = {name: name.upper() for name in ("mlp", "gcn", "gat", "sgc", "appnp")}
NEAR = 0.01  # of validation accuracy that a penalty may cost


def _mean(own: Sequence[Record], part: str, figure: str) -> float:
    return sum(record[part][figure] for record in own) / len(own)


def tuned(graph: str) -> dict[str, list[Record]]:
    """Records of the tuned baselines on one graph, by method, with its strength if it has one."""
    found: dict[str, list[Record]] = {}
    for record in read("baselines")["records"]:
        if record["data"] != graph:
            continue
        name = NETWORKS.get(record["method"], "trees")
        if "strategy" in record:
            name += f" + {record['strategy']} {record['strength']:g}"
        found.setdefault(name, []).append(record)
        if "fair" in record:
            fair = {**record, "test": record["fair"]}
            found.setdefault("trees + ThresholdOptimizer", []).append(fair)
    return found


def ours(graph: str) -> list[Record]:
    """Records of ``FairClassifier()`` on one graph."""
    return [record for record in read("defaults")["records"] if record["data"] == graph]


def best_gnn(graph: str) -> str:
    """The graph network of the highest validation accuracy."""
    own = tuned(graph)
    return max(
        (n for n in NETWORKS.values() if n != "MLP"), key=lambda n: _mean(own[n], "val", "accuracy")
    )


def baselines() -> Table:
    """Accuracy and ΔDP of the defaults and of tuned baselines, one column per graph."""
    rows: dict[str, list[str]] = {}

    def add(method: str, own: Sequence[Record], part: str = "test") -> None:
        accuracy = cell(spread([record[part]["accuracy"] for record in own]))
        dp = _mean(own, part, "dp")
        rows.setdefault(method, []).append(f"{accuracy} / {100 * dp:.{1 + (dp < 0.01)}f}")

    for graph in TITLES:
        add("FMP, defaults", ours(graph), "batch")
        add("FMP, defaults, per node", ours(graph), "per_node")
        own = tuned(graph)
        for name in (*NETWORKS.values(), "trees", "trees + ThresholdOptimizer"):
            add(name, own[name])
        for strategy in ("regulariser", "adversary"):
            names = [name for name in own if strategy in name]
            plain = own[names[0].split(" + ")[0]]
            floor = _mean(plain, "val", "accuracy") - NEAR
            near = [n for n in names if _mean(own[n], "val", "accuracy") >= floor] or names
            add(f"best + {strategy}", own[min(near, key=lambda n: _mean(own[n], "val", "dp"))])
    return Table("", ["accuracy % / ΔDP", *TITLES.values()], [[k, *v] for k, v in rows.items()])


def bounds() -> Table:
    """What a fair model could reach on each graph, and what the defaults reach."""
    rows = []
    for graph, title in TITLES.items():
        own, fair, gnn = tuned(graph), ours(graph), best_gnn(graph)
        limit = sum(record["base_rate_bound"] for record in fair) / len(fair)
        unfair = {n: _mean(own[n], "test", "accuracy") for n in (*NETWORKS.values(), "trees")}
        unfair["FMP, uncorrected"] = sum(r["targets"]["1.0"]["accuracy"] for r in fair) / len(fair)
        best = max(unfair, key=unfair.__getitem__)
        other = {record["split"]: record["test"]["accuracy"] for record in own[gnn]}
        gains = [record["batch"]["accuracy"] - other[record["split"]] for record in fair]
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
        fair, own = ours(graph), tuned(graph)
        majority = {record["split"]: record["majority"] for record in fair}

        def point(split: int, strength: float, test: Record) -> Record:
            base = {"split": split, "strength": strength, "majority": majority[split]}  # noqa: B023
            return {**base, "run": {"test": test}}

        curves = {"FMP, defaults": [point(r["split"], 0.0, r["batch"]) for r in fair]}
        for record in fair:
            for target, test in record["targets"].items():
                curves["FMP, defaults"].append(point(record["split"], float(target), test))
        for name in NETWORKS.values():
            curves[name] = [point(r["split"], 0.0, r["test"]) for r in own[name]]
        for strategy in ("regulariser", "adversary"):
            names = [name for name in own if strategy in name]
            curve = [point(r["split"], 0.0, r["test"]) for r in own[names[0].split(" + ")[0]]]
            curve += [point(r["split"], r["strength"], r["test"]) for n in names for r in own[n]]
            curves[f"best + {strategy}"] = curve
        pair = own["trees"], own["trees + ThresholdOptimizer"]
        curves["trees + ThresholdOptimizer"] = [
            point(r["split"], k, r["test"]) for k, part in enumerate(pair) for r in part
        ]
        for name, curve in curves.items():
            rows.setdefault(name, []).append(cell(over_splits(curve)))
    return Table("", ["hypervolume, %", *TITLES.values()], [[k, *v] for k, v in rows.items()])


def studies() -> Table:
    """The defaults where few groups are known, and where labels are wrong."""
    if not (RESULTS.parent / "studies.json").exists():
        return _only([])
    titles = {**TITLES, "bail-without-time": "Bail without TIME"}
    rows = []
    for graph, conditions in read("studies")["summary"].items():
        for condition, own in conditions.items():
            found = [titles[graph], condition]
            for mode in ("batch", "per_node"):
                for one in (own[f"{mode} accuracy"], own[f"{mode} dp"]):
                    found.append(points(one["mean"], one["interval"][1] - one["mean"]))
            found.append(f"{100 * own['uncorrected dp']['mean']:.1f}")
            rows.append([*found, f"{100 * own['right_groups']:.1f}"])
    header = ["graph", "training saw", "accuracy %, batch", "ΔDP, batch", "accuracy %, per node"]
    return Table("", [*header, "ΔDP, per node", "ΔDP, uncorrected", "test groups right %"], rows)


def _bounds(interval: Sequence[float], sign: str = "") -> str:
    """A mean and half of its interval, in points with one digit."""
    mean, _, high = interval
    return f"{100 * mean:{sign}.1f} ± {100 * (high - mean):.1f}"


def decisions() -> Table:
    """Gaps of decisions with target 0: the largest over the splits."""
    methods = {"FMP": "FMP", "trees": "trees", "trees, two digits": "trees, two digits"}
    rows: dict[str, dict[str, Record]] = {}
    for own in read("decisions")["table"]:
        if own["target"] == 0:
            rows.setdefault(own["graph"], {})[own["method"]] = own
    found = []
    for graph, by_method in rows.items():
        cells = [TITLES[graph]]
        for name in methods:
            own = by_method[name]
            cells += [_bounds(own["accuracy"]), f"{100 * own['largest_dp']:.2f}"]
        found.append([*cells, f"{by_method['trees, two digits']['drawn']:.0f}"])
    header = [f"{name}: {what}" for name in methods for what in ("accuracy", "largest ΔDP")]
    return Table("", ["graph", *header, "drawn"], found)


def new_nodes(criterion: str) -> Table:
    """Our correction beside fairlearn's, found on validation nodes and applied to test nodes."""
    gap, constraint = {
        "equal_opportunity": ("eo", "true_positive_rate_parity"),
        "demographic_parity": ("dp", "demographic_parity"),
    }[criterion]
    names = {
        "plain": "as predicted",
        "Debiaser": f"Debiaser, {criterion}, decisions",
        "fairlearn": f"ThresholdOptimizer, {constraint}",
    }
    content, rows = read("odds"), []
    table = {(own["graph"], own["method"]): own for own in content["table"]}
    for own in content["differences"]:
        if own["criterion"] != criterion:
            continue
        graph = own["graph"]
        cells = [_bounds(table[graph, n][k]) for n in names.values() for k in ("accuracy", gap)]
        rows.append([TITLES[graph], *cells, *(_bounds(own[k], "+") for k in ("accuracy", gap))])
    words = [*names, "difference"]
    header = [f"{name} {what}" for name in words for what in ("accuracy", f"Δ{gap.upper()}")]
    return Table("", ["graph", *header], rows)


def scaling() -> Table:
    """Time and memory of an epoch by the number of edges."""
    rows = []
    for own in read("scale")["training"]:
        seconds, edges = own["seconds_epoch"], own["directed_edges"]
        time = f"{seconds:.{3 if seconds < 0.1 else 2}f} s"
        memory = f"{own['peak_bytes_an_edge_beside_features']:.0f}"
        rows.append([f"{edges:,}", time, f"{own['nanoseconds_an_edge']:.0f}", memory])
    return Table("", ["directed edges", "epoch", "ns per edge", "bytes per edge"], rows)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def audits() -> Table:
    """Group predictability before and after averaging, on every graph."""
    keys = ("features", "one step", "predicted", "five steps", "random features")
    titles = ["features", "after one step", "predicted", "after five", "random features after five"]
    own = read("audit")["graphs"]
    kept = [k for k, key in enumerate(keys) if all(key in graph for graph in own.values())]
    rows = []
    for name, graph in own.items():
        cells = [f"{100 * graph['homophily']:.1f}", f"{graph['adjusted']:.2f}"]
        rows.append([name, *cells, *(_or_dash(graph[keys[k]]) for k in kept)])
    return Table("", ["graph", "ε %", "adjusted", *(titles[k] for k in kept)], rows)


def balanced(name: str = "balanced") -> Table:
    """FMP beside fairlearn with class-balanced training nodes."""
    rows = []
    for own in read(name)["table"]:
        found = [points(mean, high - mean) for mean, _, high in (own["accuracy"], own["dp"])]
        graph = own.get("data", "credit").partition("+")[0]
        rows.append([TITLES[graph], own["method"], *found])
    return Table("", ["graph", "method", "accuracy %", "ΔDP"], rows)


def facebook() -> Table:
    """Gender at Cornell, with two and with five groups of class years."""
    rows: dict[tuple[str, str], list[Record]] = {}
    for own in read("facebook")["rows"]:
        rows.setdefault((own["groups"], own["method"]), []).append(own)
    found = [
        [*key, *(cell(spread([row[figure] for row in own])) for figure in FIGURES)]
        for key, own in rows.items()
    ]
    return Table("", ["groups", "method", *FIGURES.values()], found)


def group_free() -> Table:
    """Training without the group at prediction."""
    rows = []
    for own in read("group-free")["summary"]:
        found = [points(own[key], own[f"{key}_half_width"]) for key in ("accuracy", "dp")]
        rows.append([TITLES[own["graph"]], own["method"], *found, f"{100 * own['noise']:.1f}"])
    return Table("", ["graph", "method", "accuracy %", "ΔDP, test", "sampling error"], rows)


def epochs() -> Table:
    """Milliseconds of one epoch on three machines, and ratios to PyG's MLP."""
    names = {"CPU": "epoch", "Pokec-n": "epoch-pokec-n", "H200": "epoch-gpu"}
    times = {title: read(name)["milliseconds"] for title, name in names.items()}
    rows = []
    for network in times["CPU"]:
        cells = []
        for own in times.values():
            cells += [f"{own[network]:.{1 + (own[network] < 5)}f}"]
            cells += [f"{own[network] / own['PyG MLP']:.2f}"]
        rows.append([network, *cells])
    return Table("", ["network", *(h for title in times for h in (title, "× PyG MLP"))], rows)


def fuzz() -> Table:
    """Cases of every fuzzer: how many were tried with which seeds, how they ended, what failed."""
    runs: dict[str, list[Record]] = {}
    for run in read("fuzz")["runs"]:
        runs.setdefault(run["kind"], []).append(run)
    rows = []
    for kind, own in runs.items():
        ends: Counter[str] = Counter()
        for end, count in ((e, n) for run in own for e, n in run["ends"].items()):
            # A kill is of a command; a failure is counted in its own column.
            ends[end.rpartition(", ")[2] if kind == "kills" else end.partition(":")[0]] += count
        failed = sum(len(run["failures"]) for run in own)
        ends.pop("FAILED", None)
        shown = ", ".join(f"{end} {count:,}" for end, count in ends.most_common())
        tried = f"{sum(run['tried'] for run in own):,}"
        seeds = ", ".join(str(run["seed"]) for run in own)
        rows.append([f"`{kind}`", seeds, tried, shown, f"{failed:,}"])
    return Table("", ["fuzzer", "seeds", "cases", "ended", "failed"], rows)


FITS = (
    ("fit", "CPU"),
    ("fit-pokec-z-dense", "dense features, CPU"),
    ("fit-pokec-z", "CPU"),
    ("fit-pokec-n", "CPU"),
    ("fit-gpu", "H200"),
)


def fits() -> Table:
    """Seconds of whole fits of an MLP, and multiples of them, for every graph that was measured."""
    methods = {
        "MLP + plain propagation": "plain propagation",
        "MLP + FMP": "FMP",
        "PyG MLP + APPNP, edge_index": "PyG APPNP",
        "PyG MLP + APPNP, sparse tensor": "PyG APPNP, sparse",
        "PyG GCN": "PyG GCN",
    }
    rows = []
    for name, device in FITS:
        if not (RESULTS.parent / f"{name}.json").exists():
            continue
        for graph, own in read(name)["graphs"].items():
            times = own["times_the_mlp"]
            cells = [f"× {times[method]:.2f}" if method in times else "–" for method in methods]
            rows.append([f"{graph}, {device}", f"{min(own['seconds']['MLP']):.1f} s", *cells])
    return Table("", ["graph", "MLP", *methods.values()], rows)


def orders() -> Table:
    """Nanoseconds per edge of an epoch in two orders of the nodes."""
    rows = []
    for graph, own in read("locality")["graphs"].items():
        times = [own[f"nanoseconds_per_edge_{order}"] for order in ("given", "locality")]
        ratio = f"{own['given_over_locality']:.2f}"
        rows.append([graph, *(f"{time:.0f}" for time in times), ratio])
    return Table("", ["graph", "given", "locality", "given / locality"], rows)


def _only(tables: Sequence[Table]) -> Table:
    return Table("", tables[0].header, tables[0].rows) if tables else Table("", ["no records"], [])


def runtimes(data: str) -> Table:
    """Seconds of 200 epochs, and multiples of the MLP's."""
    return _only(runtime_tables([r for r in records("runtime") if r["data"] == data]))


KINDS: dict[str, Callable[..., Table]] = {
    "methods": methods,
    "claims": claims,
    "areas": areas,
    "paper": side_by_side,
    "published": published_rows,
    "runtime": runtimes,
    "defaults": defaults,
    "baselines": baselines,
    "bounds": bounds,
    "tradeoffs": tradeoffs,
    "studies": studies,
    "decisions": decisions,
    "new-nodes": new_nodes,
    "scaling": scaling,
    "audits": audits,
    "balanced": balanced,
    "facebook": facebook,
    "group-free": group_free,
    "epochs": epochs,
    "fuzz": fuzz,
    "fits": fits,
    "orders": orders,
}


def rewritten(text: str) -> str:
    """A page with its tables as the records have them."""

    def table(block: re.Match[str]) -> str:
        kind, *arguments = block[2].split()
        return f"{block[1]}\n{markdown([KINDS[kind](*arguments)])}\n{block[4]}"

    return BLOCK.sub(table, text)


def main() -> int:
    """Rewrite or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if stale")
    check, stale = parser.parse_args().check, []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf8")
        new = rewritten(text) if "<!-- table:" in text else text
        if new != text:
            stale.append(path.name)
            if not check:
                path.write_text(new, encoding="utf8")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
