"""Formats of a table: Markdown, LaTeX, CSV and terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairmp.metrics import Interval
from fairmp.report.tables import COLUMNS, METRICS, Line, cells, interval_cell, results

HIGHER_IS_BETTER = frozenset({"accuracy", "auc"})


@dataclass(frozen=True)
class Table:
    """Cells as text; ``bold`` has the (row, column) of the best cells of a column."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = field(default=frozenset())

    def without(self, titles: Sequence[str]) -> Table:
        """Return the table without the columns of these titles."""
        kept = [j for j, title in enumerate(self.header) if title not in titles]
        bold = {(i, kept.index(j)) for i, j in self.bold if j in kept}
        rows = [[row[j] for j in kept] for row in self.rows]
        return Table(self.title, [self.header[j] for j in kept], rows, frozenset(bold))


def best(values: Sequence[float], digits: int = 3, *, higher: bool = True) -> set[int]:
    """Positions of the best values, after rounding; ``nan`` is never best.

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
    """Table of a data set: one row per method, with the best of each column in bold."""
    bold = {
        (row, column)
        for column, key in enumerate(METRICS, start=2)
        for row in best([line.figures[key].mean for line in lines], higher=key in HIGHER_IS_BETTER)
    }
    rows = [[line.name, str(line.splits), *cells(line)] for line in lines]
    return Table(title, ["method", "splits", *COLUMNS.values()], rows, frozenset(bold))


def of_hypervolumes(title: str, values: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Table of one number per method and data set, in points: ``values[data][method]``."""
    methods = list(dict.fromkeys(method for column in values.values() for method in column))
    unknown = Interval(math.nan, math.nan, math.nan, 0)
    columns = [[column.get(method, unknown) for method in methods] for column in values.values()]
    bold = {
        (row, k)
        for k, column in enumerate(columns, start=1)
        for row in best([interval.mean for interval in column])
    }
    rows = [
        [method, *(interval_cell(column[row]) for column in columns)]
        for row, method in enumerate(methods)
    ]
    return Table(title, ["method", *values], rows, frozenset(bold))


def markdown(tables: Sequence[Table]) -> str:
    """Format tables as Markdown, each below its title.

    Written here because pandas needs another package, tabulate, for it.

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


def to_markdown(lines: Sequence[Line]) -> str:
    """Markdown table of one data set's results, without a title."""
    return markdown([of_lines("", lines).without(["splits"])])


def latex(tables: Sequence[Table]) -> str:
    r"""Format tables as LaTeX ``tabular`` that needs no package.

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
    # By hand: pandas' Styler needs unique column names and has no row for a title.
    for table in tables:
        width = len(table.header)
        lines = [f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}", "\\hline"]
        if table.title:
            lines += [f"\\multicolumn{{{width}}}{{l}}{{{_escape(table.title)}}} \\\\", "\\hline"]
        lines += [" & ".join(map(_escape, table.header)) + " \\\\", "\\hline"]
        for i, row in enumerate(table.rows):
            texts = [_escape(text) for text in row]
            texts = [f"\\textbf{{{t}}}" if (i, j) in table.bold else t for j, t in enumerate(texts)]
            lines.append(" & ".join(texts) + " \\\\")
        parts.append("\n".join([*lines, "\\hline", "\\end{tabular}"]) + "\n")
    return "\n".join(parts)


def _escape(text: str) -> str:
    for symbol in "\\&%$#{}":
        text = text.replace(symbol, "\\textbackslash " if symbol == "\\" else f"\\{symbol}")
    text = text.replace("λ_f", "$\\lambda_f$").replace("λ_s", "$\\lambda_s$").replace("_", "\\_")
    # Restore the underscore inside a formula.
    text = text.replace("$\\lambda\\_", "$\\lambda_")
    return text.replace("Δ", "$\\Delta$").replace("±", "$\\pm$").replace("−", "$-$")


def to_csv(tables: Mapping[str, Sequence[Line]]) -> str:
    """The numbers of tables as CSV: fractions, with the ends of their intervals."""
    return str(results(tables).to_csv(index=False, float_format="%.6f"))


def rich_table(table: Table, *, leave_out: Sequence[str] = ()) -> Any:
    """Format a table for the terminal, without the columns named in ``leave_out``."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = table.without(leave_out)
    result = RichTable(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD)
    result.pad_edge = False
    for j, title in enumerate(table.header):
        # On a narrow terminal names and titles may wrap, numbers may not.
        width = max((len(row[j]) for row in table.rows if j), default=0)
        result.add_column(title, justify="right" if j else "left", min_width=width)
    for i, row in enumerate(table.rows):
        cells = (Text(cell, "bold" if (i, j) in table.bold else "") for j, cell in enumerate(row))
        result.add_row(*cells)
    return result


def to_rich(lines: Sequence[Line], title: str = "") -> Any:
    """Terminal table of one data set's results; 80 columns have no room for the AUC."""
    return rich_table(of_lines(title, lines), leave_out=("AUC", "splits"))
