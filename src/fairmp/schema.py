"""Check values read from JSON files against type hints."""

from __future__ import annotations

import dataclasses
import sys
import types
from contextlib import suppress
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fairmp.errors import shorten

MAX_INTEGER = 2**63  # what a tensor holds


def conform(value: Any, hint: Any, name: str) -> Any:
    """Return a JSON value as a type hint says it should be; raise ``ValueError`` if it is not.

    Lists become tuples where the hint says so, and objects dataclasses. Numbers must be finite.

    Example:
        >>> conform([1, 2.5], tuple[float, ...], "cuts")
        (1, 2.5)
        >>> conform("2", int | None, "patience")
        Traceback (most recent call last):
        ValueError: patience is '2', not int | None
    """
    origin, parameters = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for choice in parameters:
            with suppress(ValueError):
                return conform(value, choice, name)
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(conform(item, parameters[0], name) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {key: conform(item, parameters[1], str(key)) for key, item in value.items()}
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _as_dataclass(value, hint)
    elif _is_scalar(value, hint):
        return value
    expected = hint.__name__ if isinstance(hint, type) and not parameters else str(hint)
    raise ValueError(f"{name} is {shorten(repr(value), 60)}, not {shorten(expected)}")


def _as_dataclass(fields: dict[str, Any], kind: Any) -> Any:
    """Make a dataclass of an object; a field that is missing counts as None."""
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: conform(fields.get(name), hints[name], name) for name in names})


def _is_scalar(value: Any, hint: Any) -> bool:
    """Whether a value is of a plain type, one of some literals, or anything where that is taken."""
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return isinstance(value, str | int) and value in get_args(hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_INTEGER
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= sys.float_info.max
    return isinstance(hint, type) and isinstance(value, hint)
