"""Results for people: tables, figures, and a self-contained HTML report."""

from fairmp.report.figures import tradeoff
from fairmp.report.formats import to_markdown, to_rich
from fairmp.report.page import Section, page
from fairmp.report.tables import COLUMNS, Line, over, summarise

__all__ = [
    "COLUMNS",
    "Line",
    "Section",
    "over",
    "page",
    "summarise",
    "to_markdown",
    "to_rich",
    "tradeoff",
]
