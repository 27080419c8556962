"""Find the predictions, labels and groups in a table."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.cli.prediction_table import PredictionTable
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.postprocessing.predictions import Attribute

PREDICTION_NAME = re.compile(
    r"(p|prob|proba|probs|probability|probabilities|score|scores|pred|prediction|predictions)"
    r"([ _.\-]?(1|yes|true|pos|positive|class|class_?1|y))?|y[ _.\-]?(p|prob|proba|score|hat)|risk",
    re.IGNORECASE,
)

ROUNDING_ERROR = 0.005  # of a probability written with two digits


@dataclass
class Found:
    """The predictions of a table."""

    values: np.ndarray  # predictions (n×C), or probabilities of class 1 (n)
    columns: list[str]  # the columns they came from
    names: list[str] | None  # names of the classes, if the table has them
    drawn: bool = False  # they are decisions, so that corrected ones are drawn at random
    log_odds: bool = False  # a single column holds the log-odds of class 1
    notes: list[str] = field(default_factory=list)  # how the columns were found


def probabilities(table: PredictionTable, given: str | list[str]) -> Found:
    """Read the columns named by ``--probabilities``."""
    option = "--probabilities"
    columns = listed(option, given) if isinstance(given, str) else given
    matrix = np.stack([table.numbers(option, column) for column in columns], 1)
    for column, numbers in zip(columns, matrix.T, strict=True):
        wrong = (numbers < 0) | (numbers > 1)
        if wrong.any():
            value = f"{numbers[wrong][0]:g} in column {column!r}, {table.place(wrong)}"
            hint = "give numbers in [0, 1], or name the columns with --logits"
            raise InputError(option, f"{value}, is no probability", hint)
    if len(columns) == 1:
        return Found(matrix[:, 0], columns, None)
    total = matrix.sum(1)
    off = np.abs(total - 1) > ROUNDING_ERROR * len(columns)
    if off.any():
        value = f"{', '.join(columns)} sum to {total[off][0]:.4g} in {table.place(off)}, not 1"
        raise InputError(option, value, "name one column for each class, and normalise them")
    return Found(matrix / total[:, None], columns, class_names(columns))


def logits(table: PredictionTable, text: str) -> Found:
    """Read the columns named by ``--logits``."""
    columns = listed("--logits", text)
    values = [table.numbers("--logits", column) for column in columns]
    if len(columns) == 1:
        odds = np.stack([np.zeros_like(values[0]), values[0]], 1)
        return Found(odds, columns, None, log_odds=True)
    return Found(np.stack(values, 1), columns, class_names(columns))


def decisions(table: PredictionTable, column: str, positive: str | None) -> Found:
    """Read a column of decisions as probabilities of 0 and 1."""
    codes, names = _classes(table, "--decision", column, positive)
    if (codes < 0).any():
        value = f"column {column!r} is empty in {table.place(codes < 0)}"
        raise InputError("--decision", value, "drop such rows")
    return Found(np.eye(len(names))[codes], [column], names, drawn=True)


def _classes(
    table: PredictionTable, option: str, column: str, positive: str | None
) -> tuple[np.ndarray, list[str]]:
    from fairmp.datasets.columns import LoadReport
    from fairmp.datasets.targets import Label

    table.require(option, column)
    try:
        label = Label.fit(table.frame[column], LoadReport(), positive=positive)
        return label.transform(table.frame[column], LoadReport()), list(label.classes)
    except InputError as error:
        raise error.rename({"label": option, "positive": "--positive"}) from None


def detected(table: PredictionTable, taken: Mapping[str, str]) -> Found:
    """Find the columns of probabilities if none is named.

    ``taken`` maps columns with another role to the option that gives it.
    """
    from fairmp.datasets.columns import as_numbers

    candidates: dict[str, np.ndarray] = {}
    for column in table.columns:
        values = as_numbers(table.frame[column])
        there = values[np.isfinite(values)] if values is not None else np.empty(0)
        if ((there >= 0) & (there <= 1)).all() and ((there != 0) & (there != 1)).any():
            candidates[column] = values  # type: ignore[assignment]
    free = {column: values for column, values in candidates.items() if column not in taken}
    if candidates and not free:
        column = next(iter(candidates))
        value = f"no other column of {table.path.name} than {column!r} is in [0, 1]"
        hint = "give another column here, or name --probabilities, --logits or --decision"
        raise InputError(taken[column], f"{value} and can hold the predictions", hint)
    together = [group for group in _alike(list(free)) if len(group) > 1 and _sums_to_1(free, group)]
    named = PREDICTION_NAME.fullmatch if table.reader.header else bool
    likely = [column for column in free if named(column.strip())]
    chosen = together[0] if len(together) == 1 else likely
    if not chosen or (not together and len(likely) != 1):
        value = f"it is not clear which columns of {table.path.name} hold the predictions"
        hint = "name them with --probabilities or --logits"
        in_range = ", ".join(free) or "none"
        raise InputError("--probabilities", f"{value} (in [0, 1]: {in_range})", hint)
    found = probabilities(table, chosen)
    of = "of class 1 " if len(found.columns) == 1 else ""
    found.notes.append(f"probabilities {of}taken from {', '.join(found.columns)}")
    return found


def _alike(columns: list[str]) -> list[list[str]]:
    """Columns that may belong together: all of them, or those with the same first word."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        start = re.split(r"[\W_\d]", column, maxsplit=1)[0].lower()
        groups.setdefault(start, []).append(column)
    return [columns, *(group for group in groups.values() if group != columns)]


