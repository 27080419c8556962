"""Checks of a graph: features, labels, groups, weights and masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError, plural


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
    known = y[y >= 0]
    if not known.numel():
        raise InputError("data.y", "all labels are unknown (-1)", "train on labelled nodes")
    if int(known.max()) < 1 or int(known.min()) == int(known.max()):
        only = f"every known label is {int(known[0])}"
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
