"""A graph brought to the shape a trained model knows: columns, groups and classes by name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.checks import check
from fairmp.errors import InputError


def names_of(data: Data, attribute: str, count: int) -> list[str]:
    """The names a graph gives its features, classes or groups; numbers where it gives none.

    Names of features count only where there is one for each: which column went can not be told.

    Example:
        >>> names_of(Data(group_names=["f", "m"]), "group_names", 2)
        ['f', 'm']
        >>> names_of(Data(), "group_names", 2)
        ['0', '1']
        >>> names_of(Data(feature_names=["age", "income", "town"]), "feature_names", 2)
        ['0', '1']
    """
    names = data.get(attribute)
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

    Where the graph names them, names count: columns in another order are put in order, codes of
    groups and classes are translated, and what the model does not know is refused. Where it does
    not, only numbers are compared. The graph given is left as it is.

    Args:
        data: the graph.
        features: names of the columns.
        classes: names of the classes.
        known_groups: names of the groups.
        dtype: of the model's weights.

    Raises:
        InputError: With one line that names what differs.

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
        result.sens = _translated_groups(data, known_groups)
    if isinstance(data.get("y"), Tensor):
        result.y = _translated(
            data.y, data.get("class_names"), classes, "data.y", "class", "empty it (-1)"
        )
    return result


def _numbered(names: Sequence[str]) -> bool:
    return list(names) == [str(i) for i in range(len(names))]


def _order(data: Data, features: Sequence[str]) -> list[int]:
    """The column of the graph for each feature; nothing where they are in order already."""
    width, names = data.x.size(1), data.get("feature_names")
    if names is not None and len(names) != width == len(features) and not _numbered(features):
        raise InputError(
            "data.feature_names",
            f"{len(names)} names for {width} columns of data.x",
            "give one each",
        )
    given = None if names is None or len(names) != width else [str(name) for name in names]
    if given is None or _numbered(features) or len(set(given)) < width:
        if width != len(features):
            raise InputError(
                "data.x",
                f"{width} features, the model was trained on {len(features)}",
                "give the same columns in the same order",
            )
        # Names that occur twice can not be matched; in the same order they need not be.
        if given is not None and not _numbered(features) and given != list(features):
            raise InputError(
                "data.feature_names",
                "a name occurs twice and the order is not the model's",
                "give every column its own name",
            )
        return []
    if given == list(features):
        return []
    gone = [name for name in features if name not in set(given)]
    extra = [name for name in given if name not in set(features)]
    if gone or extra:
        raise InputError("data.x", f"{width} features, {_difference(gone, extra, len(features))}")
    place = {name: k for k, name in enumerate(given)}
    return [place[name] for name in features]


def _difference(gone: Sequence[str], extra: Sequence[str], count: int) -> str:
    text = f"the model was trained on {count}: "
    if gone:
        close = difflib.get_close_matches(gone[0], extra, n=1, cutoff=0.5)
        hint = f" (renamed to {close[0]!r}?)" if close else ""
        text += f"{gone[0]!r}{_more(gone)} missing{hint}"
    if extra:
        text += f"{' and ' if gone else ''}{extra[0]!r}{_more(extra)} not known to it"
    return f"{text}; give the columns it was trained on, in any order"


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _translated_groups(data: Data, known_groups: Sequence[str]) -> Tensor:
    names, way_out = data.get("group_names"), "mark it unknown (-1)"
    if not groups.soft(data.sens):
        return _translated(data.sens, names, known_groups, "data.sens", "group", way_out)
    width = data.sens.size(1)
    if names is None or len(names) != width or _numbered(known_groups):
        if width != len(known_groups):
            raise InputError(
                "data.sens",
                f"probabilities of {width} groups, the model was trained on {len(known_groups)}",
                f"give a column for each of {_few(known_groups)}",
            )
        return data.sens
    place = {str(name): k for k, name in enumerate(names)}
    gone = [name for name in known_groups if name not in place]
    if gone or width != len(known_groups):
        extra = [name for name in place if name not in set(known_groups)]
        what = f"no column for group {gone[0]!r}" if gone else f"group {extra[0]!r} is unknown"
        raise InputError(
            "data.sens",
            f"{what}",
            f"the model was trained on {_few(known_groups)}, give a column for each",
        )
    return data.sens[:, [place[name] for name in known_groups]]


def _translated(
    codes: Tensor,
    names: Sequence[str] | None,
    known: Sequence[str],
    attribute: str,
    noun: str,
    way_out: str,
) -> Tensor:
    """Translate codes by name, and refuse one the model does not know."""
    if not codes.numel():
        return codes
    top = int(codes.max())
    if names is None or len(names) <= top or _numbered(known):
        if top >= len(known):
            raise InputError(
                attribute,
                f"{noun} {top} was not there in training (there were 0…{len(known) - 1})",
                f"{way_out}, or train again",
            )
        return codes
    given = [str(name) for name in names]
    if given == list(known):
        return codes
    place = {name: k for k, name in enumerate(known)}
    for code in codes.unique().tolist():
        if code >= 0 and given[code] not in place:
            raise InputError(
                attribute,
                f"{noun} {given[code]!r} was not there in training (there were {_few(known)})",
                f"{way_out}, or train again",
            )
    table = torch.tensor([*(place.get(name, -1) for name in given), -1], device=codes.device)
    return table[codes]


def check_population(sens: Tensor, nodes: Tensor, names: Sequence[str]) -> None:
    """Refuse to solve for nodes among which a group is absent."""
    inside = sens[nodes]
    counts = (
        inside.sum(0)
        if groups.soft(sens)
        else torch.bincount(inside[inside >= 0], minlength=len(names))
    )
    absent = (counts <= 0).nonzero().flatten().tolist()
    if absent:
        raise InputError(
            "nodes",
            f"group {names[absent[0]]!r} has no node among the {int(nodes.sum())} to predict, so "
            "there is no gap to close",
            "predict more nodes together, or with mode='frozen'",
        )


def check_certain(data: Data, masks: Sequence[str]) -> None:
    """Refuse a split whose parts can not be measured, since too few groups are certain in them."""
    if not groups.soft(data.sens):
        return
    sens = groups.certain(data.sens)
    for name in masks:
        found = sens[data[name]]
        if len(found[found >= 0].unique()) < 2:
            raise InputError(
                "data.sens",
                f"fewer than two groups are certain (probability 1) in {name}",
                "a gap is measured on nodes of certain group, give some",
            )


def node_mask(nodes: Tensor | None, n: int) -> Tensor:
    """The nodes to predict as a mask, all by default."""
    if nodes is None:
        return torch.ones(n, dtype=torch.bool)
    if nodes.dtype != torch.bool or nodes.shape != (n,):
        raise InputError(
            "nodes",
            f"expected a boolean mask of {n} nodes, got {nodes.dtype} of shape "
            f"{tuple(nodes.shape)}",
        )
    return nodes


def to_device(data: Data, device: torch.device) -> Data:
    """Move a graph; PyG does it in place, and the caller's stays where it is."""
    return data if data.x.device == device else copy.copy(data).to(str(device))


def device_of(device: str | torch.device) -> torch.device:
    """Check that a device is there."""
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError("device", f"{device!r} is unknown", "choose 'cpu' or 'cuda'") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "device", f"{device!r} is not there", "torch sees no CUDA device, use 'cpu'"
        )
    return chosen


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
