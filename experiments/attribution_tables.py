"""Tables of what does the work: rows of one graph by track, and what else the same fits show.

:mod:`experiments.tracks` says what the tracks are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from experiments import external
from experiments.committed import TITLES
from experiments.tracks import BATCH, NO_CORRECTION, PER_NODE, gap_header
from fairmp.comparison import Record
from fairmp.report.formats import Table, spread

FIGURES = ("accuracy", "dp", "eo")
BLEND, BLIND = "default blend", "FairClassifier(group_free=True)"
THRESHOLDS, THRESHOLD_OPTIMIZER = f"{BLEND} + thresholds", f"{BLEND} + ThresholdOptimizer"
DEFAULT, DEFAULT_ALONE = "FairClassifier()", "FairClassifier(), per node"
ROWS: dict[str, str] = {
    "MLP": NO_CORRECTION,
    "plain propagation": NO_CORRECTION,
    "boosted trees": NO_CORRECTION,
    BLEND: NO_CORRECTION,
    "FairGNN, no fairness part": NO_CORRECTION,
    "NIFTY, no fairness part": NO_CORRECTION,
    "MLP + FMP (paper)": BATCH,
    "MLP + FMP (released)": BATCH,
    "MLP + FMP": BATCH,
    THRESHOLDS: BATCH,
    DEFAULT: BATCH,
    "FairGNN": PER_NODE,
    "NIFTY": PER_NODE,
    "MLP + FMP, per node": PER_NODE,
    THRESHOLD_OPTIMIZER: PER_NODE,
    DEFAULT_ALONE: PER_NODE,
    BLIND: PER_NODE,
}
"""Rows and the track each belongs to."""
ONE_FOLD = ("one fold, uncorrected", "one fold", "one fold, per node")
"""Rows of the default without cross-fitting, in a table of their own."""
SUMMARY = {
    "the default blend of models, uncorrected": BLEND,
    "the same, a threshold per group, nodes predicted together": THRESHOLDS,
    "the same, FMP, nodes predicted together": DEFAULT,
    "the same, FMP, each node alone": DEFAULT_ALONE,
    "no group read, each node alone": BLIND,
}
"""Rows that tell the story in short."""
REFERENCE = {BATCH: DEFAULT, PER_NODE: DEFAULT_ALONE}


PLAIN = "plain propagation"
CHANGES = {
    "MLP + FMP (paper)": PLAIN,
    "MLP + FMP (released)": PLAIN,
    "MLP + FMP": PLAIN,
    THRESHOLDS: BLEND,
    DEFAULT: BLEND,
    THRESHOLD_OPTIMIZER: BLEND,
    DEFAULT_ALONE: BLEND,
    BLIND: BLEND,
}
"""Corrected rows, and the same scores without a correction."""


def with_rivals(records: Iterable[Record]) -> list[Record]:
    """The records with the rows of FairGNN and NIFTY on the same splits, where they were run."""
    rivals = external.recorded()
    return [
        {**record, "rows": {**record["rows"], **rivals.get((record["data"], record["split"]), {})}}
        for record in records
    ]


def table(records: Sequence[Record], graph: str) -> Table:
    """The rows of one graph, by track, with paired differences to the default of the track."""
    records = with_rivals(record for record in records if record["data"] == graph)
    rows = []
    for title, track in ROWS.items():
        values = [record["rows"].get(title) for record in records]
        if not records or None in values:
            continue
        cells = [_cell([value[key] for value in values]) for key in FIGURES]
        rows.append([title, track, *cells, _difference(records, title, track)])
    count = sum(record["propagates"] for record in records)
    note = f"The default propagates on {count} of {len(records)} splits."
    header = ["method", "track", "accuracy %", gap_header(floor(records)), "ΔEO", "Δ accuracy"]
    return Table(f"{graph}: what does the work. {note}", header, rows)


def floor(records: Sequence[Record]) -> float:
    """Mean sampling floor of the test nodes."""
    return float(np.mean([record["floor"] for record in records] or [np.nan]))


def summary(records: Sequence[Record], graph: str) -> Table:
    """The rows of one graph that tell the story in short."""
    records = [record for record in records if record["data"] == graph]
    rows = [
        [words, ROWS[title], *(_cell(values(records, title, key)) for key in FIGURES[:2])]
        for words, title in SUMMARY.items()
    ]
    return Table("", ["", "track", "accuracy %", gap_header(floor(records))], rows)


def changes(records: Sequence[Record], figure: str) -> Table:
    """What each correction changes of the same scores, paired by split, one column per graph."""
    graphs = list(dict.fromkeys(record["data"] for record in records))
    by_graph = {name: [record for record in records if record["data"] == name] for name in graphs}
    rows = []
    for title, reference in CHANGES.items():
        cells = [_paired(own, title, reference, figure) for own in by_graph.values()]
        rows.append([title, ROWS[title], *cells])
    return Table("", ["method", "track", *(TITLES[name] for name in graphs)], rows)


def _paired(records: Sequence[Record], title: str, reference: str, figure: str) -> str:
    """The mean difference of two rows within splits."""
    own, other = (np.array(values(records, name, figure)) for name in (title, reference))
    return _cell((own - other).tolist(), sign="+")


def values(records: Sequence[Record], title: str, figure: str) -> list[float]:
    """A figure of one row on every split."""
    return [record["rows"][title][figure] for record in records]


def targets(record: Record) -> dict[str, Record]:
    """Figures of the default on one split by target, from 0 to no correction."""
    rows = record["rows"]
    return {"0": rows[DEFAULT], **record["targets"], "1": rows[BLEND]}


def propagation(records: Sequence[Record]) -> Table:
    """On how many splits of each graph the default propagates at all."""
    rows = []
    for graph in dict.fromkeys(record["data"] for record in records):
        flags = [record["propagates"] for record in records if record["data"] == graph]
        rows.append([TITLES[graph], f"{sum(flags)} of {len(flags)} splits"])
    return Table("", ["graph", "the default propagates on"], rows)


def _difference(records: Sequence[Record], title: str, track: str) -> str:
    reference = REFERENCE.get(track)
    if reference in (None, title):
        return "–"
    return _paired(records, title, reference, "accuracy")


def _cell(shares: Sequence[float], sign: str = "") -> str:
    interval = spread(list(shares))
    text = f"{100 * interval.mean:{sign}.1f}"
    if np.isnan(interval.low):
        return text
    return f"{text} ± {50 * (interval.high - interval.low):.1f}"
