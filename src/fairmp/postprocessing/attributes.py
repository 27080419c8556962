"""Sensitive attributes: one or several, as codes, names or probabilities, some of them unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.datasets.columns import MISSING
from fairmp.errors import InputError
from fairmp.graph import Adjacency
from fairmp.groups import known, likeliest, memberships, soft
from fairmp.postprocessing.group_estimator import Estimate, estimate


@dataclass(frozen=True)
class Attribute:
    """One sensitive attribute of all nodes."""

    name: str
    groups: tuple[str, ...]
    sens: Tensor  # group of each node (n; −1 unknown), or probabilities of groups (n×G)
    estimate: Estimate | None = None  # where groups were estimated

    @property
    def known(self) -> Tensor:
        """Nodes that have a group or probabilities of groups (n, bool)."""
        return known(self.sens)

    @property
    def membership(self) -> Tensor:
        """Membership of each node in each group (n×G, float64)."""
        return memberships(self.sens, len(self.groups)).double()

    @property
    def estimated(self) -> Tensor:
        """Nodes whose group is given by probabilities (n, bool)."""
        return (self.sens > 0).sum(1) > 1 if soft(self.sens) else torch.zeros_like(self.known)

    @property
    def hard(self) -> Tensor:
        """The most probable group of each node (n), −1 where unknown."""
        return likeliest(self.sens)


def attributes(sens: Any, n: int) -> list[Attribute]:
    """Read one or several sensitive attributes of n nodes.

    One is a group per node (0…G−1, −1 or NaN unknown; or names, empty unknown) or probabilities of
    groups (n×G, zeros unknown). Several are a dict of such, a DataFrame with one column each, or a
    list; a list of :class:`Attribute` is taken as it is.
    """
    if isinstance(sens, list) and sens and all(isinstance(one, Attribute) for one in sens):
        return list(sens)
    if isinstance(sens, Mapping):
        parts = {str(name): values for name, values in sens.items()}
    elif hasattr(sens, "columns") and not _are_memberships(sens):
        parts = {str(name): sens[name] for name in sens.columns}
    elif isinstance(sens, Sequence) and not isinstance(sens, str) and _several(sens, n):
        parts = {f"sens {k}": values for k, values in enumerate(sens, start=1)}
    else:
        parts = {str(getattr(sens, "name", None) or "sens"): sens}
    if not parts:
        raise InputError("sens", "no attribute is given", "give one or more")
    return [_attribute(name, values, n) for name, values in parts.items()]


def estimated(
    attribute: Attribute, features: Any = None, edge_index: Tensor | Adjacency | None = None
) -> Attribute:
    """Estimate the groups of nodes of unknown group, if there are any."""
    if bool(attribute.known.all()):
        return attribute
    try:
        found = estimate(attribute.membership, features, edge_index)
    except InputError as error:
        value = f"{error.value} (attribute {attribute.name!r})"
        raise InputError(error.argument, value, error.hint) from None
    return replace(attribute, sens=found.probabilities.to(attribute.sens.device), estimate=found)


def _attribute(name: str, values: Any, n: int) -> Attribute:
    sens, groups = _codes(name, values)
    if sens.dim() == 0 or sens.size(0) != n:
        which = "" if name == "sens" else f"{name!r}, "
        value = f"{which}shape {tuple(sens.shape)} for {n} nodes"
        raise InputError("sens", value, "give one group per node")
    if soft(sens):
        return Attribute(name, groups or tuple(map(str, range(sens.size(1)))), sens)
    if sens.dim() != 1:
        hint = "give one group per node (n), or probabilities of groups (n×G, floating point)"
        raise InputError(name, f"{sens.dtype} of shape {tuple(sens.shape)}", hint)
    if sens.is_floating_point():
        sens = torch.where(sens.isnan(), -1.0, sens)
    codes = sens.long()
    wrong = (codes != sens) | (codes < -1)
    if bool(wrong.any()):
        hint = "use whole numbers 0…G−1, -1 for unknown, or give probabilities as n×G"
        raise InputError(name, f"{sens[wrong][0].item():g} is not a group", hint)
    return Attribute(name, groups or tuple(map(str, range(int(codes.max()) + 1))), codes)


def _codes(name: str, values: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Codes or memberships as a tensor, and the names of the groups if there are any."""
    if isinstance(values, Tensor):
        return values.detach(), ()
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(name, "rows of different lengths", "give one group per node") from None
    if array.dtype.kind in "biuf":
        return torch.from_numpy(array), tuple(map(str, getattr(values, "columns", ())))
    if array.ndim != 1:
        raise InputError(name, f"{array.dtype} of shape {array.shape}", "give one group per node")
    found, place = np.unique(array.astype(str), return_inverse=True)
    texts = [str(text).strip() for text in found]
    names = sorted({text for text in texts if text not in MISSING}, key=_sort_key)
    if all(_sort_key(text)[0] == 0 for text in names):  # "1.0" is "1", and "-1" unknown
        texts = [text if text in MISSING else f"{float(text):g}" for text in texts]
        names = [
            text for text in dict.fromkeys(f"{float(text):g}" for text in names) if text != "-1"
        ]
    rank = {text: k for k, text in enumerate(names)}
    codes = np.array([rank.get(text, -1) for text in texts], dtype=np.int64)
    return torch.from_numpy(codes[place.reshape(-1)]), tuple(names)


def _are_memberships(frame: Any) -> bool:
    """Whether a data frame holds probabilities of groups, and not attributes."""
    if frame.shape[1] < 2 or any(getattr(kind, "kind", "O") != "f" for kind in frame.dtypes):
        return False
    values = np.asarray(frame, dtype=np.float64)
    total = values.sum(1)
    return bool((values >= 0).all() and ((np.abs(total - 1) <= 1e-3) | (total == 0)).all())


def _several(sens: Sequence[Any], n: int) -> bool:
    """Whether a list holds attributes, each a sequence over the nodes, and not nodes."""
    if not len(sens) or any(isinstance(one, str) or not np.ndim(one) for one in sens):
        return False
    return all(len(one) == n for one in sens) and (len(sens) != n or hasattr(sens[0], "dtype"))


def _sort_key(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)
