"""Published results under NIFTY's protocol, quoted beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fairmp.comparison import Record, page
from fairmp.comparison.grid import BACKBONES
from fairmp.report.formats import COLUMNS, Table, cell_text, spread
from fairmp.reproduction.grids import paper_key, printed

FIGURES = ("accuracy", "auc", "f1", "dp", "eo")
NOTE = (
    "Quoted rows are copied from their source, not rerun. Rows of this program are of five "
    "initialisations on the same split. The constant answer decides the larger class for everyone: "
    "a row near it has learned little. 'Per node' treats nodes one at a time, as the quoted "
    "methods do; the other rows of FMP close the gap of the test nodes as a batch."
)
LEAK = "On Bail one feature, TIME, gives the label away: TIME > 0 equals it on 99.4 % of the rows."


def tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set: the constant answer, quoted rows, and ours."""
    found = []
    for data in dict.fromkeys(record["data"] for record in records):
        own = [record for record in records if record["data"] == data]
        own.sort(key=lambda record: list(BACKBONES).index(record["spec"]["backbone"]))
        rows = [["constant answer", "computed", *_constant(own[0])]]
        for method, source, *values in printed()["published"].get(paper_key(data), []):
            rows.append(
                [
                    method,
                    f"quoted: {source}",
                    *(f"{value:.{1 + (value < 0.1)}f}" for value in values),
                ]
            )
        for name in dict.fromkeys(record["name"] for record in own):
            tests = [record["run"]["test"] for record in own if record["name"] == name]
            cells = [cell_text(spread([test[key] for test in tests])) for key in FIGURES]
            rows.append([name, "this program", *cells])
        header = ["method", "source", *(COLUMNS.get(key, "F1") for key in FIGURES)]
        found.append(Table(f"{own[0]['dataset']}: published rows beside ours", header, rows))
    return found


def _constant(record: Record) -> list[str]:
    """Figures of the answer that is the same for every test node."""
    positive = record["positive"]
    f1 = 2 * positive / (1 + positive) if positive >= 0.5 else 0.0
    return [f"{100 * value:.1f}" for value in (record["majority"], 0.5, f1, 0.0, 0.0)]


write = partial(
    page.write,
    title="Published results under NIFTY's protocol",
    summary="One fixed, class-balanced split; the sensitive column is a feature; initialisations "
    f"vary. {LEAK}",
    more=lambda found: tables(found.records),
    note=NOTE,
)
