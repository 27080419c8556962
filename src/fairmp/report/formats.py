"""Numbers as text, and tables of results as Markdown, LaTeX, CSV, HTML and for the terminal."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fairmp.errors import printable
from fairmp.metrics import Interval, mean_interval
from fairmp.metrics.counts import MIN_SPLITS as MIN_SPLITS
from fairmp.metrics.counts import wilson

if TYPE_CHECKING:
    from rich.table import Table as RichTable

COLUMNS = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO", "auc": "AUC", "seconds": "s"}
METRICS = ("accuracy", "dp", "eo", "auc")
LOWER_IS_BETTER = frozenset({COLUMNS["dp"], COLUMNS["eo"]})
LATEX_SYMBOLS = str.maketrans(
    {symbol: f"\\{symbol}" for symbol in "&%$#{}_"}
    | {"\\": "\\textbackslash ", "Δ": "$\\Delta$", "±": "$\\pm$", "−": "$-$"}
)
SPREAD = (
    f"± is half of a 95 % interval of the mean over splits; with fewer than {MIN_SPLITS}, brackets "
    "are the smallest and the largest."
)
EVEN = 0.0005  # a smaller gap is shown as 0.0 points
NEARLY_ALL = 0.99
"""Share of people with the same decision from which a gap says nothing about a method."""
GAP_NOTE = (
    "In small samples a measured gap is too large on average. A small gap here can be chance."
)


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor nan."""
    return value is not None and not math.isnan(value)


def points(share: float | None, digits: int = 1) -> str:
    """A share in points (hundredths): 0.1234 is "12.3"; "n/a" if unknown."""
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    return f"{round(100 * share, digits) + 0.0:.{digits}f}" if is_known(share) else "n/a"


def wilson_interval(count: float, n: float) -> tuple[float, float]:
    """95 % Wilson interval of a share, also for counts that are not integers."""
    if n <= 0:
        return math.nan, math.nan
    low, high = wilson(count / n, n)
    return max(0.0, float(low)), min(1.0, float(high))


def ratio(value: float | None) -> str:
    """A ratio with two digits: 0.8 is "0.80"; "n/a" if unknown."""
    return f"{value:.2f}" if is_known(value) else "n/a"


def interval_text(
    ends: Sequence[float | None] | None, show: Callable[[float | None], str] = points
) -> str:
    """An interval in points, such as "10.0 to 25.0", or as shown; empty if unknown."""
    return " to ".join(map(show, ends)) if ends is not None and all(map(is_known, ends)) else ""


def with_interval(share: float | None, ends: Sequence[float | None] | None) -> str:
    """A share in points with its interval, such as "12.0 (10.0 to 15.0)"."""
    interval = interval_text(ends)
    return points(share) + (f" ({interval})" if interval else "")


def ratio_with_interval(value: float | None, ends: Sequence[float | None] | None) -> str:
    """A ratio with its interval, such as "0.82 (0.75 to 0.90)"."""
    interval = interval_text(ends, ratio)
    return ratio(value) + (f" ({interval})" if interval else "")


def per_hundred(share: float | None) -> str:
    """A share as a whole number out of a hundred: 0.426 is "43", 0.004 "fewer than 1"."""
    if not is_known(share):
        return "n/a"
    count = round(100 * share)
    return "fewer than 1" if count == 0 and share > 0 else str(count)


