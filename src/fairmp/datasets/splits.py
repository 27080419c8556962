"""Splits, stratified by label and group, and checks of the graphs they are made of."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.errors import InputError, check_integer, plural, shortlist
from fairmp.groups import most_likely_group

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

    Labelled nodes of unknown group are training nodes: their labels count, and gaps are measured
    between known groups.

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
    known_nodes = np.flatnonzero((y >= 0) & (sens >= 0))
    if not len(known_nodes):
        problem = f"none of the {len(y)} nodes has both a known label and a known group"
        raise InputError("split", problem, "−1 means unknown, give y and sens from 0 up")
    totals = largest_remainder(len(known_nodes) * shares, len(known_nodes))
    if not totals[:3].all():
        problem = f"{len(known_nodes)} known nodes cannot fill three parts of {tuple(fractions)}"
        raise InputError("split", problem, "label more nodes or change fractions")
    rng = np.random.default_rng(seed)
    part = np.full(len(y), -1)
    part[known_nodes] = _assign(_strata(y[known_nodes], sens[known_nodes]), shares, totals, rng)
    _complete_training(part, known_nodes, y, sens, rng)
    part[(y >= 0) & (sens < 0)] = 0
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
    """Return a shallow copy of ``data`` with ``train_mask``, ``val_mask`` and ``test_mask``.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = with_split(social_network(n=400, average_degree=5), seed=1)
        >>> [int(data[part].sum()) for part in ("train_mask", "val_mask", "test_mask")]
        [200, 100, 100]
    """
    masks = split(data, seed=seed, fractions=fractions)
    result = copy.copy(data)
    result.train_mask, result.val_mask, result.test_mask = masks
    return result


def cut_folds(data: Data, nodes: Tensor, folds: int, *, seed: int = 0) -> Tensor:
    """Cut some labelled nodes into folds, stratified by (group, label); −1 for all others (n).

    Every fold has a node of each group: there are as many folds as the smallest group has nodes, if
    that is less.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=400, average_degree=5)
        >>> fold = cut_folds(data, data.train_mask, 4)
        >>> [int((fold == k).sum()) for k in (-1, 0, 1, 2, 3)]
        [200, 50, 50, 50, 50]
    """
    group = most_likely_group(data.sens).cpu().numpy()
    chosen = np.flatnonzero(nodes.cpu().numpy())
    sizes = np.bincount(group[chosen][group[chosen] >= 0])
    folds = max(min(folds, int(sizes[sizes > 0].min(initial=len(chosen)))), 1)
    order = np.random.default_rng(seed).permutation(chosen)
    order = order[np.lexsort((data.y.cpu().numpy()[order], group[order]))]
    result = np.full(len(group), -1)
    result[order] = np.arange(len(order)) % folds
    return torch.from_numpy(result).to(nodes.device)


def largest_remainder(quotas: np.ndarray, total: int) -> np.ndarray:
    """Round quotas to integers with the given sum, each within one of its quota.

    Example:
        >>> largest_remainder(np.array([1.5, 2.2, 3.3]), 7)
        array([2, 2, 3])
    """
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
    part: np.ndarray,
    known_nodes: np.ndarray,
    y: np.ndarray,
    sens: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Swap nodes between parts, in place, until training has every class and every group."""
    for wanted in (y, sens):
        for value in np.setdiff1d(wanted[known_nodes], wanted[part == 0]):
            incoming = rng.permutation(
                known_nodes[(wanted[known_nodes] == value) & (part[known_nodes] != 0)]
            )
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
    absent: set[int] = set()
    codes = set(range(len(graph.group_names)))
    for seed in split_seeds:
        for mask in split(graph, seed=seed):
            absent |= codes - set(graph.sens[mask].unique().tolist())
    if not absent:
        return
    labelled = graph.sens[graph.y >= 0]
    sizes = [f"{graph.group_names[k]!r} {int((labelled == k).sum())}" for k in sorted(absent)]
    columns = " × ".join(repr(column.column) for column in encoding.sensitive)
    value = (
        f"{columns} has groups too small for training, validation and test nodes of every split "
        f"(labelled nodes: {shortlist(sizes, 8)})"
    )
    hint = "make them one with {min_group=30}, or leave their cells empty (unknown)"
    raise InputError("sensitive", value, hint)


