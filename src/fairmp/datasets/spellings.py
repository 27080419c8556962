"""Values that may be one value, spelled in several ways: encodings, spaces and case."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from fairmp.errors import plural, shortlist

MAX_NOTES = 5  # per column
_INVISIBLE = ("Cf", "Cc")  # categories of signs that are not seen


def spelling_notes(counts: Mapping[str, int], title: str) -> list[str]:
    r"""Name values of a column that differ in encoding, spaces or case alone, and count them.

    Example:
        >>> for counts in ({"a": 12, "A ": 3, "b": 9}, {"Jos\u00e9": 4, "Jose\u0301": 1}):
        ...     print(*spelling_notes(counts, "label 'name'"))
        label 'name': 'a' (12 nodes) and 'A ' (3 nodes) are kept apart, though spelled alike
        label 'name': 'José' twice, in two encodings (4 nodes and 1 node), kept apart
    """
    alike: dict[str, list[str]] = {}
    for text in counts:
        alike.setdefault(_folded(text), []).append(text)
    groups = [sorted(texts, key=lambda text: -counts[text]) for texts in alike.values()]
    notes = [f"{title}: {_describe(texts, counts)}" for texts in groups if len(texts) > 1]
    if len(notes) > MAX_NOTES:
        more = f"{title}: {len(notes) - MAX_NOTES} more values are spelled in several ways"
        notes = [*notes[:MAX_NOTES], more]
    return notes


def _folded(text: str) -> str:
    """A text without what people do not see or mean: encoding, spaces, case."""
    wide = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    seen = (sign for sign in wide if unicodedata.category(sign) not in _INVISIBLE or sign.isspace())
    return " ".join("".join(seen).split())


def _describe(texts: list[str], counts: Mapping[str, int]) -> str:
    nodes = [plural(counts[text], "node") for text in texts]
    if len({unicodedata.normalize("NFC", text) for text in texts}) == 1 and len(texts) == 2:
        name = unicodedata.normalize("NFC", texts[0])
        return f"{name!r} twice, in two encodings ({' and '.join(nodes)}), kept apart"
    named = [f"{_quoted(text)} ({count})" for text, count in zip(texts, nodes, strict=True)]
    last = f" and {named[-1]}" if len(named) <= MAX_NOTES else ""
    shown = ", ".join(named[:-1]) if last else shortlist(named, MAX_NOTES)
    return f"{shown}{last} are kept apart, though spelled alike"


def _quoted(text: str) -> str:
    """Quote a text; combining and invisible signs are shown as escapes."""
    plain = (s if unicodedata.category(s) not in ("Mn", "Cf") else ascii(s)[1:-1] for s in text)
    return repr(text) if repr(text) != f"'{text}'" else f"'{''.join(plain)}'"
