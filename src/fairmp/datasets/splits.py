"""Training, validation and test nodes, stratified by label and group."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_integer, plural
from fairmp.groups import most_likely_group

if TYPE_CHECKING:
    from torch_geometric.data import Data

    Values: TypeAlias = Tensor | np.ndarray
    Source: TypeAlias = Data | tuple[Values, Values]

FRACTIONS = (0.5, 0.25, 0.25)
MASKS = ("train_mask", "val_mask", "test_mask")


class Split(NamedTuple):
    """Three disjoint boolean masks over the nodes."""

    train: Tensor
    val: Tensor
    test: Tensor


def split(source: Source, *, seed: int = 0, fractions: Sequence[float] = FRACTIONS) -> Split:
    """Split the nodes whose label and group are both known, stratified by (label, group).

    The parts match ``fractions`` to one node, small strata do not all land in the same part, and
    every class and group is in the training part if it is large enough. scikit-learn's stratified
    splits do none of this, and our recorded results depend on these exact splits.

    Args:
        source: A graph with ``y`` and ``sens``, or the pair ``(y, sens)``; −1 is unknown. Groups
            may be probabilities (n×G): the most likely one counts.
        seed: The same seed gives the same split.
        fractions: Shares of training, validation and test nodes; a sum below 1 leaves nodes unused.

    Example:
        >>> y, sens = torch.tensor([0, 1] * 8 + [-1]), torch.tensor([0, 0, 1, 1] * 4 + [0])
        >>> [int(mask.sum()) for mask in split((y, sens), seed=3)]
        [8, 4, 4]
    """
    labels, groups = _labels_and_groups(source)
    shares = _part_shares(fractions)
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    y, sens = labels.cpu().numpy(), groups.cpu().numpy()
    known = np.flatnonzero((y >= 0) & (sens >= 0))
    if not len(known):
        problem = f"none of the {len(y)} nodes has both a known label and a known group"
        raise InputError("split", problem, "−1 means unknown, give y and sens from 0 up")
    totals = largest_remainder(len(known) * shares, len(known))
    if not totals[:3].all():
        problem = f"{len(known)} known nodes cannot fill three parts of {tuple(fractions)}"
        raise InputError("split", problem, "label more nodes or change fractions")
    rng = np.random.default_rng(seed)
    part = np.full(len(y), -1)
    part[known] = _assign(_strata(y[known], sens[known]), shares, totals, rng)
    _complete_training(part, known, y, sens, rng)
    return Split(*(torch.from_numpy(part == k).to(labels.device) for k in range(3)))


def _labels_and_groups(source: Source) -> tuple[Tensor, Tensor]:
    if not isinstance(source, tuple):
        for name in ("y", "sens"):
            if getattr(source, name, None) is None:
                raise InputError(f"data.{name}", "missing", "set it, with −1 for unknown")
        source = source.y, source.sens
    labels, groups = map(torch.as_tensor, source)
    groups = most_likely_group(groups)
    if labels.dim() != 1 or labels.shape != groups.shape:
        shapes = f"shape {tuple(groups.shape)}, but y has {tuple(labels.shape)}"
        raise InputError("sens", shapes, "give one label and one group per node")
    return labels, groups


def _part_shares(fractions: Sequence[float]) -> np.ndarray:
    """Shares of training, validation, test and unused nodes."""
    shares = np.asarray(fractions, dtype=float)
    if shares.shape != (3,) or not (shares > 0).all() or shares.sum() > 1 + 1e-9:
        problem = f"{tuple(fractions)} are not three positive shares with a sum of at most 1"
        raise InputError("fractions", problem, f"as in {FRACTIONS}: training, validation, test")
    return np.append(shares, max(0.0, 1 - shares.sum()))


def with_split(data: Data, *, seed: int = 0, fractions: Sequence[float] = FRACTIONS) -> Data:
    """Return a shallow copy of ``data`` with ``train_mask``, ``val_mask`` and ``test_mask``."""
    masks = split(data, seed=seed, fractions=fractions)
    result = copy.copy(data)
    result.train_mask, result.val_mask, result.test_mask = masks
    return result


def largest_remainder(quotas: np.ndarray, total: int) -> np.ndarray:
    """Round quotas to integers with the given sum, each within one of its quota."""
    # 1e-6: a quota that is an integer up to rounding errors counts as that integer.
    floors = np.floor(quotas + 1e-6).astype(np.int64)
    order = np.argsort(floors - quotas, kind="stable")
    floors[order[: total - int(floors.sum())]] += 1
    return floors


def _assign(
    strata: np.ndarray, shares: np.ndarray, totals: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Assign each node a part: the whole quotas of each stratum first, then the leftovers."""
    _, stratum, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    order = rng.permutation(len(strata))
    order = order[np.argsort(stratum[order], kind="stable")]
    whole = np.floor(sizes[:, None] * shares + 1e-9).astype(np.int64)

    # Along each stratum: its whole quotas, and −1 for each leftover node.
    runs = np.column_stack([whole, sizes - whole.sum(1)])
    parts = np.repeat(np.tile([0, 1, 2, 3, -1], len(sizes)), runs.reshape(-1))
    missing = totals - whole.sum(0)
    places = np.concatenate([(np.arange(m) + rng.random()) / max(m, 1) for m in missing])
    rotation = np.repeat(np.arange(4), missing)[np.argsort(places, kind="stable")]
    parts[parts < 0] = np.roll(rotation, int(rng.integers(len(rotation) + 1)))

    result = np.empty(len(strata), dtype=np.int64)
    result[order] = parts
    return result