def join_names(names: Sequence[str], limit: int = 8) -> str:
    """An enumeration: "a, b and c", or "a, b and 10 more"."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return "".join(names)


def shorten(name: str) -> str:
    """A name, truncated for a chart."""
    return name if len(name) <= 24 else f"{name[:23]}…"


def signed_change(before: float | None, after: float | None) -> str:
    """A change in points with its sign: "+2.0", "−24.0", "0.0"."""
    if not is_known(before) or not is_known(after):
        return "n/a"
    change = after - before
    if abs(change) < EVEN:
        return "0.0"
    return f"{'+' if change > 0 else '−'}{points(abs(change))}"


def constant_decision_notes(
    classes: Sequence[str], rates: Sequence[Sequence[float | None]], *, all_known: bool = True
) -> list[str]:
    """A warning if everyone gets the same decision.

    Args:
        classes: names of the decisions.
        rates: a row per known group.
        all_known: whether everyone's group is known.
    """
    who = "Everyone" if all_known else "Everyone whose group is known"
    return [
        f"{who} gets the decision {name!r}: the gap of 0 is trivial."
        for c, name in enumerate(classes)
        if rates and all(row[c] == 1 for row in rates)
    ]


@dataclass(frozen=True)
class Line:
    """Results of a method on the test nodes, as fractions.

    Example:
        >>> figures = {"accuracy": spread([0.78, 0.80, 0.79]), "dp": spread([0.01, 0.02, 0.03])}
        >>> line = Line("FMP", figures, seconds=1.5, splits=3)
        >>> [f"{key} {cell_text(interval)}" for key, interval in line.figures.items()]
        ['accuracy 79.0 [78.0, 80.0]', 'dp 2.0 [1.0, 3.0]']
    """

    name: str
    figures: Mapping[str, Interval]  # see :func:`spread`; of accuracy, dp, eo and auc
    seconds: float  # mean training time
    splits: int
    same_decision: float = math.nan  # largest share of one decision, on the split with the largest

    @property
    def is_constant(self) -> bool:
        """Whether nearly everybody gets the same decision on a split: its gap is trivial."""
        return self.same_decision >= NEARLY_ALL


def cell_text(value: Interval | float | str) -> str:
    """A cell of a table: an interval in points ("80.0 ± 1.2"), a number, or a text."""
    if not isinstance(value, Interval):
        return f"{value:.1f}" if isinstance(value, float) else str(value)
    if math.isnan(value.mean):
        return "n/a"
    mean, low, high = (f"{100 * number:.1f}" for number in value[:3])
    if math.isnan(value.low):
        return mean
    if value.n < MIN_SPLITS:
        return f"{mean} [{low}, {high}]"
    return f"{mean} ± {50 * (value.high - value.low):.1f}"


def spread(values: Sequence[float | None]) -> Interval:
    """Mean over splits with its 95 % interval, or with the range of fewer than five splits.

    Example:
        >>> spread([0.5, 0.625, 0.75])
        Interval(mean=0.625, low=0.5, high=0.75, n=3)
    """
    measured = [value for value in values if is_known(value)]
    interval = mean_interval(measured)
    if not 1 < interval.n < MIN_SPLITS:
        return interval
    return Interval(interval.mean, min(measured), max(measured), interval.n)


def summarise(records: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Average records (``name`` and a run's ``to_dict()``) by name, in order of appearance.

    Example:
        >>> run = {"test": {"accuracy": 0.8, "dp": 0.1, "eo": None, "auc": 0.9}, "seconds": 1.0}
        >>> [line] = summarise([{"name": "MLP", "run": run}])
        >>> cell_text(line.figures["accuracy"]), cell_text(line.figures["eo"])
        ('80.0', 'n/a')
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["name"], []).append(record["run"])
    lines = []
    for name, runs in groups.items():
        figures = {key: spread([run["test"][key] for run in runs]) for key in METRICS}
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        same = max_known([same_decision(run["test"]) for run in runs])
        lines.append(Line(name, figures, seconds, len(runs), same))
    return lines


def same_decision(test: Mapping[str, Any]) -> float:
    """Share of the most frequent decision in the record of an evaluation; nan without groups.

    Example:
        >>> groups = [{"count": 30, "rates": [0.9, 0.1]}, {"count": 10, "rates": [0.5, 0.5]}]
        >>> round(same_decision({"groups": groups}), 3)
        0.8
    """
    groups = [group for group in test.get("groups", []) if group["count"]]
    if not groups:
        return math.nan
    counts = np.array([group["count"] for group in groups], dtype=float)
    rates = np.array([group["rates"] for group in groups], dtype=float)
    return float((counts @ rates).max() / counts.sum())


def max_known(values: Iterable[float]) -> float:
    """The largest of the values that are known; nan if none is."""
    return max(filter(is_known, values), default=math.nan)


def constant_note(lines: Iterable[Line]) -> str:
    """What "(constant)" means in a table; empty if no row of it is marked."""
    if not any(line.is_constant for line in lines):
        return ""
    return (
        f"Constant: at least {100 * NEARLY_ALL:g} % of the people get the same decision on a "
        "split, so that a small gap is trivial."
    )


def over(splits: int) -> str:
    """Description of a table's figures, for its title.

    Example:
        >>> over(3)
        'mean [smallest, largest] of 3 splits'
        >>> over(10)
        'mean ± half of a 95 % interval over 10 splits'
    """
    if splits == 1:
        return "one split"
    if splits < MIN_SPLITS:
        return f"mean [smallest, largest] of {splits} splits"
    return f"mean ± half of a 95 % interval over {splits} splits"


@dataclass(frozen=True)
class Table:
    """Cells as text; ``bold`` has the (row, column) of the best cells of a column."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()

    def without(self, titles: Sequence[str]) -> Table:
        """Return the table without the columns of these titles."""
        columns = [j for j, title in enumerate(self.header) if title not in titles]
        bold = {(i, columns.index(j)) for i, j in self.bold if j in columns}
        rows = [[row[j] for j in columns] for row in self.rows]
        return Table(self.title, [self.header[j] for j in columns], rows, frozenset(bold))

    def lines(self, escape: Callable[[str], str], bold: str, ends: tuple[str, ...]) -> list[str]:
        """Header and rows as lines of markup; ``ends`` has their start, separator and end."""
        start, separator, end = ends
        rows = [[escape(text) for text in row] for row in (self.header, *self.rows)]
        for i, j in self.bold:
            rows[i + 1][j] = bold.format(rows[i + 1][j])
        return [f"{start}{separator.join(row)}{end}" for row in rows]


