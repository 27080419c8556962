"""Write the tables of the documentation from the records under ``benchmarks/results``.

    python -m experiments.doc_tables          # rewrite the tables in docs/*.md
    python -m experiments.doc_tables --check  # status 1 if a table is not that of the records,
                                              # or a record was made by other code

A table stands between ``<!-- table: KIND ARGUMENTS -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import (
    ROOT,
    attribution_tables,
    benchmark_tables,
    external,
    gallery,
    group_free_tables,
    hyperparameters,
    pareto,
    published,
    runtime,
    speed_tables,
    synthetic,
    table1,
    training_tables,
)
from experiments.committed import FIGURES, cell, exists, read, runs
from experiments.paper import Claim, claims_table
from experiments.provenance import known_stale, problems, recorded_codes
from experiments.tracks import floor_of, gap_header, track_of
from fairmp.comparison import Record
from fairmp.comparison.summary import Comparison, compared
from fairmp.report.formats import Table, markdown, spread

BLOCK = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def methods(data: str) -> Table:
    """Every method at its default strength, and FMP with λ_s chosen on validation nodes."""
    by_name: dict[str, list[Record]] = {}
    for record in _on(data, runs("table")):
        by_name.setdefault(record["name"], []).append(record)
    rows = []
    for name, records in by_name.items():
        title = name.removesuffix(" target=0").replace("PPR", "plain propagation")
        rows.append(_row(title, records))
    smooth = {r["split"]: r for r in _on(data, runs("table")) if r["family"] == "FMP"}
    flat = {r["split"]: r for r in _on(data, runs("unsmoothed")) if r["strength"] == 0}
    if flat and smooth.keys() <= flat.keys():
        chosen = [max(smooth[split], flat[split], key=_validation_accuracy) for split in smooth]
        rows.append(_row("FMP, λ_s = 0", [flat[split] for split in smooth]))
        rows.append(_row("FMP, λ_s by validation", chosen))
    floor = floor_of([record["run"]["test"] for record in _on(data, runs("table"))])
    header = ["method", "track", FIGURES["accuracy"], gap_header(floor), FIGURES["eo"]]
    return Table("", header, rows)


def _on(data: str, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["data"] == data]


def _validation_accuracy(record: Record) -> float:
    return float(record["run"]["val"]["accuracy"])


def _row(name: str, records: Sequence[Record]) -> list[str]:
    """Means over the splits of some records."""
    tests = [record["run"]["test"] for record in records]
    [track] = {track_of(record) for record in records}
    return [name, track, *(cell(spread([test[key] for test in tests])) for key in FIGURES)]


def claims(experiment: str) -> Table:
    """Verdicts on the paper's claims, from the records of an experiment."""
    table = claims_table(CLAIMS[experiment]())
    return Table("", table.header, table.rows)


CLAIMS: dict[str, Callable[[], list[Claim]]] = {
    "table1": lambda: table1.claims([*runs("table"), *runs("fairgnn")]),
    "pareto": lambda: pareto.claims(_tradeoffs().hypervolumes),
    "runtime": lambda: runtime.claims(runs("runtime")),
    "hyperparameters": lambda: hyperparameters.claims(runs("hyperparameters")),
}


def _tradeoffs() -> Comparison:
    return compared(runs("pareto"))


def areas() -> Table:
    """Hypervolumes of all families, one column per data set."""
    volumes = _tradeoffs().hypervolumes
    families = {record["family"]: track_of(record) for record in runs("pareto")}
    rows = [
        [
            family,
            track,
            *(cell(column[family]) if family in column else "–" for column in volumes.values()),
        ]
        for family, track in families.items()
    ]
    return Table("", ["method", "track", *volumes], rows)


def side_by_side(data: str) -> Table:
    """The paper's Table 1 beside ours, on one data set."""
    return _only(table1.side_by_side(_on(data, [*runs("table"), *runs("fairgnn")])))


def published_rows(data: str) -> Table:
    """Published rows beside ours, on one data set."""
    if records := _on(data, runs("published")):
        return _only(published.beside_ours(records))
    return Table("", published.HEADER, published.quoted_rows(data))


def runtimes(data: str) -> Table:
    """Seconds of 200 epochs, and multiples of the MLP's."""
    return _only(runtime.tables(_on(data, runs("runtime"))))


def attribution_table(graph: str) -> Table:
    """What does the work on one graph."""
    if not exists("attribution"):
        return Table("", ["no records"], [])
    table = attribution_tables.table(read("attribution")["records"], graph)
    return Table("", table.header, table.rows)