def check(data: Data, *, labels: bool = True, masks: bool = False) -> None:
    """Raise an error if a graph's features, or the labels, groups and masks needed, are wrong."""
    if not isinstance(data, Data):
        problem = f"expected a torch_geometric.data.Data, got {type(data).__name__}"
        raise InputError("data", problem, "a data set's graph is its first item, such as NBA()[0]")
    for name in ("x", "edge_index", "y", "sens")[: 4 if labels else 2]:
        if not isinstance(data.get(name), Tensor):
            raise InputError(f"data.{name}", "missing", "it must be a tensor (see fairmp.datasets)")
    _check_features(data.x, data.get("feature_names"))
    n = data.x.size(0)
    for name in ("y", "sens"):
        values = data.get(name)
        if name == "sens" and isinstance(values, Tensor) and groups.is_soft(values):
            groups.check_probabilities("data.sens", values, n)
        elif isinstance(values, Tensor):
            _check_codes(f"data.{name}", values, n)
    if labels:
        _check_labels(data.y)
        _check_groups(data.sens)
        if data.get("sample_weight") is not None:
            _check_weight(data.sample_weight, n)
    if masks:
        _check_masks(data, n)


def _check_features(x: Tensor, names: Sequence[str] | None) -> None:
    if x.layout not in (torch.strided, torch.sparse_coo):
        raise InputError("data.x", f"of layout {x.layout}", "give data.x.to_sparse_coo()")
    if x.dim() != 2 or 0 in x.shape or not x.is_floating_point():
        problem = f"{x.dtype} of shape {tuple(x.shape)} is not floating point (nodes, features)"
        raise InputError("data.x", problem, "give data.x.float(), if its numbers are quantities")
    x = x.coalesce() if x.is_sparse else x
    wrong = (~torch.isfinite(x.values() if x.is_sparse else x)).nonzero()
    if len(wrong):
        node, column = (x.indices()[:, wrong[0, 0]] if x.is_sparse else wrong[0]).tolist()
        title = f" {names[column]!r}" if names is not None and len(names) == x.size(1) else ""
        first = f"node {node}, column {column}{title} ({x[node, column].item()})"
        problem = f"{plural(len(wrong), 'value')} not finite, the first at {first}"
        raise InputError("data.x", problem, "fill or drop them first")


def _check_weight(weight: Tensor, n: int) -> None:
    if not isinstance(weight, Tensor) or weight.shape != (n,):
        raise InputError("data.sample_weight", f"{weight!r}", f"give one number per node, {n}")
    if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()) or not bool(weight.any()):
        low, high = weight.min().item(), weight.max().item()
        hint = "they must be finite, 0 or more, and not all 0"
        raise InputError("data.sample_weight", f"from {low:g} to {high:g}", hint)


def _check_codes(name: str, codes: Tensor, n: int) -> None:
    if codes.shape != (n,) or codes.is_floating_point():
        problem = f"expected integers, one per node, got {codes.dtype} of shape"
        raise InputError(name, f"{problem} {tuple(codes.shape)}", f"x has {n} rows")
    if codes.numel() and int(codes.min()) < -1:
        raise InputError(name, f"{int(codes.min())} is not a code", "use 0 and up, -1 for unknown")


def _check_labels(y: Tensor) -> None:
    known_labels = y[y >= 0]
    if not known_labels.numel():
        raise InputError("data.y", "all labels are unknown (-1)", "train on labelled nodes")
    if int(known_labels.max()) < 1 or int(known_labels.min()) == int(known_labels.max()):
        only = f"every known label is {int(known_labels[0])}"
        raise InputError("data.y", only, "give two classes or more (0 and 1)")


def _check_groups(sens: Tensor) -> None:
    soft = groups.is_soft(sens)
    sizes = sens.sum(0) if soft else torch.bincount(sens[sens >= 0])
    if not sizes.numel():
        raise InputError("data.sens", "all groups are unknown (-1)", "give those that are known")
    if int((sizes > 0).sum()) < 2:
        only = f"every node of known group is in group {int(sizes.argmax())}"
        raise InputError("data.sens", only, "fairness between groups needs at least two")
    if not bool((sizes > 0).all()):
        empty = f"group {int(sizes.argmin())} has no node"
        raise InputError("data.sens", empty, "leave it out" if soft else "number groups from 0 up")


def _check_masks(data: Data, n: int) -> None:
    for name in MASKS:
        mask = data.get(name)
        if not isinstance(mask, Tensor) or mask.shape != (n,) or mask.dtype != torch.bool:
            raise InputError(f"data.{name}", f"not a boolean mask of {n} nodes", "make a split")
        if not bool(mask.any()):
            raise InputError(f"data.{name}", "no node is in it", "make a split with more nodes")
        unlabelled = (mask & (data.y < 0)).nonzero()
        if unlabelled.numel():
            problem = f"node {int(unlabelled[0])} has no known label"
            raise InputError(f"data.{name}", problem, "split labelled nodes only")
    for first, second in combinations(MASKS, 2):
        if bool((data[first] & data[second]).any()):
            raise InputError(f"data.{second}", f"shares nodes with {first}", "make them disjoint")