def best(values: Sequence[float], digits: int = 3, *, higher: bool = True) -> set[int]:
    """Positions of the best values, after rounding; ``nan`` is never best."""
    rounded = np.round(values, digits) * (1 if higher else -1)
    measured = rounded[~np.isnan(rounded)]
    return set(np.flatnonzero(rounded == measured.max()).tolist()) if len(measured) else set()


def of_columns(
    title: str,
    columns: Mapping[str, Sequence[Interval | float | str]],
    *,
    trivial: Collection[int] = (),
) -> Table:
    """Table of texts, numbers and intervals, with the best of each column of intervals in bold.

    ``trivial`` has the rows whose gaps are small because everybody gets the same decision.
    """
    bold: set[tuple[int, int]] = set()
    for j, (name, column) in enumerate(columns.items()):
        means = [cell.mean if isinstance(cell, Interval) else math.nan for cell in column]
        if name in LOWER_IS_BETTER:
            means = [math.nan if i in trivial else mean for i, mean in enumerate(means)]
        bold |= {(i, j) for i in best(means, higher=name not in LOWER_IS_BETTER)}
    rows = [list(map(cell_text, row)) for row in zip(*columns.values(), strict=True)]
    return Table(title, list(columns), rows, frozenset(bold))


def of_lines(title: str, lines: Sequence[Line]) -> Table:
    """Table of a data set: one row per method; see :func:`constant_note`."""
    columns: dict[str, Sequence[Interval | float | str]] = {
        "method": [f"{line.name} (constant)" if line.is_constant else line.name for line in lines],
        "splits": [str(line.splits) for line in lines],
    }
    columns |= {COLUMNS[key]: [line.figures[key] for line in lines] for key in METRICS}
    trivial = [i for i, line in enumerate(lines) if line.is_constant]
    return of_columns(title, columns | {"s": [line.seconds for line in lines]}, trivial=trivial)