def attribution_summary(graph: str) -> Table:
    """What does the work on one graph, in short."""
    return attribution_tables.summary(read("attribution")["records"], graph)


def attribution_changes(figure: str) -> Table:
    """What each correction changes of the same scores."""
    return attribution_tables.changes(read("attribution")["records"], figure)


def propagation() -> Table:
    """How often the default propagates."""
    return attribution_tables.propagation(read("attribution")["records"])


def _of_synthetic(part: Callable[[Record], Table]) -> Table:
    """A table of the experiment on synthetic graphs."""
    table = part(read("synthetic"))
    return Table("", table.header, table.rows)


def stale_records() -> Table:
    """Records that other code made, by the reason they are kept."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in known_stale().items():
        by_reason.setdefault(reason, []).append(name)
    rows = [[reason, ", ".join(names)] for reason, names in by_reason.items()]
    return Table("", ["why they are older", "records"], rows or [["–", "none"]])


def _only(tables: Sequence[Table]) -> Table:
    return Table("", tables[0].header, tables[0].rows) if tables else Table("", ["no records"], [])


KINDS: dict[str, Callable[..., Table]] = {
    "methods": methods,
    "claims": claims,
    "areas": areas,
    "paper": side_by_side,
    "published": published_rows,
    "runtime": runtimes,
    "defaults": training_tables.defaults,
    "crossfit": training_tables.crossfit,
    "baselines": training_tables.baselines,
    "bounds": training_tables.bounds,
    "tradeoffs": training_tables.tradeoffs,
    "studies": training_tables.studies,
    "balanced": training_tables.balanced,
    "german-gcn": training_tables.german_gcn,
    "facebook": training_tables.facebook,
    "group-free": group_free_tables.group_free,
    "against-fairlearn": group_free_tables.against_fairlearn,
    "promises": group_free_tables.promises,
    "joining": group_free_tables.joining,
    "decisions": benchmark_tables.decisions,
    "new-nodes": benchmark_tables.new_nodes,
    "audits": benchmark_tables.audits,
    "scaling": speed_tables.scaling,
    "epochs": speed_tables.epochs,
    "mini-batches": benchmark_tables.mini_batches,
    "unknown": benchmark_tables.unknown_groups,
    "fuzz": benchmark_tables.fuzz,
    "fits": speed_tables.fits,
    "fit-targets": speed_tables.fit_targets,
    "epoch-targets": speed_tables.epoch_targets,
    "kernels": speed_tables.kernels,
    "papers": speed_tables.papers,
    "orders": speed_tables.orders,
    "shard-orders": speed_tables.shard_orders,
    "shard-writing": speed_tables.shard_writing,
    "shard-bytes": speed_tables.shard_bytes,
    "shard-memory": speed_tables.shard_memory,
    "attribution": attribution_table,
    "attribution-changes": attribution_changes,
    "attribution-summary": attribution_summary,
    "propagation": propagation,
    "interventions": external.interventions,
    "coverage": benchmark_tables.coverage,
    "fair-layers": speed_tables.fair_layers,
    "synthetic-agreement": lambda: _of_synthetic(synthetic.agreement),
    "synthetic-counterexample": lambda: _of_synthetic(synthetic.counterexample),
    "synthetic-errors": lambda: _of_synthetic(synthetic.prediction_error),
    "synthetic-signs": lambda: _of_synthetic(synthetic.sign_flip),
    "synthetic-graphs": lambda: _of_synthetic(synthetic.real_graphs),
    "gallery": gallery.gallery,
    "stale": stale_records,
}


def rewritten(text: str) -> str:
    """A page with its tables as the records have them."""

    def table(block: re.Match[str]) -> str:
        kind, *arguments = block[2].split()
        return f"{block[1]}\n{markdown([KINDS[kind](*arguments)])}\n{block[4]}"

    return BLOCK.sub(table, text)


def pages() -> list[Path]:
    """The files that may have tables made from records."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if stale")
    check = parser.parse_args(arguments).check
    stale = []
    for path in pages():
        text = path.read_text(encoding="utf8")
        new = rewritten(text)
        if new != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(new, encoding="utf8")
    print(f"{'stale' if check else 'rewritten'}: {', '.join(stale) or 'none'}")
    if not check:
        return 0
    listed = known_stale()
    for name, reason in listed.items():
        print(f"older than the code, and known: {name} ({reason})")
    wrong = problems(recorded_codes(), listed)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(stale or wrong))


if __name__ == "__main__":
    sys.exit(main())
