"""Alignment of a graph with a trained model: columns, groups and classes by name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS, check
from fairmp.datasets.transforms import as_read
from fairmp.errors import InputError, shorten, shortlist
from fairmp.training.nodes import Names


def aligned(data: Data, names: Names, dtype: torch.dtype) -> Data:
    """Bring a copy of a graph to a model's columns, classes and groups, by name if it has names."""
    data = as_read(data, names.groups)
    check(data, labels=False)
    result = copy.copy(data)
    order = _column_order(data, names.features)
    x = data.x.index_select(1, torch.tensor(order, device=data.x.device)) if order else data.x
    result.x = (x.coalesce() if x.is_sparse else x).to(dtype)
    if isinstance(data.get("sens"), Tensor):
        if groups.is_soft(data.sens):
            result.sens = _translate_columns(data.sens, data.get("group_names"), names.groups)
        else:
            result.sens = _translate_codes(data, "sens", "group", names.groups)
    if isinstance(data.get("y"), Tensor):
        result.y = _translate_codes(data, "y", "class", names.classes)
    return result


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names are only the numbers of what they name."""
    return list(names) == [str(i) for i in range(len(names))]


def _column_order(data: Data, features: Sequence[str]) -> list[int]:
    """Return the column of each feature, or nothing if they are in order."""
    width, user_names = data.x.size(1), data.get("feature_names")
    if are_numbers(features):
        user_names = None
    if user_names is not None and len(user_names) != width == len(features):
        value = f"{len(user_names)} names for {width} columns of data.x"
        raise InputError("data.feature_names", value, "give one per column")
    has_names = user_names is not None and len(user_names) == width
    names = [str(name) for name in user_names] if has_names else []
    sizes = f"{width} features, the model was trained on {len(features)}"
    if len(set(names)) < width:  # without names, or with one that occurs twice
        if width != len(features):
            raise InputError("data.x", sizes, "give the same columns in the same order")
        if names and names != list(features):
            value = "a name occurs twice and the order is not the model's"
            raise InputError("data.feature_names", value, "give every column its own name")
        return []
    if differences := _differences(names, features):
        hint = "give the columns it was trained on, in any order"
        raise InputError("data.x", f"{sizes}: {differences}", hint)
    return [] if names == list(features) else [names.index(name) for name in features]


def _differences(names: Sequence[str], features: Sequence[str]) -> str:
    """Say which features are missing, and which columns are not known to the model."""
    missing = [name for name in features if name not in set(names)]
    unknown = [name for name in names if name not in set(features)]
    parts = []
    if missing:
        close = difflib.get_close_matches(missing[0], unknown, n=1, cutoff=0.5)
        renamed = f" (renamed to {close[0]!r}?)" if close else ""
        parts.append(f"{shortlist([*map(repr, missing)], 1)} missing{renamed}")
    if unknown:
        parts.append(f"{shortlist([*map(repr, unknown)], 1)} not known to it")
    return " and ".join(parts)


def _translate_columns(
    sens: Tensor, user_names: Sequence[str] | None, model_names: Sequence[str]
) -> Tensor:
    """Reorder the columns of group probabilities by name."""
    width, hint = sens.size(1), f"give a column for each of {shortlist(model_names, 8)}"
    if user_names is None or len(user_names) != width or are_numbers(model_names):
        if width != len(model_names):
            value = f"probabilities of {width} groups, the model was trained on {len(model_names)}"
            raise InputError("data.sens", value, hint)
        return sens
    place = {str(name): k for k, name in enumerate(user_names)}
    missing = [f"no column for group {name!r}" for name in model_names if name not in place]
    unknown = [f"group {name!r} is unknown" for name in place if name not in set(model_names)]
    if missing or unknown:
        raise InputError("data.sens", (missing or unknown)[0], hint)
    return sens[:, [place[name] for name in model_names]]


def _translate_codes(data: Data, attribute: str, noun: str, model_names: Sequence[str]) -> Tensor:
    """Translate the codes of groups or classes by name, or by number without names."""
    codes, user_names = data[attribute], data.get(f"{noun}_names")
    if not codes.numel():
        return codes
    top = int(codes.max())
    by_number = user_names is None or len(user_names) <= top or are_numbers(model_names)
    names = [str(name) for name in (range(top + 1) if by_number else user_names)]
    if by_number:
        model_names = [str(i) for i in range(len(model_names))]
    place = {name: k for k, name in enumerate(model_names)}
    for code in codes.unique().tolist():
        if code >= 0 and names[code] not in place:
            shown = names[code] if by_number else repr(names[code])
            value = f"{noun} {shown} was not seen in training (seen: {shortlist([*place], 8)})"
            raise InputError(f"data.{attribute}", value, "mark it unknown (-1), or train again")
    if by_number or names == list(model_names):
        return codes
    table = torch.tensor([*(place.get(name, -1) for name in names), -1], device=codes.device)
    return table[codes]


def node_mask(nodes: Any, n: int) -> Tensor:
    """Mask of the nodes that a mask or numbers name; ``None`` means all."""
    if nodes is None:
        return torch.ones(n, dtype=torch.bool)
    hint = f"give a boolean mask of {n} nodes, or numbers from 0 to {n - 1}"
    try:
        nodes = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("nodes", shorten(nodes), hint) from None
    if nodes.dtype == torch.bool and nodes.shape == (n,):
        return nodes
    is_wrong = nodes.dtype == torch.bool or nodes.is_floating_point() or nodes.is_complex()
    if nodes.dim() != 1 or not nodes.numel() or is_wrong:
        raise InputError("nodes", f"{nodes.dtype} of shape {tuple(nodes.shape)}", hint)
    outside = nodes[(nodes < 0) | (nodes >= n)]
    if len(outside):
        raise InputError("nodes", f"there is no node {int(outside[0])}", hint)
    mask = torch.zeros(n, dtype=torch.bool, device=nodes.device)
    mask[nodes.long()] = True
    return mask


def check_population(
    sens: Tensor, nodes: Tensor, names: Sequence[str], total: Callable[[Tensor], Tensor]
) -> None:
    """Raise if a group has no node among those whose gap is to be closed."""
    inside = sens[nodes]
    if groups.is_soft(sens):
        counts = inside.double().sum(0)
    else:
        counts = torch.bincount(inside[inside >= 0], minlength=len(names)).double()
    *by_group, count = total(torch.cat([counts, nodes.sum().view(1)])).tolist()
    if not all(by_group):
        value = f"group {names[by_group.index(0)]!r} has no node among the {int(count)} to predict"
        hint = "predict more nodes together, or with {mode='per-node'}"
        raise InputError("nodes", f"{value}, so there is no gap to close", hint)


def reordered(data: Data, nodes: Tensor) -> Data:
    """The graph with its nodes in another order: first the node ``nodes[0]``."""
    moved, place = copy.copy(data), nodes.argsort()
    for name in ("x", "y", "sens", "sample_weight", *MASKS):
        if isinstance(data.get(name), Tensor):
            moved[name] = data[name][nodes]
    moved.edge_index = place[data.edge_index]
    return moved