def of_hypervolumes(title: str, values: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Table of one number per method and data set, in points: ``values[data][method]``."""
    methods = list(dict.fromkeys(name for by_method in values.values() for name in by_method))
    unknown = Interval(math.nan, math.nan, math.nan, 0)
    columns = {
        data: [by_method.get(name, unknown) for name in methods]
        for data, by_method in values.items()
    }
    return of_columns(title, {"method": methods, **columns})


def markdown(tables: Sequence[Table]) -> str:
    """Format tables as Markdown, each below its title; pandas needs another package for it."""
    parts = []
    for table in tables:
        lines = table.lines(lambda text: text.replace("|", "\\|"), "**{}**", ("| ", " | ", " |"))
        lines.insert(1, f"| --- |{' ---: |' * (len(table.header) - 1)}")
        heading = [f"### {table.title}", ""] if table.title else []
        parts.append("\n".join([*heading, *lines]) + "\n")
    return "\n".join(parts)


def to_markdown(lines: Sequence[Line]) -> str:
    """Markdown table of one data set's results, without a title.

    Example:
        >>> test = {"accuracy": 0.8, "dp": 0.1, "eo": 0.05, "auc": 0.9}
        >>> fair = {"accuracy": 0.79, "dp": 0.01, "eo": 0.04, "auc": 0.88}
        >>> lines = summarise(
        ...     {"name": name, "run": {"test": figures, "seconds": 1.0}}
        ...     for name, figures in {"MLP": test, "FMP": fair}.items()
        ... )
        >>> print(to_markdown(lines))
        | method | accuracy % | ΔDP | ΔEO | AUC | s |
        | --- | ---: | ---: | ---: | ---: | ---: |
        | MLP | **80.0** | 10.0 | 5.0 | **90.0** | 1.0 |
        | FMP | 79.0 | **1.0** | **4.0** | 88.0 | 1.0 |
    """
    return markdown([of_lines("", lines).without(["splits"])])


def latex(tables: Sequence[Table]) -> str:
    """Format tables as LaTeX ``tabular``; pandas' Styler has no row for a title."""
    parts = []
    for table in tables:
        width = len(table.header)
        header, *rows = table.lines(_escape, "\\textbf{{{}}}", ("", " & ", " \\\\"))
        title = f"\\multicolumn{{{width}}}{{l}}{{{_escape(table.title)}}} \\\\"
        lines = [f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}", "\\hline"]
        lines += [title, "\\hline"] if table.title else []
        lines += [header, "\\hline", *rows, "\\hline", "\\end{tabular}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _escape(text: str) -> str:
    return re.sub(r"λ\\_([fs])", r"$\\lambda_\1$", text.translate(LATEX_SYMBOLS))


def to_csv(tables: Mapping[str, Sequence[Line]]) -> str:
    """The results on each data set as CSV: fractions, with the ends of their intervals."""
    import pandas as pd

    rows = []
    for data, lines in tables.items():
        for line in lines:
            row = {"data": data, "method": line.name, "splits": line.splits}
            for key in METRICS:
                mean, low, high, _ = line.figures[key]
                row |= {key: mean, f"{key}_low": low, f"{key}_high": high}
            rows.append(row | {"seconds": line.seconds})
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6f"))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    first, *others = zip(*rows, strict=True)
    columns = [[text.ljust(max(map(len, first))) for text in first]]
    columns += [[text.rjust(max(map(len, column))) for text in column] for column in others]
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def to_html(title: str, tables: Sequence[Sequence[Sequence[str]]], notes: Sequence[str]) -> str:
    """A title, tables whose first row is the header, and notes, for a notebook; all escaped."""
    parts = [f"<p><strong>{html.escape(title)}</strong></p>"]
    for header, *rows in tables:
        body = [f"<tr><th>{'</th><th>'.join(map(html.escape, header))}</th></tr>"]
        for first, *others in rows:
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in others)
            body.append(f"<tr><th>{html.escape(first)}</th>{cells}</tr>")
        parts.append(f"<table>{''.join(body)}</table>")
    return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in notes)])


def rich_table(table: Table) -> RichTable:
    """Format a table for the terminal."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable
    from rich.text import Text

    title = escape(printable(table.title)) or None
    result = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    result.pad_edge = False
    for j, title in enumerate(table.header):
        # On a narrow terminal names and titles may wrap, numbers may not.
        width = max((len(row[j]) for row in table.rows if j), default=0)
        result.add_column(
            escape(printable(title)),
            justify="right" if j else "left",
            min_width=width,
            no_wrap=0 < len(title) <= width,
        )
    for i, row in enumerate(table.rows):
        styles = ["bold" if (i, j) in table.bold else "" for j in range(len(row))]
        result.add_row(*map(Text, map(printable, row), styles))
    return result


def to_rich(lines: Sequence[Line], title: str = "") -> RichTable:
    """Terminal table of one data set's results; 80 columns have no room for the AUC.

    Example:
        >>> from rich.console import Console
        >>> test = {"accuracy": 0.8, "dp": 0.1, "eo": 0.05, "auc": 0.9}
        >>> fair = {"accuracy": 0.79, "dp": 0.01, "eo": 0.04, "auc": 0.88}
        >>> lines = summarise(
        ...     {"name": name, "run": {"test": figures, "seconds": 1.0}}
        ...     for name, figures in {"MLP": test, "FMP": fair}.items()
        ... )
        >>> Console(width=80).print(to_rich(lines))
        <BLANKLINE>
         method   accuracy %    ΔDP   ΔEO     s
         ──────────────────────────────────────
         MLP            80.0   10.0   5.0   1.0
         FMP            79.0    1.0   4.0   1.0
        <BLANKLINE>
    """
    return rich_table(of_lines(title, lines).without(["AUC", "splits"]))


def write_records(records: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write ``records.jsonl``."""
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")
