"""What the gallery shows of each benchmark graph: its topology, and a correction of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.attribution_tables import BLEND, DEFAULT, DEFAULT_ALONE, values
from experiments.committed import FIGURES, TITLES, read
from experiments.training_tables import floor_on
from fairmp.comparison import Record
from fairmp.metrics import Interval, mean_interval
from fairmp.report.formats import Table

AUDITED = {**TITLES, "facebook100": "Facebook100, Cornell"}  # names of the graphs in audit.json


@dataclass(frozen=True)
class Exhibit:
    """A graph of the gallery; figures of test nodes are means over splits, as fractions."""

    title: str
    audit: Mapping[str, float]  # group predictability, and homophily
    uncorrected: Mapping[str, Interval]
    batch: Mapping[str, Interval]  # corrected, target 0
    per_node: Mapping[str, Interval]


def exhibits() -> dict[str, Exhibit]:
    """The graphs of the gallery by key, from the records of the audit and of the attribution."""
    audits, by_key = read("audit")["graphs"], {}
    for key, title in TITLES.items():
        splits = [split for split in read("attribution")["records"] if split["data"] == key]
        by_key[key] = Exhibit(
            title,
            audits[AUDITED[key]],
            uncorrected=_means(splits, BLEND),
            batch=_means(splits, DEFAULT),
            per_node=_means(splits, DEFAULT_ALONE),
        )
    return by_key


def _means(splits: Sequence[Record], row: str) -> dict[str, Interval]:
    return {key: mean_interval(values(splits, row, key)) for key in FIGURES}


def gallery() -> Table:
    """One row per graph: what averaging does to the group, and what the correction does."""
    rows = []
    for graph, exhibit in exhibits().items():
        audit = exhibit.audit
        predictability = [f"{100 * audit[key]:.0f}" for key in ("features", "five steps")]
        changes = [_change(exhibit, key) for key in FIGURES]
        per_node = f"{100 * exhibit.per_node['dp'].mean:.1f}"
        homophily = f"{audit['homophily']:.2f}, {audit['adjusted']:.2f}"
        texts = [homophily, " → ".join(predictability), *changes, per_node, floor_on(graph)]
        rows.append([exhibit.title, *texts])
    header = ["graph", "homophily, adjusted", "group predictability", *FIGURES.values()]
    return Table("", [*header, "ΔDP per node", "floor"], rows)


def _change(exhibit: Exhibit, key: str) -> str:
    pair = exhibit.uncorrected[key].mean, exhibit.batch[key].mean
    return " → ".join(f"{100 * mean:.1f}" for mean in pair)
