"""Results for people: text, tables, figures, and a self-contained HTML report."""

from fairmp.report.content import Document, Point, Section
from fairmp.report.document import page
from fairmp.report.figures import tradeoff
from fairmp.report.formats import COLUMNS, Line, over, summarise, to_markdown, to_rich

__all__ = ["COLUMNS", "Document", "Line", "Point", "Section", "over", "page", "summarise"]
__all__ += ["to_markdown", "to_rich", "tradeoff"]
