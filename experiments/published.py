"""Results of published methods under NIFTY's protocol, quoted beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments import grids
from experiments.options import GridOptions, Scope, run_grid
from experiments.rivals.tuning import METHODS as RIVALS
from experiments.tracks import NO_CORRECTION, PER_NODE, track_of
from fairmp.comparison import Record, page
from fairmp.comparison.grid import METHODS
from fairmp.comparison.summary import Comparison
from fairmp.report.formats import COLUMNS, Table, cell_text, spread

FIGURES = ("accuracy", "auc", "f1", "dp", "eo")
HEADER = ["method", "source", "track", *(COLUMNS.get(key, "F1") for key in FIGURES)]
DATA = [f"{name}+nifty" for name in ("german", "bail", "bail-without-time", "credit")]


def command(scope: Scope, training: GridOptions) -> None:
    """Quote published methods under NIFTY's protocol beside ours: German, Bail and Credit."""
    run_grid("published", grids.published, write, scope, training, quick="german+nifty", usual=DATA)


def write(records: Sequence[Record], folder: Path, *, command: str) -> Comparison:
    """Write our tables, and the published rows beside ours."""
    return page.write(
        records,
        folder,
        title="Published results under NIFTY's protocol",
        summary="One fixed, class-balanced split; the sensitive column is a feature; "
        "initialisations vary. On Bail one feature, TIME, gives the label away: TIME > 0 equals it "
        "on 99.4 % of the rows.",
        command=command,
        further_tables=lambda comparison: beside_ours(comparison.records),
        note="Quoted rows are copied from their source, not rerun. Rows of this program are of "
        "five initialisations on the same split. The constant answer decides the larger class for "
        "everyone: a row near it has learned little. 'Per node' treats nodes one at a time, as the "
        "quoted methods do; the other rows of FMP close the gap of the test nodes as a batch.",
    )


def beside_ours(records: Sequence[Record]) -> list[Table]:
    """One table per data set: the constant answer, quoted rows, and ours."""
    by_data: dict[str, list[Record]] = {}
    for record in records:
        by_data.setdefault(record["data"], []).append(record)
    tables = []
    for data, runs in by_data.items():
        rows = [_constant_answer(runs[0]), *quoted_rows(data), *_our_rows(runs)]
        title = f"{runs[0]['dataset']}: published rows beside ours"
        tables.append(Table(title, HEADER, rows))
    return tables


def quoted_rows(data: str) -> list[list[str]]:
    """Rows of published methods on a data set, with their sources."""
    return [
        [
            method,
            f"quoted: {source}",
            PER_NODE,
            *(f"{value:.{2 if value < 0.1 else 1}f}" for value in values),
        ]
        for method, source, *values in grids.printed()["published"].get(grids.paper_key(data), [])
    ]


def _constant_answer(record: Record) -> list[str]:
    """The row of a classifier that decides the larger class for everyone."""
    positive = record["positive"]
    f1 = 2 * positive / (1 + positive) if positive >= 0.5 else 0.0
    figures = {"accuracy": record["majority"], "auc": 0.5, "f1": f1, "dp": 0.0, "eo": 0.0}
    return [
        "constant answer",
        "computed",
        NO_CORRECTION,
        *(f"{100 * figures[key]:.1f}" for key in FIGURES),
    ]


def _our_rows(records: Sequence[Record]) -> list[list[str]]:
    order = [*METHODS, *RIVALS.values()]
    titles = {method: title for title, method in RIVALS.items()}
    by_name: dict[str, list[Record]] = {}
    tracks = {}
    for record in sorted(records, key=lambda record: order.index(record["spec"]["backbone"])):
        name = titles.get(record["spec"]["backbone"]) or record["name"]
        by_name.setdefault(name, []).append(record["run"]["test"])
        tracks[name] = track_of(record)
    return [
        [
            name,
            "rerun" if name in RIVALS else "this program",
            tracks[name],
            *(cell_text(spread([test[key] for test in tests])) for key in FIGURES),
        ]
        for name, tests in by_name.items()
    ]
