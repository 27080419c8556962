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


def names_of(data: Data, attribute: str, count: int) -> list[str]:
    """Return the names of features, classes or groups; numbers if the graph gives none."""
    names = data.get(attribute)
    # If columns were removed, it is unknown which names are left.
    stale = attribute == "feature_names" and names is not None and len(names) != count
    if names is None or len(names) < count or stale:
        return [str(i) for i in range(count)]
    return [str(name) for name in names]


def aligned(
    data: Data,
    features: Sequence[str],
    classes: Sequence[str],
    known_groups: Sequence[str],
    dtype: torch.dtype,
) -> Data:
    """Bring a graph to the columns, classes and groups a model was trained with.

    If the graph names them, columns are reordered and codes of groups and classes translated by
    name, and what the model does not know is an error. Otherwise only numbers are compared. The
    input is not modified.

    Example:
        >>> x, edges = torch.tensor([[1.0, 2.0]]), torch.empty(2, 0, dtype=torch.long)
        >>> data = Data(x=x, edge_index=edges, feature_names=["b", "a"])
        >>> aligned(data, ["a", "b"], ["0", "1"], ["0", "1"], torch.float64).x
        tensor([[2., 1.]], dtype=torch.float64)
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


def _numbered(names: Sequence[str]) -> bool:
    return list(names) == [str(i) for i in range(len(names))]


def _order(data: Data, features: Sequence[str]) -> list[int]:
    """Return the column of each feature, or nothing if they are in order."""
    width, given = data.x.size(1), data.get("feature_names")
    if given is not None and len(given) != width:
        if width == len(features) and not _numbered(features):
            raise InputError(
                "data.feature_names",
                f"{len(given)} names for {width} columns of data.x",
                "give one per column",
            )
        given = None
    names = None if given is None else [str(name) for name in given]
    if names is None or _numbered(features) or len(set(names)) < width:
        if width != len(features):
            raise InputError(
                "data.x",
                f"{width} features, the model was trained on {len(features)}",
                "give the same columns in the same order",
            )
        if names is not None and not _numbered(features) and names != list(features):
            raise InputError(
                "data.feature_names",
                "a name occurs twice and the order is not the model's",
                "give every column its own name",
            )
        return []
    if names == list(features):
        return []
    missing = [name for name in features if name not in set(names)]
    extra = [name for name in names if name not in set(features)]
    if missing or extra:
        parts = []
        if missing:
            close = difflib.get_close_matches(missing[0], extra, n=1, cutoff=0.5)
            renamed = f" (renamed to {close[0]!r}?)" if close else ""
            parts.append(f"{_first(missing)} missing{renamed}")
        if extra:
            parts.append(f"{_first(extra)} not known to it")
        raise InputError(
            "data.x",
            f"{width} features, the model was trained on {len(features)}: {' and '.join(parts)}",
            "give the columns it was trained on, in any order",
        )
    return [names.index(name) for name in features]


def _first(names: Sequence[str]) -> str:
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _translate_columns(sens: Tensor, names: Sequence[str] | None, known: Sequence[str]) -> Tensor:
    """Reorder the columns of group probabilities by name."""
    width = sens.size(1)
    if names is None or len(names) != width or _numbered(known):
        if width != len(known):
            raise InputError(
                "data.sens",
                f"probabilities of {width} groups, the model was trained on {len(known)}",
                f"give a column for each of {_few(known)}",
            )
        return sens
    place = {str(name): k for k, name in enumerate(names)}
    missing = [name for name in known if name not in place]
    extra = [name for name in place if name not in set(known)]
    if missing or extra:
        raise InputError(
            "data.sens",
            f"no column for group {missing[0]!r}" if missing else f"group {extra[0]!r} is unknown",
            f"the model was trained on {_few(known)}, give a column for each",
        )
    return sens[:, [place[name] for name in known]]


def _translate_codes(data: Data, attribute: str, noun: str, known: Sequence[str]) -> Tensor:
    """Translate the codes of groups or classes by name."""
    codes, names = data[attribute], data.get(f"{noun}_names")
    if not codes.numel():
        return codes
    top = int(codes.max())
    by_number = names is None or len(names) <= top or _numbered(known)
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


def check_certain(data: Data) -> None:
    """Raise if gaps cannot be measured on a part of the split: too few groups are certain."""
    if not groups.soft(data.sens):
        return
    sens = groups.certain(data.sens)
    for mask in MASKS:
        found = sens[data[mask]]
        if len(found[found >= 0].unique()) < 2:
            raise InputError(
                "data.sens",
                f"fewer than two groups are certain (probability 1) in {mask}",
                "gaps are measured on nodes of certain group, give some",
            )


def node_mask(nodes: Tensor | None, n: int) -> Tensor:
    """Return the nodes to predict as a mask, all by default."""
    if nodes is None:
        return torch.ones(n, dtype=torch.bool)
    if nodes.dtype != torch.bool or nodes.shape != (n,):
        raise InputError(
            "nodes",
            f"{nodes.dtype} of shape {tuple(nodes.shape)}",
            f"give a boolean mask of {n} nodes",
        )
    return nodes


def to_device(data: Data, device: torch.device) -> Data:
    """Move a copy of a graph; PyG moves in place."""
    return data if data.x.device == device else copy.copy(data).to(str(device))


def device_of(device: str | torch.device) -> torch.device:
    """Return a device if it is available."""
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError("device", f"{device!r} is unknown", "choose 'cpu' or 'cuda'") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device", f"{device!r} but CUDA is not available", "use 'cpu'")
    return chosen
