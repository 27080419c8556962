"""The error for wrong input, and the checks that raise it."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

# An argument mentioned in a message: {target}, or {target=0.02} with a value.
_MENTION = re.compile(r"\{([a-z]\w*)(?:=([^{}]*))?\}")


class InputError(ValueError):
    """A wrong input: one line that names the argument, its value and what to do.

    The program prints the message and exits with status 2; any other exception is a bug and keeps
    its traceback.

    A hint mentions other arguments in braces, ``{mode}`` or ``{mode='batch'}``. Python shows them
    as they are called there; the program shows its options (:meth:`message`).

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

    def message(self, spell: Callable[[str, str | None], str] | None = None) -> str:
        """The line to print; ``spell`` writes an argument, with its value if one is mentioned."""
        spell = spell or (lambda name, value: name if value is None else f"{name}={value}")
        hint = _MENTION.sub(lambda mention: spell(mention[1], mention[2]), self.hint)
        hint = f"; {shorten(hint, 400)}" if hint else ""
        argument = spell(self.argument, None) if self.argument.isidentifier() else self.argument
        return f"{shorten(argument, 100)}: {shorten(self.value, 400)}{hint}"

    def rename(self, names: Mapping[str, str]) -> Self:
        """Return the same error about another argument: the option a user typed, say."""
        return type(self)(names.get(self.argument, self.argument), self.value, self.hint)


def shorten(text: object, limit: int = 200) -> str:
    """Return a text on one line; the middle of long texts is elided."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit // 2]} … {line[-limit // 2 :]}"


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
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and math.isfinite(value) and low <= value <= high and not (above and value == low):  # type: ignore[arg-type,operator]
        return float(value)  # type: ignore[arg-type]
    raise InputError(argument, f"{value!r} is not allowed", hint)


def check_integer(argument: str, value: object, hint: str, *, low: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InputError(argument, f"{value!r} is not allowed", hint)
    return value


def conform(value: Any, kind: Any, name: str) -> Any:
    """Return a JSON value as a type hint says it should be; raise ``ValueError`` if it is not.

    Lists become tuples where the hint says so, and objects dataclasses. Numbers must be finite.

    Example:
        >>> conform([1, 2.5], tuple[float, ...], "cuts")
        (1, 2.5)
        >>> conform("2", int | None, "patience")
        Traceback (most recent call last):
        ValueError: patience is '2', not int | None
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        for one in inner:
            with suppress(ValueError):
                return conform(value, one, name)
    elif origin is Literal:
        if isinstance(value, str | int) and value in inner:
            return value
    elif origin in (tuple, list):
        if isinstance(value, list | tuple):
            return origin(conform(one, inner[0], name) for one in value)
    elif origin is dict:
        if isinstance(value, dict):
            return {key: conform(one, inner[1], str(key)) for key, one in value.items()}
    elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, dict):
            hints = get_type_hints(kind)
            names = [field.name for field in dataclasses.fields(kind)]
            return kind(**{own: conform(value.get(own), hints[own], own) for own in names})
    elif kind in (int, float):
        number = isinstance(value, int | kind) and not isinstance(value, bool)
        if number and (abs(value) < 2**63 if kind is int else math.isfinite(value)):
            return value
    elif isinstance(value, kind):
        return value
    hint = kind.__name__ if isinstance(kind, type) and not inner else str(kind)
    raise ValueError(f"{name} is {shorten(repr(value), 60)}, not {shorten(hint)}")


def shortlist(names: Sequence[Any], limit: int = 12) -> str:
    """Join names with commas; those beyond the limit are counted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more


def plural(count: int, noun: str) -> str:
    """A count with its noun; the plural of nouns in y, s and x is formed as well.

    Example:
        >>> plural(1, "row"), plural(1200, "row"), plural(2, "class")
        ('1 row', '1,200 rows', '2 classes')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"
