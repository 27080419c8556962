"""Scores, labels and sensitive attributes, read from arrays, tensors, tables and columns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fairmp.datasets.values import as_text, factorize
from fairmp.errors import InputError, plural, shorten, shortlist
from fairmp.frames import MAX_EXACT, MISSING, as_pandas, is_pandas, like
from fairmp.groups import (
    SIGNS,
    is_soft,
    known_mask,
    memberships,
    most_likely_group,
    recode_signs,
)
from fairmp.kernels import segment_sum, softmax
from fairmp.metrics.counts import are_probabilities


@dataclass(frozen=True)
class Scores:
    """Scores converted to logits, and the way back to the type that was given."""

    original: Any  # as given, or as pandas where another library's table was
    values: Tensor  # its numbers (n×C; two columns for a single one)
    logits: Tensor  # the same as logits (n×C)
    are_probabilities: bool
    single: bool  # whether they were a single column for class 1
    table: Any = None  # as given

    @property
    def proba(self) -> Tensor:
        """The probabilities (n×C)."""
        if not self.are_probabilities:
            return softmax(self.values)
        return self.values / self.values.sum(1, keepdim=True)

    def corrected(self, logits: Tensor) -> Tensor:
        """Corrected logits (n×C) as scores of the same kind; unchanged rows stay as given."""
        logits = logits.to(self.values)
        if not self.are_probabilities:
            return logits
        changed = (logits != self.logits).any(1, keepdim=True)
        return torch.where(changed, softmax(logits), self.values)

    def like_original(self, values: Tensor) -> Any:
        """Numbers (n×C) in the type, index and columns of the original; float32 for half types."""
        original = self.original
        name = str(getattr(original, "dtype", "")).removeprefix("torch.")
        if name in ("float32", "float16", "bfloat16"):  # half precision cannot hold a correction
            values = _rounded(values, torch.float32)
        if self.single:
            values = values[:, 1] if self.are_probabilities else values[:, 1] - values[:, 0]
        if isinstance(original, Tensor):
            return values
        array = values.cpu().numpy()
        if isinstance(original, np.ndarray) and np.issubdtype(original.dtype, np.floating):
            array = array.astype(np.promote_types(original.dtype, np.float32))
        if not is_pandas(original):
            return array
        titles = {"name": original.name} if array.ndim == 1 else {"columns": original.columns}
        return like(type(original)(array, index=original.index, **titles), self.table)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to a type without changing which entry of a row is the largest."""
    rounded, largest = values.to(dtype), values.argmax(1, keepdim=True)
    top, kind = rounded.amax(1, keepdim=True).double(), torch.finfo(dtype)
    above = (top + kind.eps * top.abs().clamp_min(kind.tiny)).to(dtype)
    wrong = rounded.argmax(1, keepdim=True) != largest
    return torch.where(wrong, rounded.scatter(1, largest, above), rounded)


def finite_numbers(argument: str, values: Any, hint: str) -> Tensor:
    """A tensor of finite numbers; float32 stays as it is, other types become float64."""
    try:
        table = as_pandas(values)
        array = values.detach() if isinstance(values, Tensor) else np.array(table, dtype=float)
    except (TypeError, ValueError):
        kind = type(values).__name__
        value = f"{kind} with values that are not numbers"
        if hasattr(values, "tocsr"):
            value, hint = f"{kind}, sparse input is not supported", "give a dense array"
        raise InputError(argument, value, hint) from None
    tensor = torch.atleast_1d(torch.as_tensor(array))
    tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.double()
    if not bool(torch.isfinite(tensor).all()):
        row = int((~torch.isfinite(tensor)).nonzero()[0, 0])
        raise InputError(argument, f"row {row} is nan or infinite", "fill or drop it first")
    return tensor


