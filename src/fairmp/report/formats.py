"""Tables in the formats people paste: Markdown, LaTeX, CSV, and the terminal's."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairmp.metrics import Interval
from fairmp.report.tables import COLUMNS, HEADERS, Line, cells

HIGHER = frozenset({"accuracy", "auc"})


@dataclass(frozen=True)
class Table:
    """Cells as text; ``bold`` has the (row, column) of those that are best in their column."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = field(default=frozenset())


def best(values: Sequence[float], digits: int = 3, *, higher: bool = True) -> set[int]:
    """Tell where the best values are, to the digits that are shown; ``nan`` is never best.

    Example:
        >>> sorted(best([0.8114, 0.8111, 0.75])), best([0.1, 0.02], higher=False)
        ([0, 1], {1})
    """
    rounded = [round(value, digits) for value in values]
    known = [value for value in rounded if not math.isnan(value)]
    if not known:
        return set()
    goal = max(known) if higher else min(known)
    return {i for i, value in enumerate(rounded) if value == goal}


def of_lines(title: str, lines: Sequence[Line]) -> Table:
    """Make a data set's table: a row a method, with the best of each column in bold."""
    marked = {
        (row, column)
        for column, key in enumerate(HEADERS, start=2)
        for row in best([line.figures[key].mean for line in lines], higher=key in HIGHER)
    }
    rows = [[line.name, str(line.splits), *cells(line)] for line in lines]
    header = ["method", "splits", *COLUMNS.values()]
    return Table(title, header, rows, frozenset(marked))


def of_hypervolumes(title: str, values: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Make a table of one number a method and data set, in points: ``values[data][method]``."""
    methods = list(dict.fromkeys(method for column in values.values() for method in column))
    none = Interval(math.nan, math.nan, math.nan, 0)
    columns = [[column.get(method, none) for method in methods] for column in values.values()]
    marked = {
        (row, 1 + k)
        for k, column in enumerate(columns)
        for row in best([interval.mean for interval in column])
    }
    rows = [
        [method, *(_interval(column[row]) for column in columns)]
        for row, method in enumerate(methods)
    ]
    return Table(title, ["method", *values], rows, frozenset(marked))


def markdown(tables: Sequence[Table]) -> str:
    """Write tables as Markdown, each under its title.

    Example:
        >>> table = Table("NBA", ["method", "ΔDP"], [["MLP", "3.0"]], frozenset({(0, 1)}))
        >>> print(markdown([table]))
        ### NBA
        <BLANKLINE>
        | method | ΔDP |
        | --- | ---: |
        | MLP | **3.0** |
        <BLANKLINE>
    """
    parts = []
    for table in tables:
        rows = [list(table.header), ["---", *["---:"] * (len(table.header) - 1)]]
        rows += [
            [f"**{text}**" if (i, j) in table.bold else text for j, text in enumerate(row)]
            for i, row in enumerate(table.rows)
        ]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        heading = [f"### {table.title}", ""] if table.title else []
        parts.append("\n".join([*heading, *lines]) + "\n")
    return "\n".join(parts)


def latex(tables: Sequence[Table]) -> str:
    r"""Write tables as LaTeX ``tabular`` that needs no package.

    Example:
        >>> print(latex([Table("", ["method", "ΔDP"], [["MLP", "3.0 ± 1"]], frozenset({(0, 1)}))]))
        \begin{tabular}{lr}
        \hline
        method & $\Delta$DP \\
        \hline
        MLP & \textbf{3.0 $\pm$ 1} \\
        \hline
        \end{tabular}
        <BLANKLINE>
    """
    parts = []
    for table in tables:
        width = len(table.header)
        lines = [f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}", "\\hline"]
        if table.title:
            lines += [f"\\multicolumn{{{width}}}{{l}}{{{_escaped(table.title)}}} \\\\", "\\hline"]
        lines += [" & ".join(map(_escaped, table.header)) + " \\\\", "\\hline"]
        for i, row in enumerate(table.rows):
            texts = [_escaped(text) for text in row]
            texts = [f"\\textbf{{{t}}}" if (i, j) in table.bold else t for j, t in enumerate(texts)]
            lines.append(" & ".join(texts) + " \\\\")
        parts.append("\n".join([*lines, "\\hline", "\\end{tabular}"]) + "\n")
    return "\n".join(parts)


def to_csv(tables: Mapping[str, Sequence[Line]]) -> str:
    """Write the numbers behind tables as CSV: fractions, with the ends of their intervals.

    Example:
        >>> to_csv({}).split(",")[:4]
        ['data', 'method', 'splits', 'accuracy']
    """
    ends = ("", "_low", "_high")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["data", "method", "splits", *(key + end for key in HEADERS for end in ends), "seconds"]
    )
    for data, lines in tables.items():
        for line in lines:
            numbers = [value for key in HEADERS for value in line.figures[key][:3]]
            texts = ["" if math.isnan(value) else f"{value:.6f}" for value in numbers]
            writer.writerow([data, line.name, line.splits, *texts, f"{line.seconds:.3f}"])
    return buffer.getvalue()


def rich_table(table: Table, *, leave_out: Sequence[str] = ()) -> Any:
    """Make a table for the terminal, without the columns named in ``leave_out``."""
    from rich import box
    from rich.table import Table as Rich
    from rich.text import Text

    shown = [j for j, title in enumerate(table.header) if title not in leave_out]
    result = Rich(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD)
    result.pad_edge = False
    for j in shown:
        # Names and titles may break into lines on a narrow terminal, a number may not.
        width = max((len(row[j]) for row in table.rows if j), default=0)
        result.add_column(table.header[j], justify="right" if j else "left", min_width=width)
    for i, row in enumerate(table.rows):
        result.add_row(*(Text(row[j], "bold" if (i, j) in table.bold else "") for j in shown))
    return result


def _interval(interval: Interval) -> str:
    if math.isnan(interval.mean):
        return "n/a"
    text = f"{100 * interval.mean:.1f}"
    if math.isnan(interval.low):
        return text
    return f"{text} ± {50 * (interval.high - interval.low):.1f}"


def _escaped(text: str) -> str:
    for symbol in "\\&%$#{}":
        text = text.replace(symbol, "\\textbackslash " if symbol == "\\" else f"\\{symbol}")
    text = text.replace("λ_f", "$\\lambda_f$").replace("λ_s", "$\\lambda_s$").replace("_", "\\_")
    # The underscore inside a formula is one.
    text = text.replace("$\\lambda\\_", "$\\lambda_")
    return text.replace("Δ", "$\\Delta$").replace("±", "$\\pm$").replace("−", "$-$")
