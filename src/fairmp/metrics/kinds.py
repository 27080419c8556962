"""Tell probabilities from logits, in one place for the whole library."""

from __future__ import annotations

from typing import Any, Literal, get_args

from fairmp.errors import InputError, check_choice

Kind = Literal["auto", "logits", "probabilities"]
SUM_TOLERANCE = 0.005  # per class; probabilities rounded to two digits are off by as much each


def look_like_probabilities(values: Any) -> bool:
    """Whether every row of an n×C array or tensor lies in [0, 1] and sums to 1."""
    return not bool(_outside(values).any()) and not bool(_off(values).any())


def are_probabilities(values: Any, kind: str = "auto", *, argument: str = "predictions") -> bool:
    """Whether n×C scores are probabilities (True) or logits (False).

    With ``kind="auto"``, rows in [0, 1] that sum to 1 are probabilities and anything else is
    logits. Two cases are refused instead of guessed: rows in [0, 1] that do not sum to 1, and rows
    that are all one-hot, which could be decisions or logits. ``argument`` is named in errors.

    Example:
        >>> import numpy as np
        >>> are_probabilities(np.array([[0.2, 0.8]])), are_probabilities(np.array([[0.0, 3.0]]))
        (True, False)
    """
    check_choice("kind", kind, get_args(Kind))
    outside = _outside(values)
    if kind == "logits" or (kind == "auto" and bool(outside.any())):
        return False
    if bool(outside.any()):
        row = _first(outside.any(1))
        value = f"{float(values[row][outside[row]][0]):g} in row {row} is not a probability"
        raise InputError(argument, value, "give numbers in [0, 1], or kind='logits'")
    off = _off(values)
    if bool(off.any()):
        row = _first(off)
        value = f"row {row} lies in [0, 1] and sums to {float(values[row].sum()):.4g}"
        hint = "normalise probabilities so that they sum to 1, or give kind='logits'"
        raise InputError(argument, value, hint)
    one_hot = ((values == 0) | (values == 1)).all(1)
    constant = (values == values[:, :1]).all(1)
    boolean = str(values.dtype).endswith("bool")
    if kind == "auto" and not boolean and bool(one_hot.any()) and bool((one_hot | constant).all()):
        value = f"every row of {argument} is one-hot, which fits decisions and logits"
        raise InputError("kind", value, "give kind='probabilities' or kind='logits'")
    return True


def _outside(values: Any) -> Any:
    return ~((values >= 0) & (values <= 1))


def _off(values: Any) -> Any:
    return abs(values.sum(1) - 1) > SUM_TOLERANCE * values.shape[1]


def _first(mask: Any) -> int:
    return int(mask.nonzero()[0][0])
