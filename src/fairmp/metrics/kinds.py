"""Checks of what is measured: probabilities or logits, codes, weights and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_choice

Array: TypeAlias = Tensor | np.ndarray | Sequence
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


def as_array(values: Array, name: str) -> np.ndarray:
    """An array of numbers, checked."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(name, "not an array of numbers", "give a tensor or an array")
    return array


def integers(
    values: Array, name: str, n: int | None, limit: int | None = None, why: str = ""
) -> np.ndarray:
    """Codes of classes or groups, checked."""
    array = as_array(values, name)
    if array.ndim != 1 or (n is not None and len(array) != n):
        wanted = "one value per node" if n is None else f"one value for each of {n} nodes"
        raise InputError(name, f"shape {array.shape}", f"give {wanted}")
    least = 0 if name == "pred" else -1
    wrong = array[~(np.isfinite(array) & (array >= least) & (array == np.trunc(array)))]
    if len(wrong):
        hint = f"give integers from {least} up"
        raise InputError(name, f"{wrong[0]} is not a class or group", hint)
    result = array.astype(np.int64)
    if limit is not None and result.max(initial=0) >= limit:
        raise InputError(name, f"{result.max()} is not below {limit}", f"give {why}")
    return result


def weights(values: Array | None, n: int) -> np.ndarray:
    """Weights of n nodes, 1 by default, checked."""
    if values is None:
        return np.ones(n)
    array = as_array(values, "sample_weight").astype(float)
    if array.shape != (n,):
        raise InputError("sample_weight", f"shape {array.shape}", f"give one for each of {n} nodes")
    if not (np.isfinite(array) & (array >= 0)).all() or not array.any():
        hint = "give finite numbers of 0 or more"
        raise InputError("sample_weight", "some are negative or nan, or all are 0", hint)
    return array


def boolean_mask(mask: Array | None, n: int, name: str = "mask") -> np.ndarray:
    """A mask of n nodes, all by default, checked."""
    keep = np.ones(n, dtype=bool) if mask is None else as_array(mask, name).copy()
    if keep.dtype != bool or keep.shape != (n,):
        raise InputError(name, f"{keep.dtype} of shape {keep.shape}", f"give {n} booleans")
    if not keep.any():
        raise InputError(name, f"none of {n} nodes is in it", "choose at least one")
    return keep