def _sums_to_1(candidates: dict[str, np.ndarray], group: Sequence[str]) -> bool:
    """Whether columns sum to 1 in most rows."""
    total = np.sum([candidates[column] for column in group], axis=0)
    return bool((np.abs(total - 1) <= ROUNDING_ERROR * len(group)).mean() > 0.9)


def class_names(columns: Sequence[str]) -> list[str]:
    """Names of columns without what they share: ``p(no)`` and ``p(yes)`` are "no" and "yes"."""
    start = _common_start(columns)
    end = _common_start([column[::-1] for column in columns])
    names = [column[len(start) : len(column) - len(end)] for column in columns]
    return names if all(names) and len(set(names)) == len(names) else list(columns)


def _common_start(words: Sequence[str]) -> str:
    """What words begin with, up to the end of a part: "north" and "nowhere" share nothing."""
    return re.sub(r"[^\W_]*$", "", os.path.commonprefix(list(words)))  # noqa: RUF071, of letters


def labels(
    table: PredictionTable, column: str, found: Found, positive: str | None
) -> tuple[np.ndarray, list[str]]:
    """True classes (−1 unknown) in the order of the predictions, and their names."""
    codes, names = _classes(table, "--label", column, positive)
    count = 2 if found.values.ndim == 1 else found.values.shape[1]
    numbers = [str(k) for k in range(count)]
    for order in (found.names, numbers):
        if order is not None and set(names) <= set(order):
            rank = np.array([*(order.index(name) for name in names), -1])
            return rank[codes], found.names or numbers
    if len(names) == count == 2 and found.names is None:
        found.notes.append(f"class 1 is {names[1]!r} ({column}); --positive names another")
        return codes, names
    expected = ", ".join(found.names or numbers)
    value = f"column {column!r} has {', '.join(names[:12])}, the predictions have {expected}"
    raise InputError("--label", value, "name the columns of probabilities after the classes")