def read_scores(
    scores: Any,
    kind: str = "auto",
    *,
    argument: str = "scores",
    aligned: Mapping[str, Any] | None = None,
) -> Scores:
    """Read n×C scores or a column for class 1.

    ``aligned`` has further arguments by name; those of pandas must have the same index.
    """
    _check_aligned(scores, argument, aligned or {})
    original = as_pandas(scores)
    values = finite_numbers(argument, original, "give logits or probabilities")
    single = values.dim() == 1
    if values.dim() not in (1, 2) or not values.numel() or (not single and values.size(1) < 2):
        hint = "give n×C with two classes or more, or n probabilities of class 1"
        raise InputError(argument, f"shape {tuple(values.shape)}", hint)
    if single and kind == "logits":
        values = torch.stack([torch.zeros_like(values), values], 1)
    elif single:
        wrong = ((values - 0.5).abs() > 0.5).nonzero().flatten().tolist()
        if wrong:
            value = f"{float(values[wrong[0]]):g} in row {wrong[0]} is not a probability"
            hint = "give probabilities of class 1, logits as n×2, or log-odds with {kind='logits'}"
            raise InputError(argument, value, hint)
        values, kind = torch.stack([1 - values, values], 1), "probabilities"
    probabilities = are_probabilities(values, kind, argument=argument)
    logits = values.clamp_min(torch.finfo(values.dtype).tiny).log() if probabilities else values
    return Scores(original, values, logits, probabilities, single, table=scores)


def read_labels(
    y: Any, scores: Scores, class_names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Tensor]:
    """Names of the classes, and labels as codes (n, −1 unknown), from numbers or names."""
    n, classes = scores.values.shape
    columns = getattr(scores.original, "columns", ()) if class_names is None else class_names
    columns = tuple(map(str, columns))
    values = y.detach() if isinstance(y, Tensor) else _numbers_or_text(y, columns)
    names = tuple(map(str, class_names if class_names is not None else range(classes)))
    if isinstance(values, list) and class_names is None:
        distinct = sorted({value for value in values if value not in MISSING})
        names = columns if set(distinct) <= set(columns) else tuple(distinct)
    if len(names) != classes:
        argument = "y" if class_names is None else "class_names"
        value = f"{len(names)} names for {classes} classes"
        raise InputError(argument, value, "give {class_names}, one for each class")
    if isinstance(values, list):
        codes = {name: code for code, name in enumerate(names)} | dict.fromkeys(MISSING, -1)
        stray = next((value for value in values if value not in codes), None)
        if stray is not None:
            raise InputError("y", f"{stray!r} is not a class", f"give {', '.join(names)}")
        values = torch.tensor([codes[value] for value in values])
    if values is None:
        values = torch.full((n,), -1)
    if values.shape != (n,):
        raise InputError("y", f"shape {tuple(values.shape)}", f"give one class for each of {n}")
    whole = torch.where(values.isnan(), -1, values) if values.is_floating_point() else values
    labels = whole.long()
    wrong = (labels != whole) | (labels < -1) | (labels >= classes)
    if bool(wrong.any()):
        value = f"{whole[wrong][0].item():g} is not one of {classes} classes"
        raise InputError("y", value, f"give 0…{classes - 1}, -1 where unknown")
    return names, labels.to(scores.values.device)


def _numbers_or_text(values: Any, names: Collection[str]) -> Tensor | list[str] | None:
    """A tensor of numbers, a list of stripped texts, or ``None``; texts may be names of digits."""
    if values is None:
        return None
    array = np.array(as_pandas(values))
    if array.dtype.kind not in "biuf":
        cells = array.reshape(-1).tolist()
        texts = [str(value).strip() for value in cells]
        written = {cell.strip() for cell in cells if isinstance(cell, str)} - set(MISSING)
        if written and written <= set(names):
            return texts
        try:
            array = np.array([np.nan if text in MISSING else float(text) for text in texts])
        except ValueError:
            return texts
    return torch.from_numpy(array)


def _check_aligned(scores: Any, argument: str, others: Mapping[str, Any]) -> None:
    """Refuse pandas objects whose index is not that of the scores."""
    # A default index (0, 1, 2, …) is ignored, unless the other has its numbers in another order.
    if not is_pandas(scores):
        return
    rows = scores.index
    for name, values in others.items():
        for part in values.values() if isinstance(values, dict) else [values]:
            if not is_pandas(part) or part.index.equals(rows) or len(part) != len(rows):
                continue
            default = type(rows)(range(len(rows)))
            either_default = rows.equals(default) or part.index.equals(default)
            if not either_default or part.index.isin(rows).all():
                hint = f"give {name}.reindex({argument}.index), or {name}.to_numpy()"
                raise InputError(name, f"its index is not that of {argument}", hint)


