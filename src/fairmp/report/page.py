"""A self-contained HTML page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from typing import Any, NamedTuple, Self

from fairmp._version import __version__


class Card(NamedTuple):
    """A key figure: label, value, and a note on its uncertainty."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a page: text, a figure, a table; all but the figure's markup is escaped."""

    title: str
    text: Sequence[str] = ()  # paragraphs
    header: Sequence[str] = ()  # column titles of a table
    rows: Sequence[Sequence[str]] = ()  # the first cell names the row
    svg: str = ""  # a figure, from fairmp.report.figures
    caption: str = ""
    code: str = ""  # preformatted text, such as a command
    bullets: Sequence[str] = ()  # a list below the paragraphs
    alt: str = ""  # text alternative of the figure; by default the caption, or the title
    more: str = ""  # preformatted details, collapsed, and omitted in print
    chapter: bool = False  # whether the heading is one level above the others

    def to_dict(self) -> dict[str, Any]:
        """Return the parts that are not empty, for JSON."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, part: Mapping[str, Any]) -> Self:
        """Make a section from its dict; unknown keys are ignored."""
        return cls(**{f.name: part[f.name] for f in fields(cls) if f.name in part})


def page(title: str, summary: str, sections: Sequence[Section], cards: Sequence[Card] = ()) -> str:
    """Render a page with a summary and key figures at the top; all but figures is escaped.

    Example:
        >>> "&lt;b&gt;" in page("<b>", "", [])
        True
    """
    from jinja2 import Environment

    template = files("fairmp.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    anchors: list[str] = []
    for section in sections:
        stem = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        names = [stem, *(f"{stem}-{count}" for count in range(2, 2 + len(sections)))]
        anchors.append(next(name for name in names if name not in anchors))
    header = {"title": title, "summary": summary, "cards": cards, "version": __version__}
    parts = list(zip(anchors, sections, strict=True))
    return environment.from_string(template).render(parts=parts, **header)
