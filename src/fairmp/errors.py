"""The error for wrong input, and the checks that raise it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any, Self

from fairmp.secrets import without_password

# An argument mentioned in a hint: {target}, or {target=0.02} with a value.
_MENTION = re.compile(r"\{([A-Za-z]\w*)(?:=([^{}]*))?\}")
MAX_ARGUMENT, MAX_TEXT = 100, 400  # characters of a message's parts

Spelling = Callable[[str, str | None], str]
"""Writes an argument, with its value as Python code where one is mentioned."""


def python_spelling(name: str, value: str | None) -> str:
    """An argument as it is written in Python: ``mode``, or ``mode='batch'``."""
    return name if value is None else f"{name}={value}"


class InputError(ValueError):
    """A wrong input: one line that names the argument, its value and what to do.

    The program prints the message and exits with status 2; any other exception is a bug and keeps
    its traceback.

    A hint mentions other arguments in braces, ``{mode}`` or ``{mode='batch'}``. Python shows them
    as keyword arguments, the program as its options.

    Args:
        argument: name of the argument or column.
        value: the value that was given, or a phrase that describes it.
        hint: what to give instead.

    Example:
        >>> raise InputError("target", "1.5 is outside [0, 1]", "give the largest gap you accept")
        Traceback (most recent call last):
        fairmp.errors.InputError: target: 1.5 is outside [0, 1]; give the largest gap you accept
        >>> print(InputError("sens", "missing", "name it, or set {mode='batch'}"))
        sens: missing; name it, or set mode='batch'
    """

    def __init__(self, argument: str, value: object, hint: str = "") -> None:
        self.argument, self.value, self.hint = argument, value, hint
        super().__init__(argument, value, hint)

    def __str__(self) -> str:
        return self.message()

    def message(self, spelling: Spelling = python_spelling) -> str:
        """The line to print.

        Args:
            spelling: how arguments are written: as in Python, or as options of a command.
        """
        hint = _MENTION.sub(lambda mention: spelling(mention[1], mention[2]), self.hint)
        argument = self.argument
        if argument.isidentifier():
            argument = spelling(argument, None)
        value = without_password(str(self.value))  # before a password is cut in two
        message = f"{shorten(argument, MAX_ARGUMENT)}: {shorten(value, MAX_TEXT)}"
        if not hint:
            return message
        hint = shorten(without_password(hint), MAX_TEXT)
        if message.endswith("?"):
            return f"{message} {hint[0].upper()}{hint[1:]}"
        return f"{message}; {hint}"

    def rename(self, argument: str) -> Self:
        """Return the same error about another argument."""
        error = copy(self)
        error.argument = argument
        return error


def shorten(text: object, limit: int = 200) -> str:
    """Return a text on one line; the middle of long texts is elided."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit // 2]} … {line[-limit // 2 :]}"


def shortlist(names: Sequence[Any], limit: int = 12) -> str:
    """Join names with commas; count those beyond the limit."""
    omitted = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + omitted


def plural(count: int, noun: str) -> str:
    """A count with its noun; see :func:`plural_of`.

    Example:
        >>> plural(1, "row"), plural(1200, "row"), plural(2, "class")
        ('1 row', '1,200 rows', '2 classes')
    """
    return f"1 {noun}" if count == 1 else f"{count:,} {plural_of(noun)}"


def plural_of(noun: str) -> str:
    """The plural of a noun.

    Example:
        >>> plural_of("node"), plural_of("labelled person"), plural_of("category")
        ('nodes', 'labelled people', 'categories')
    """
    if noun.endswith("person"):
        return f"{noun.removesuffix('person')}people"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"


def check_choice(argument: str, value: str, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        names = ", ".join(map(repr, choices))
        raise InputError(argument, f"{value!r} is unknown", f"choose one of {names}")
    return value


def check_number(
    argument: str,
    value: object,
    hint: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: bool = False,
) -> float:
    """Return ``value`` as a float if it is finite and within [low, high] ((low, high] if above)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        number = float(value)
        if low <= number <= high and not (above and number == low):
            return number
    raise InputError(argument, f"{value!r} is not allowed", hint)


def check_integer(argument: str, value: object, hint: str, *, low: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(argument, f"{value!r} is not allowed", hint)
    return value


_HARMLESS = "\n\t\u200c\u200d"  # the last two join letters or keep them apart


def printable(text: str) -> str:
    """Write control characters as escapes, so that a terminal does not act on them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _HARMLESS else _escape(c) for c in text)


def _escape(character: str) -> str:
    # Spaces other than ours are not printable to Python, but harmless.
    if character.isspace() and unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode("ascii")
