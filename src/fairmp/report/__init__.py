"""Results as people read them: tables, figures, and one self-contained page."""

from fairmp.report.figures import tradeoff
from fairmp.report.page import Section, page
from fairmp.report.tables import COLUMNS, Line, over, summarise, to_markdown, to_rich

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
