"""Alignment of a graph with a trained model: columns, groups and classes by name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.checks import MASKS, check
from fairmp.errors import InputError


def aligned(
    data: Data,
    features: Sequence[str],
    classes: Sequence[str],
    known_groups: Sequence[str],
    dtype: torch.dtype,
) -> Data:
    """Bring a copy of a graph to the columns, classes and groups a model was trained with.

    If the graph names them, columns are reordered and codes of groups and classes translated by
    name, and what the model does not know is an error. Otherwise only numbers are compared.
    """
    check(data, labels=False)
    result = copy.copy(data)
    order = _order(data, features)
    result.x = (data.x[:, order] if order else data.x).to(dtype)
    if isinstance(data.get("sens"), Tensor):
        if groups.soft(data.sens):
            result.sens = _translate_columns(data.sens, data.get("group_names"), known_groups)
        else:
            result.sens = _translate_codes(data, "sens", "group", known_groups)
    if isinstance(data.get("y"), Tensor):
        result.y = _translate_codes(data, "y", "class", classes)
    return result


def numbered(names: Sequence[str]) -> bool:
    """Whether names are only the numbers of what they name."""
    return list(names) == [str(i) for i in range(len(names))]


def _order(data: Data, features: Sequence[str]) -> list[int]:
    """Return the column of each feature, or nothing if they are in order."""
    width, given, named = data.x.size(1), data.get("feature_names"), not numbered(features)
    counts = f"{width} features, the model was trained on {len(features)}"
    if named and given is not None and len(given) != width == len(features):
        value = f"{len(given)} names for {width} columns of data.x"
        raise InputError("data.feature_names", value, "give one per column")
    named = named and given is not None and len(given) == width
    names = [str(name) for name in given] if named else []
    if not named or len(set(names)) < width:
        if width != len(features):
            raise InputError("data.x", counts, "give the same columns in the same order")
        if named and names != list(features):
            value = "a name occurs twice and the order is not the model's"
            raise InputError("data.feature_names", value, "give every column its own name")
        return []
    missing = [name for name in features if name not in set(names)]
    extra = [name for name in names if name not in set(features)]
    if missing or extra:
        parts = []
        if missing:
            close = difflib.get_close_matches(missing[0], extra, n=1, cutoff=0.5)
            renamed = f" (renamed to {close[0]!r}?)" if close else ""
            parts.append(f"{_few([repr(missing[0]), *missing[1:]], 1)} missing{renamed}")
        if extra:
            parts.append(f"{_few([repr(extra[0]), *extra[1:]], 1)} not known to it")
        hint = "give the columns it was trained on, in any order"
        raise InputError("data.x", f"{counts}: {' and '.join(parts)}", hint)
    return [] if names == list(features) else [names.index(name) for name in features]


def _few(names: Sequence[str], shown: int = 8) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _translate_columns(sens: Tensor, names: Sequence[str] | None, known: Sequence[str]) -> Tensor:
    """Reorder the columns of group probabilities by name."""
    width, hint = sens.size(1), f"give a column for each of {_few(known)}"
    if names is None or len(names) != width or numbered(known):
        if width != len(known):
            value = f"probabilities of {width} groups, the model was trained on {len(known)}"
            raise InputError("data.sens", value, hint)
        return sens
    place = {str(name): k for k, name in enumerate(names)}
    missing = [f"no column for group {name!r}" for name in known if name not in place]
    unknown = [f"group {name!r} is unknown" for name in place if name not in set(known)]
    if missing or unknown:
        raise InputError("data.sens", (missing or unknown)[0], hint)
    return sens[:, [place[name] for name in known]]


def _translate_codes(data: Data, attribute: str, noun: str, known: Sequence[str]) -> Tensor:
    """Translate the codes of groups or classes by name."""
    codes, names = data[attribute], data.get(f"{noun}_names")
    if not codes.numel():
        return codes
    top = int(codes.max())
    by_number = names is None or len(names) <= top or numbered(known)
    given = [str(i) for i in range(top + 1)] if by_number else [str(name) for name in names]
    known = [str(i) for i in range(len(known))] if by_number else list(known)
    place = {name: k for k, name in enumerate(known)}
    for code in codes.unique().tolist():
        if code >= 0 and given[code] not in place:
            shown = given[code] if by_number else repr(given[code])
            raise InputError(
                f"data.{attribute}",
                f"{noun} {shown} was not seen in training (seen: {_few(known)})",
                "mark it unknown (-1), or train again",
            )
    if by_number or given == known:
        return codes
    table = torch.tensor([*(place.get(name, -1) for name in given), -1], device=codes.device)
    return table[codes]


def check_population(
    sens: Tensor, nodes: Tensor, names: Sequence[str], total: Callable[[Tensor], Tensor]
) -> None:
    """Raise if a group has no node among those whose gap is to be closed."""
    inside = sens[nodes]
    if groups.soft(sens):
        counts = inside.double().sum(0)
    else:
        counts = torch.bincount(inside[inside >= 0], minlength=len(names)).double()
    *by_group, count = total(torch.cat([counts, nodes.sum().view(1)])).tolist()
    if not all(by_group):
        raise InputError(
            "nodes",
            f"group {names[by_group.index(0)]!r} has no node among the {int(count)} to predict, so "
            "there is no gap to close",
            "predict more nodes together, or with mode='per-node'",
        )


def node_mask(nodes: Tensor | None, n: int) -> Tensor:
    """Return the nodes to predict as a mask, all by default."""
    if nodes is None:
        return torch.ones(n, dtype=torch.bool)
    if nodes.dtype != torch.bool or nodes.shape != (n,):
        value = f"{nodes.dtype} of shape {tuple(nodes.shape)}"
        raise InputError("nodes", value, f"give a boolean mask of {n} nodes")
    return nodes


def names_of(data: Data, attribute: str, count: int) -> list[str]:
    """Return the names of features, classes or groups; numbers if the graph gives none."""
    names = data.get(attribute)
    # If columns were removed, it is unknown which names are left.
    stale = attribute == "feature_names" and names is not None and len(names) != count
    if names is None or len(names) < count or stale:
        return [str(i) for i in range(count)]
    return [str(name) for name in names]


def check_certain(data: Data) -> None:
    """Raise if a part of the split has fewer than two certain groups, so that it has no gap."""
    sens = groups.certain(data.sens)
    for mask in MASKS:
        found = sens[data[mask]]
        if len(found[found >= 0].unique()) < 2:
            value = f"fewer than two groups are certain (probability 1) in {mask}"
            hint = "gaps are measured on nodes of certain group, give some"
            raise InputError("data.sens", value, hint)
