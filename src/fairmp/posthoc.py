"""Mend the predictions of any model, without training it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.propagation import FMP


def debias(
    predictions: Any,
    sens: Any,
    *,
    target: float = 0.0,
    edge_index: Tensor | None = None,
    population: Any = None,
    sharpness: float = 1.0,
    K: int = 5,
    lambda_s: float = 1.0,
) -> Any:
    r"""Move predictions as little as possible until the groups are no further apart than asked.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target}

    The result is a shift of each group's logits (:func:`fairmp.solvers.projection`), and the gap of
    its mean probabilities is within ``target`` to 1e-4 on the population. The group of a node must
    be known for its prediction to be mended; a node of unknown group (−1) is left alone.

    Args:
        predictions: n×C logits or probabilities, or for two classes n probabilities of class 1; a
            torch tensor, a numpy array, or a pandas DataFrame or Series. Rows that are not negative
            and sum to 1 (or single numbers in [0, 1]) are taken for probabilities.
        sens: group of each node (n; −1 unknown), or probabilities of groups (n×G).
        target: the largest gap accepted, 0.02 for two points.
        edge_index: a graph (2×E); with it, predictions are also smoothed over neighbours.
        population: nodes whose gap is closed (n, bool); all of known group by default.
        sharpness: τ; small, such as 0.1, to close the gap of decisions rather than probabilities.
        K: propagation steps, with a graph.
        lambda_s: strength of the smoothing, with a graph.

    Returns:
        Logits for logits and probabilities for probabilities, of the kind that was given.

    Example:
        >>> p = np.array([0.2, 0.4, 0.6, 0.9])
        >>> mended = debias(p, [0, 0, 1, 1], target=0.1)
        >>> round(float(mended[2:].mean() - mended[:2].mean()), 4)
        0.1
    """
    values = _tensor(predictions)
    single = values.dim() == 1
    if single:
        _check_single(values)
        values = torch.stack([1 - values, values], 1)
    if values.dim() != 2 or values.size(1) < 2:
        raise InputError(
            f"predictions: shape {tuple(values.shape)} is neither n×C with two classes or more nor "
            "n probabilities of class 1"
        )
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).any(1).nonzero()[0])
        raise InputError(f"predictions: row {row} is not finite; fill or drop it first")
    probabilities = single or _are_probabilities(values)
    logits = values.clamp_min(torch.finfo(values.dtype).tiny).log() if probabilities else values

    smoothed = edge_index is not None
    layer = FMP(K if smoothed else 1, lambda_s if smoothed else 0.0, target=target)
    edges = edge_index if edge_index is not None else torch.empty(2, 0, dtype=torch.int64)
    inside = None if population is None else torch.as_tensor(np.asarray(population, dtype=bool))
    with torch.no_grad():
        mended = layer(
            logits, edges.to(logits.device), _groups(sens), inside, sharpness=_positive(sharpness)
        )
    if probabilities:
        mended = mended.softmax(1)
    return _like(predictions, mended[:, 1] if single else mended)


def _tensor(predictions: Any) -> Tensor:
    if isinstance(predictions, Tensor):
        values = predictions.detach()
    else:
        try:
            values = torch.from_numpy(np.array(predictions, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(
                f"predictions: {type(predictions).__name__} with values that are not numbers; give "
                "logits or probabilities"
            ) from None
    return values if values.dtype in (torch.float32, torch.float64) else values.double()


def _groups(sens: Any) -> Tensor:
    return sens if isinstance(sens, Tensor) else torch.from_numpy(np.array(sens))


def _check_single(values: Tensor) -> None:
    wrong = ~((values >= 0) & (values <= 1))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InputError(
            f"predictions: {values[row].item():g} in row {row} is no probability; a single column "
            "must be the probability of class 1, give logits as n×2"
        )


def _are_probabilities(values: Tensor) -> bool:
    if bool((values < 0).any()) or bool((values > 1).any()):
        return False
    total = values.sum(1)
    if bool(((total - 1).abs() <= 1e-3).all()):
        return True
    row = int(((total - 1).abs() > 1e-3).nonzero()[0])
    raise InputError(
        f"predictions: row {row} lies in [0, 1] and sums to {total[row].item():.4g}; normalise "
        "probabilities to sum to 1, or give logits"
    )


def _positive(sharpness: float) -> float:
    return FMP(sharpness=sharpness).sharpness


def _like(given: Any, result: Tensor) -> Any:
    if isinstance(given, Tensor):
        return result.to(given.dtype) if given.is_floating_point() else result
    values = result.numpy()
    if isinstance(given, np.ndarray) and np.issubdtype(given.dtype, np.floating):
        values = values.astype(given.dtype)
    if hasattr(given, "iloc"):  # a pandas object, without importing pandas for it
        return (
            type(given)(values, index=given.index, name=given.name)
            if values.ndim == 1
            else type(given)(values, index=given.index, columns=given.columns)
        )
    return values