def one_hot(codes: Tensor, groups: int, weight: Tensor | None = None) -> csr_array:
    """Membership of nodes of one group each (−1 unknown), times their weight (n×G)."""
    rows = np.flatnonzero((codes >= 0).cpu().numpy())
    entries = np.ones(len(rows)) if weight is None else weight.double().cpu().numpy()[rows]
    columns = codes.cpu().numpy()[rows]
    return csr_array((entries, (rows, columns)), shape=(len(codes), groups))


@dataclass(frozen=True)
class Attribute:
    """One sensitive attribute of all nodes."""

    name: str
    groups: tuple[str, ...]
    sens: Tensor  # group of each node (n; −1 unknown), or probabilities of groups (n×G)
    accuracy: float = math.nan  # of estimated groups on held-out known nodes; nan if given
    baseline: float = math.nan  # of the largest group alone

    @property
    def known(self) -> Tensor:
        """Nodes that have a group or probabilities of groups (n, bool)."""
        return known_mask(self.sens)

    @cached_property
    def membership(self) -> Tensor:
        """Membership of each node in each group (n×G, float64)."""
        return memberships(self.sens, len(self.groups)).double()

    def sums(self, values: Tensor) -> Tensor:
        """Sum rows (n×C) over the members of each group (G×C)."""
        if is_soft(self.sens):
            return self.membership.T @ values
        return segment_sum(values, self.sens.int(), len(self.groups))

    def totals(self, weight: Tensor) -> Tensor:
        """Sum weights (n) over the members of each group (G)."""
        return self.sums(weight.unsqueeze(1)).flatten()

    @property
    def estimated(self) -> Tensor:
        """Nodes whose group is given by probabilities (n, bool)."""
        return (self.sens > 0).sum(1) > 1 if is_soft(self.sens) else torch.zeros_like(self.known)

    @property
    def hard(self) -> Tensor:
        """The most probable group of each node (n), −1 where unknown."""
        return most_likely_group(self.sens)


def attributes(sens: Any, n: int) -> list[Attribute]:
    """Read one or several sensitive attributes of n nodes.

    One is a group per node (0…G−1, −1 or NaN unknown; or names, empty unknown) or probabilities of
    groups (n×G, zeros unknown). Several are a dict of such, a DataFrame with one column each, or a
    list; a list of :class:`Attribute` is taken as it is.
    """
    if sens is None:
        raise InputError("sens", "missing", "give the group of each node, -1 where unknown")
    if isinstance(sens, list) and sens and all(isinstance(item, Attribute) for item in sens):
        return list(sens)
    sens = as_pandas(sens)
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


def attributes_of_all(sens: Any, n: int) -> list[Attribute]:
    """:func:`attributes` of a whole table, in which −1 and 1 alone are two groups."""
    read = attributes(sens, n)
    recoded = [recode_signs(attribute.sens, attribute.name) for attribute in read]
    return [
        attribute if codes is attribute.sens else Attribute(attribute.name, SIGNS, codes)
        for attribute, codes in zip(read, recoded, strict=True)
    ]