def _complete_training(
    part: np.ndarray, known: np.ndarray, y: np.ndarray, sens: np.ndarray, rng: np.random.Generator
) -> None:
    """Swap nodes between parts, in place, until training has every class and every group."""
    for wanted in (y, sens):
        for value in np.setdiff1d(wanted[known], wanted[part == 0]):
            incoming = rng.permutation(known[(wanted[known] == value) & (part[known] != 0)])
            # One candidate per stratum is enough: its nodes are interchangeable.
            _, first = np.unique(_strata(y[incoming], sens[incoming]), return_index=True)
            for node in incoming[np.sort(first)]:
                dispensable = _dispensable(np.flatnonzero(part == 0), node, y, sens)
                if len(dispensable):
                    part[rng.choice(dispensable)] = part[node]
                    part[node] = 0
                    break


def _dispensable(training: np.ndarray, node: int, y: np.ndarray, sens: np.ndarray) -> np.ndarray:
    """Training nodes that can leave for ``node`` without taking a class or group with them."""
    nodes = np.append(training, node)
    spare = np.ones(len(nodes), dtype=bool)
    for values in (y[nodes], sens[nodes]):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        spare &= counts[inverse] > 1
    return training[spare[:-1]]


def _strata(y: np.ndarray, sens: np.ndarray) -> np.ndarray:
    return y.astype(np.int64) * (int(sens.max()) + 1) + sens


def check_groups(graph: Data, split_seeds: Iterable[int]) -> None:
    """Raise if a part of some split of your own tables has no node of a group."""
    encoding = getattr(graph, "encoding", None)
    if encoding is None:
        return
    for seed in split_seeds:
        parts = zip(("training", "validation", "test"), split(graph, seed=seed), strict=True)
        for (part, mask), (k, name) in product(parts, enumerate(graph.group_names)):
            if (graph.sens[mask] == k).any():
                continue
            columns = " × ".join(repr(column.column) for column in encoding.sensitive)
            count = plural(int(((graph.sens == k) & (graph.y >= 0)).sum()), "node")
            value = f"group {name!r} of {columns} has {count} with a known label and none among "
            hint = "merge it with another group in the table, or leave its cells empty (unknown)"
            raise InputError("sensitive", f"{value}the {part} nodes of split {seed}", hint)