def groups(
    table: PredictionTable, sensitive: list[str] | None, cuts: Any, cross: bool
) -> list[Attribute] | None:
    """The sensitive columns as attributes, each on its own or crossed; empty cells are unknown."""
    import torch

    from fairmp.datasets.columns import as_numbers
    from fairmp.datasets.targets import GroupEncoder
    from fairmp.postprocessing.predictions import Attribute

    if not sensitive:
        return None
    table.require("--sensitive", *sensitive)
    found = []
    for part in [sensitive] if cross else [[column] for column in sensitive]:
        frame = table.frame[part]
        binned = cross or len(sensitive) == 1 or as_numbers(frame[part[0]]) is not None
        encoder = GroupEncoder.fit(frame, cuts if binned else None, None, table.report)
        sens = torch.from_numpy(encoder.transform(frame, table.report))
        stem = f"{part[0]} = " if len(part) == 1 else ""
        names = tuple(name.removeprefix(stem) for name in encoder.groups)
        found.append(Attribute(" × ".join(part), names, sens))
    return found


def criteria(table: PredictionTable, names: list[str] | None, matrix: str | None) -> list[Any]:
    """The criteria asked for: names, and a matrix of columns."""
    asked: list[Any] = list(names or ([] if matrix else ["demographic_parity"]))
    if matrix is not None:
        rows = listed("--matrix", matrix)
        asked.append(np.stack([table.numbers("--matrix", column) for column in rows]))
    return asked


def edges_of(table: PredictionTable, edges: Path | None, id: str | None) -> Any:
    """The ``edge_index`` of an edge table, if there is one."""
    if id is not None:
        table.require("--id", id)
    if edges is None:
        return None
    import torch

    from fairmp.datasets.edges import edge_positions, node_ids, undirected

    report, count = table.report, len(table.frame)
    ends = edge_positions(edges, node_ids(table.frame, id), None, None, report)
    report.nodes = count
    found = torch.from_numpy(undirected(*ends, count, report))
    report.notes[:0] = report.lines()[: -len(report.notes) or None]
    return found


def mask(table: PredictionTable, column: str) -> np.ndarray:
    """Rows that are true in a column."""
    table.require("--population", column)
    words = table.frame[column].astype(str).str.strip().str.lower()
    true = words.isin(["true", "1", "1.0", "yes", "y", "t"]).to_numpy(dtype=bool)
    false = words.isin(["false", "0", "0.0", "no", "n", "f", "", "nan", "none", "<na>"]).to_numpy()
    wrong = ~(true | false)
    if wrong.any():
        value = f"{words[wrong].iloc[0]!r} in {table.place(wrong)} is neither true nor false"
        raise InputError("--population", value, "give 1 and 0, or true and false")
    return true


def features_of(
    table: PredictionTable,
    features: str | None,
    estimate_sens: bool,
    sensitive: list[str] | None,
    label: str | None,
    id: str | None,
) -> Any:
    """Columns encoded as features, for the estimate of groups."""
    if features is None:
        return None
    if not estimate_sens:
        raise InputError("--features", "they are used to estimate groups", "add --estimate-sens")
    from fairmp.datasets.columns import fit_column

    if features.strip() == "all":
        taken = {*(sensitive or []), label, id}
        names = [column for column in table.columns if column not in taken]
    else:
        names = listed("--features", features)
        table.require("--features", *names)
    fitted = [fit_column(table.frame[name], report=table.report) for name in names]
    blocks = [one.expand(one.codes(table.frame[one.name], table.report)) for one in fitted if one]
    if not blocks:
        hint = "name other columns"
        raise InputError("--features", f"{', '.join(names)} carry no information", hint)
    return np.concatenate(blocks, axis=1, dtype=np.float32)


def listed(option: str, text: str) -> list[str]:
    """Column names separated by commas; one that has a comma is in quotes."""
    rows = csv.reader([text], skipinitialspace=True)
    columns = [part.strip() for row in rows for part in row if part.strip()]
    if not columns:
        raise InputError(option, f"{text!r} names no column", "give names separated by commas")
    if len(set(columns)) < len(columns):
        raise InputError(option, f"{text!r} names a column twice")
    return columns