def _attribute(name: str, values: Any, n: int) -> Attribute:
    sens, groups = _codes(name, values)
    if sens.dim() == 0 or sens.size(0) != n:
        which = "" if name == "sens" else f"{name!r}, "
        value = f"{which}shape {tuple(sens.shape)} for {n} nodes"
        raise InputError("sens", value, "give one group per node")
    if is_soft(sens):
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
    values = as_pandas(values)
    try:
        array = np.array(values)
    except ValueError:
        raise InputError(name, "rows of different lengths", "give one group per node") from None
    if array.dtype.kind in "biuf":
        return torch.from_numpy(array), tuple(map(str, getattr(values, "columns", ())))
    if array.ndim != 1:
        raise InputError(name, f"{array.dtype} of shape {array.shape}", "give one group per node")
    import pandas as pd

    distinct, place = np.unique(array.astype(str), return_inverse=True)
    texts = pd.Series(distinct).str.strip()
    texts = texts.mask(texts.isin(MISSING))
    numbers = pd.to_numeric(texts, errors="coerce").astype(float)
    if numbers.notna().equals(texts.notna()):
        texts = texts.mask(numbers == -1)
    large = (numbers.abs() >= MAX_EXACT) & texts.str.fullmatch("-?[1-9][0-9]*", na=False)
    # 1.0 is the group 1, but 01 and 1E3 are groups of their own.
    written = texts.str.replace(r"^([+-]?[0-9]+)\.0+$", r"\1", regex=True)
    is_number = numbers.notna() & (numbers.map(as_text) == written)
    values = [
        int(text) if is_large else number if is_numeric else text
        for text, number, is_large, is_numeric in zip(texts, numbers, large, is_number, strict=True)
    ]  # integers that floats would round stay what they are
    codes, names = factorize(pd.Series(values, dtype=object))
    return torch.from_numpy(codes[place]), tuple(map(as_text, names))


def _are_memberships(frame: Any) -> bool:
    """Whether a data frame holds probabilities of groups, and not attributes."""
    if frame.shape[1] < 2 or any(getattr(kind, "kind", "O") != "f" for kind in frame.dtypes):
        return False
    values = np.asarray(frame, dtype=np.float64)
    total = values.sum(1)
    return bool((values >= 0).all() and ((np.abs(total - 1) <= 1e-3) | (total == 0)).all())


def _several(sens: Sequence[Any], n: int) -> bool:
    """Whether a list holds attributes, each a sequence over the nodes, and not nodes."""
    if not len(sens) or any(isinstance(item, str) or not np.ndim(item) for item in sens):
        return False
    return all(len(item) == n for item in sens) and (len(sens) != n or hasattr(sens[0], "dtype"))


def read_features(features: Any, n: int, columns: int | None = None) -> np.ndarray:
    """Features of n rows as numbers (n×d)."""
    if features is None:
        raise InputError("features", "missing", "give what groups are estimated from (n×d)")
    values = finite_numbers("features", features, "encode them as numbers first")
    values = values.double().cpu().reshape(len(values), -1)
    if len(values) != n or columns not in (None, values.size(1)):
        hint = f"give {n} rows" + (f" of {columns}" if columns else "")
        raise InputError("features", f"shape {tuple(values.shape)}", hint)
    return values.numpy()


def column_names(features: Any) -> tuple[str, ...]:
    """Names of the columns of a table; none of an array."""
    table = as_pandas(features)
    return tuple(map(str, table.columns)) if is_pandas(table) and table.ndim == 2 else ()


def in_order_of(names: Sequence[str], features: Any) -> Any:
    """Features of new rows, their columns in the order of a fit; an array is left as it is."""
    given = column_names(features)
    if not names or not given or given == tuple(names):
        return features
    if sorted(given) != sorted(names) or len(set(given)) < len(given):
        value = f"{', '.join(given)}, but the correction reads {', '.join(names)}"
        raise InputError("features", shorten(value, 500), "name these columns")
    table = as_pandas(features)
    return table.iloc[:, [given.index(name) for name in names]]


def recode(attribute: Attribute, name: str, groups: tuple[str, ...]) -> Attribute:
    """An attribute of new rows, coded by the groups of a fit; others are unknown."""
    sens = attribute.sens
    if is_soft(sens):
        if sens.size(1) != len(groups):
            hint = f"give one for each of {', '.join(groups)}"
            raise InputError("sensitive_features", f"{sens.size(1)} probabilities", hint)
        return Attribute(name, groups, sens)
    places = [groups.index(group) if group in groups else -1 for group in attribute.groups]
    minus_one = 0 if groups == SIGNS else -1
    codes = torch.tensor([*places, minus_one])[sens.cpu()]
    unseen = sens.cpu()[(codes < 0) & (sens.cpu() >= 0)].tolist()
    if unseen:
        names = shortlist(sorted({attribute.groups[code] for code in unseen}), 5)
        rows = plural(len(unseen), "row")
        text = f"{name}: {rows} of groups not seen in fit ({names}) left alone"
        warnings.warn(text, stacklevel=4)
    return Attribute(name, groups, codes)
