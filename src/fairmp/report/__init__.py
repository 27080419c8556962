"""Results for people: tables, figures, and a self-contained HTML report."""

from fairmp.report.document import page
from fairmp.report.figures import tradeoff
from fairmp.report.formats import COLUMNS, Line, over, summarise, to_markdown, to_rich
from fairmp.report.sections import Section

__all__ = ["COLUMNS", "Line", "Section", "over", "page", "summarise"]
__all__ += ["to_markdown", "to_rich", "tradeoff"]
