"""Predictions as people hold them: logits or probabilities, of torch, numpy or pandas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.kernels import softmax


@dataclass(frozen=True)
class Predictions:
    """Predictions read into logits, and the way back to what was given.

    Attributes:
        given: what the caller gave.
        values: its numbers (n×C; two columns for a single one).
        logits: the same as logits (n×C).
        probabilities: whether they were probabilities.
        single: whether they were the probability of class 1 alone.
    """

    given: Any
    values: Tensor
    logits: Tensor
    probabilities: bool
    single: bool

    @property
    def proba(self) -> Tensor:
        """The probabilities (n×C)."""
        return self.values if self.probabilities else softmax(self.values)

    def mended(self, logits: Tensor) -> Tensor:
        """Numbers of the given kind for mended logits (n×C); rows that did not move stay as given.

        Example:
            >>> found = read([0.25, 0.5])
            >>> found.mended(found.logits).tolist()
            [[0.75, 0.25], [0.5, 0.5]]
        """
        logits = logits.to(self.values)
        if not self.probabilities:
            return logits
        moved = (logits != self.logits).any(1, keepdim=True)
        return torch.where(moved, softmax(logits), self.values)

    def like(self, values: Tensor) -> Any:
        """Numbers (n×C) as what was given: its kind, its type, its index and its columns."""
        return _like(self.given, values[:, 1] if self.single else values)


def read(predictions: Any) -> Predictions:
    """Read n×C logits or probabilities, or n probabilities of class 1.

    Rows of numbers in [0, 1] that sum to 1 are probabilities, and so is a single column.

    Raises:
        InputError: If they are neither, or not finite; it names the row.

    Example:
        >>> read(np.array([[0.25, 0.75]])).probabilities, read([[0.0, 3.0]]).probabilities
        (True, False)
    """
    values = _tensor(predictions)
    single = values.dim() == 1
    if values.dim() not in (1, 2) or not values.numel() or (not single and values.size(1) < 2):
        raise InputError(
            "predictions",
            f"shape {tuple(values.shape)} is neither n×C with two classes or more nor n "
            "probabilities of class 1",
        )
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values.view(len(values), -1))).any(1).nonzero()[0])
        raise InputError("predictions", f"row {row} is not finite", "fill or drop it first")
    if single:
        _check_single(values)
        values = torch.stack([1 - values, values], 1)
    probabilities = single or _are_probabilities(values)
    logits = values.clamp_min(torch.finfo(values.dtype).tiny).log() if probabilities else values
    return Predictions(predictions, values, logits, probabilities, single)


def check_aligned(predictions: Any, **others: Any) -> None:
    """Refuse pandas objects whose rows are not those of the predictions, in the same order.

    Values are paired by position; where both sides say whose each row is, they must agree. An index
    that only counts the rows says nothing, unless the other has the same numbers in another order.

    Example:
        >>> import pandas as pd
        >>> p = pd.Series([0.2, 0.9])
        >>> check_aligned(p, sens=pd.Series(["a", "b"], index=[1, 0]))
        Traceback (most recent call last):
        fairmp.errors.InputError: sens: its index is not that of the predictions; ...
    """
    if not hasattr(predictions, "iloc"):
        return
    rows = predictions.index
    for name, given in others.items():
        for one in given.values() if isinstance(given, dict) else [given]:
            if not hasattr(one, "iloc") or one.index.equals(rows) or len(one) != len(rows):
                continue
            counted = any(
                index.equals(type(index)(range(len(rows)))) for index in (rows, one.index)
            )
            if not counted or one.index.isin(rows).all():
                raise InputError(
                    name,
                    "its index is not that of the predictions",
                    f"give {name}.reindex(predictions.index), or {name}.to_numpy() if the rows "
                    "are in the same order",
                )


def _tensor(predictions: Any) -> Tensor:
    if isinstance(predictions, Tensor):
        values = predictions.detach()
    else:
        try:
            values = torch.from_numpy(np.array(predictions, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(
                "predictions",
                f"{type(predictions).__name__} with values that are not numbers",
                "give logits or probabilities",
            ) from None
    return values if values.dtype in (torch.float32, torch.float64) else values.double()


def _check_single(values: Tensor) -> None:
    wrong = ~((values >= 0) & (values <= 1))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            "predictions",
            f"{values[row].item():g} in row {row} is no probability",
            "a single column must be the probability of class 1, give logits as n×2",
        )


def _are_probabilities(values: Tensor) -> bool:
    if bool((values < 0).any()) or bool((values > 1).any()):
        return False
    total = values.sum(1)
    wrong = (total - 1).abs() > 1e-3
    if not bool(wrong.any()):
        return True
    row = int(wrong.nonzero()[0])
    raise InputError(
        "predictions",
        f"row {row} lies in [0, 1] and sums to {total[row].item():.4g}",
        "normalise probabilities to sum to 1, or give logits",
    )


def _like(given: Any, result: Tensor) -> Any:
    if isinstance(given, Tensor):
        return result.to(given.dtype) if given.is_floating_point() else result
    values = result.cpu().numpy()
    if isinstance(given, np.ndarray) and np.issubdtype(given.dtype, np.floating):
        values = values.astype(given.dtype)
    if hasattr(given, "iloc"):  # a pandas object, without importing pandas for it
        return (
            type(given)(values, index=given.index, name=given.name)
            if values.ndim == 1
            else type(given)(values, index=given.index, columns=given.columns)
        )
    return values
