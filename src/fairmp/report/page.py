"""One HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from fairmp._version import __version__


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        text: paragraphs of plain text.
        header: a table's column titles.
        rows: the table's rows; the first cell names the row.
        svg: a figure's markup, from :mod:`fairmp.report.figures`; it is not escaped.
        caption: what the figure or table shows.
        code: lines to type, shown as they are.
    """

    title: str
    text: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())
    svg: str = ""
    caption: str = ""
    code: str = ""


def page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """Put a page together; everything but figures is escaped.

    Example:
        >>> "&lt;b&gt;" in page("<b>", "", [])
        True
    """
    from jinja2 import Environment

    template = files("fairmp.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        title=title, summary=summary, sections=sections, version=__version__
    )
