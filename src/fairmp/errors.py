"""The error for wrong input, and the checks that raise it."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """A wrong input: one line that names the argument, its value and what to do.

    The program prints the message and exits with status 2; any other exception is a bug and keeps
    its traceback.

    Args:
        argument: name of the argument, option or column.
        value: the value that was given, or a phrase that describes it.
        hint: what to give instead.

    Example:
        >>> raise InputError("target", "1.5 is outside [0, 1]", "give the largest gap you accept")
        Traceback (most recent call last):
        fairmp.errors.InputError: target: 1.5 is outside [0, 1]; give the largest gap you accept
    """

    def __init__(self, argument: str, value: object, hint: str = "") -> None:
        self.argument, self.value, self.hint = argument, value, hint
        super().__init__(argument, value, hint)

    def __str__(self) -> str:
        hint = f"; {shorten(self.hint, 400)}" if self.hint else ""
        return f"{shorten(self.argument, 100)}: {shorten(self.value, 400)}{hint}"

    def rename(self, names: Mapping[str, str]) -> Self:
        """Return the same error about another argument: the option a user typed, say."""
        return type(self)(names.get(self.argument, self.argument), self.value, self.hint)


def shorten(text: object, limit: int = 200) -> str:
    """Return a text on one line, without its middle where it is too long to be read."""
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
