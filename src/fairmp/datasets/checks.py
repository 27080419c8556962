"""What every graph must be before anything is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.errors import InputError

MASKS = ("train_mask", "val_mask", "test_mask")


def check(data: Data, *, labels: bool = True, masks: bool = False) -> None:
    """Raise a clear error if a graph can not be trained on or predicted.

    Args:
        data: the graph.
        labels: whether known labels of two classes are needed.
        masks: whether training and validation nodes are needed.

    Example:
        >>> from fairmp.datasets import social_network
        >>> check(social_network(n=200, average_degree=5))
    """
    if not isinstance(data, Data):
        raise InputError(
            "data",
            f"expected a torch_geometric.data.Data, got {type(data).__name__}",
            "a data set's graph is its first item, such as NBA()[0]",
        )
    for name in ("x", "edge_index", "y", "sens")[: 4 if labels else 2]:
        if not isinstance(data.get(name), Tensor):
            raise InputError(f"data.{name}", "missing", "it must be a tensor (see fairmp.datasets)")
    _check_features(data.x, data.get("feature_names"))
    n = data.x.size(0)
    for name in ("y", "sens"):
        if not isinstance(data.get(name), Tensor):
            continue
        if name == "sens" and groups.soft(data.sens):
            groups.check_probabilities("data.sens", data.sens, n)
        else:
            _check_codes(f"data.{name}", data[name], n)
    if labels:
        _check_labels(data)
        _check_groups(data)
    if masks:
        _check_masks(data, n)


def _check_features(x: Tensor, names: Sequence[str] | None) -> None:
    if x.dim() != 2 or 0 in x.shape:
        raise InputError(
            "data.x",
            "expected features of shape (nodes, features), floating point and not empty, got "
            f"{x.dtype} of shape {tuple(x.shape)}",
        )
    if not x.is_floating_point():
        raise InputError(
            "data.x",
            f"expected floating point, got {x.dtype}",
            "give data.x.float(), if its numbers are quantities",
        )
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        node, column = (~finite).nonzero()[0].tolist()
        count = int((~finite).sum())
        title = f" {names[column]!r}" if names is not None and len(names) == x.size(1) else ""
        raise InputError(
            "data.x",
            f"{count} value{'s' * (count != 1)} not finite, the first at node {node}, column "
            f"{column}{title} ({x[node, column].item()})",
            "fill or drop them first",
        )


def _check_codes(name: str, codes: Tensor, n: int) -> None:
    if codes.shape != (n,) or codes.is_floating_point():
        raise InputError(
            name,
            f"expected {n} whole numbers, one a node, got {codes.dtype} of shape "
            f"{tuple(codes.shape)}",
            f"x has {n} rows",
        )
    if codes.numel() and int(codes.min()) < -1:
        raise InputError(name, f"{int(codes.min())} is not a code", "use 0 and up, -1 for unknown")


def _check_labels(data: Data) -> None:
    known = data.y[data.y >= 0]
    if not known.numel():
        raise InputError(
            "data.y",
            f"all {data.y.numel()} labels are unknown (-1)",
            "training needs labelled nodes",
        )
    if int(known.max()) < 1 or int(known.min()) == int(known.max()):
        raise InputError(
            "data.y",
            f"every known label is {int(known[0])}",
            "classification needs two classes or more (0 and 1)",
        )


def _check_groups(data: Data) -> None:
    if groups.soft(data.sens):
        empty = (data.sens.sum(0) <= 0).nonzero()
        if empty.numel():
            raise InputError(
                "data.sens",
                f"no node has a chance to be in group {int(empty[0])}",
                "leave its column out",
            )
        return
    known = data.sens[data.sens >= 0]
    if not known.numel():
        raise InputError(
            "data.sens",
            f"all {data.sens.numel()} groups are unknown (-1)",
            "give the group of the nodes where it is known",
        )
    counts = torch.bincount(known)
    if int((counts > 0).sum()) < 2:
        raise InputError(
            "data.sens",
            f"every node of known group is in group {int(known[0])}",
            "fairness between groups needs at least two",
        )
    if int(counts.min()) == 0:
        absent = int((counts == 0).nonzero()[0])
        raise InputError(
            "data.sens",
            f"groups run from 0 to {counts.numel() - 1} and group {absent} has no node",
            "number them without holes",
        )


def _check_masks(data: Data, n: int) -> None:
    for name in MASKS:
        mask = data.get(name)
        if not isinstance(mask, Tensor) or mask.shape != (n,) or mask.dtype != torch.bool:
            raise InputError(
                f"data.{name}", f"expected a boolean mask of {n} nodes", "make a split"
            )
        if not bool(mask.any()):
            raise InputError(f"data.{name}", "no node is in it", "make a split with more nodes")
        if bool((mask & (data.y < 0)).any()):
            node = int((mask & (data.y < 0)).nonzero()[0])
            raise InputError(
                f"data.{name}", f"node {node} has no known label", "split labelled nodes only"
            )
    for first, second in (("train_mask", "val_mask"), ("train_mask", "test_mask")):
        if bool((data[first] & data[second]).any()):
            raise InputError(f"data.{second}", f"shares nodes with {first}", "make them disjoint")
    if bool((data.val_mask & data.test_mask).any()):
        raise InputError(
            "data.test_mask", "shares nodes with val_mask", "validation is never the test"
        )
