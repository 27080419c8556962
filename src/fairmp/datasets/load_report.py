"""The report on what a loader read, kept and dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairmp.errors import plural, shortlist

if TYPE_CHECKING:
    from torch_geometric.data import Data

MAX_SHOWN = 8  # columns with missing values named in a report


@dataclass
class LoadReport:
    """What a loader read, kept and dropped; ``data.report`` of every loaded graph.

    Example:
        >>> print(LoadReport(nodes=3, edge_rows=4, self_loops=1, edges=3, notes=["a note"]))
        3 nodes, 3 undirected edges from 4 edge rows
        1 self-loop dropped
        a note
    """

    guess: str = ""  # which decision is taken for the good one, if nobody said so
    nodes: int = 0
    edge_rows: int = 0  # rows of the edge table
    dangling: int = 0  # rows with an id that is not in the node table; dropped
    self_loops: int = 0  # rows that join a node to itself; dropped
    repeated: int = 0  # rows that repeat an earlier one, in the same direction; dropped
    reciprocal: int = 0  # edges given in both directions
    edges: int = 0  # undirected edges kept
    unknown_labels: int = 0  # nodes without a label (−1)
    unknown_groups: int = 0  # nodes without a sensitive group (−1)
    labelled_unknown_groups: int = 0  # those of them that have a label
    missing: dict[str, int] = field(default_factory=dict)  # missing values of feature columns
    notes: list[str] = field(default_factory=list)  # all else, one sentence each

    def lines(self) -> list[str]:
        """Return the report as lines, without the counts that are 0."""
        size = f"{plural(self.nodes, 'node')}, {plural(self.edges, 'undirected edge')}"
        counts = [
            (self.dangling, "dangling edge row", "dropped: an end is not in the node table"),
            (self.self_loops, "self-loop", "dropped"),
            (self.repeated, "repeated edge row", "dropped"),
            (self.reciprocal, "edge", "given in both directions"),
            (self.unknown_labels, "node", "without a label"),
            (self.unknown_groups, "node", self._groupless()),
        ]
        return [
            *([self.guess] if self.guess else []),
            f"{size} from {plural(self.edge_rows, 'edge row')}",
            *(f"{plural(count, noun)} {fate}" for count, noun, fate in counts if count),
            *self._missing_values(),
            *self.notes,
        ]

    def _groupless(self) -> str:
        if not self.labelled_unknown_groups:
            return "without a sensitive group"
        labelled = f"{self.labelled_unknown_groups:,} of them labelled"
        return f"without a sensitive group, {labelled} (used in training, not in gaps)"

    def _missing_values(self) -> list[str]:
        if not self.missing:
            return []
        by_count = sorted(self.missing.items(), key=lambda item: -item[1])
        columns = shortlist([f"{name} {count:,}" for name, count in by_count], MAX_SHOWN)
        if len(by_count) > MAX_SHOWN:
            columns += " columns"
        return [f"missing values filled: {columns}"]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def messages(data: Data) -> list[str]:
    """The lines of a graph's report; none if it was not loaded from files."""
    report: LoadReport | None = getattr(data, "report", None)
    return [] if report is None else report.lines()
