"""One HTML page that needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from fairmp._version import __version__


@dataclass(frozen=True)
class Card:
    """A figure worth a glance: what it is, its value, and how sure it is."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        text: paragraphs of plain text.
        bullets: short points, below the paragraphs.
        header: a table's column titles.
        rows: the table's rows; the first cell names the row.
        svg: a figure's markup, from :mod:`fairmp.report.figures`; it is not escaped.
        alt: what the figure shows, for who can not see it; by default the caption, or the title.
        caption: what the figure or table shows.
        code: lines to type, shown as they are.
        more: lines few will want, such as a whole setting; folded, and left out in print.
        chapter: whether this is the heading of what follows rather than one part of it.
    """

    title: str
    text: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())
    svg: str = ""
    caption: str = ""
    code: str = ""
    bullets: Sequence[str] = ()
    alt: str = ""
    more: str = ""
    chapter: bool = False


def page(title: str, summary: str, sections: Sequence[Section], cards: Sequence[Card] = ()) -> str:
    """Put a page together; everything but figures is escaped.

    Args:
        title: of the page.
        summary: the most important of it, in a sentence or two.
        sections: its parts.
        cards: figures to show at the top.

    Example:
        >>> "&lt;b&gt;" in page("<b>", "", [])
        True
    """
    from jinja2 import Environment

    template = files("fairmp.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    anchors = _anchors([section.title for section in sections])
    return environment.from_string(template).render(
        title=title,
        summary=summary,
        parts=list(zip(anchors, sections, strict=True)),
        cards=cards,
        version=__version__,
    )


def _anchors(titles: Sequence[str]) -> list[str]:
    """A name for each heading that can stand behind a #, each its own."""
    found: list[str] = []
    for title in titles:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "part"
        name, count = stem, 1
        while name in found:
            count += 1
            name = f"{stem}-{count}"
        found.append(name)
    return found
