"""Find the predictions in a table, and what its classes and labels are called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.cli.prediction_table import PredictionTable
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.postprocessing.attributes import Attribute

LIKELY = re.compile(
    r"(p|prob|proba|probs|probability|probabilities|score|scores|pred|prediction|predictions)"
    r"([ _.\-]?(1|yes|true|pos|positive|class|class_?1|y))?|y[ _.\-]?(p|prob|proba|score|hat)|risk",
    re.IGNORECASE,
)


ROUNDED = 0.005  # probabilities of two digits are off by as much, each


@dataclass
class Found:
    """The predictions of a table.

    Attributes:
        values: n×C, or n probabilities of class 1.
        columns: the columns they came from.
        names: the classes' names, where the table says them.
        drawn: whether they were decisions, and mended ones must be drawn.
        log_odds: whether a single column held the log-odds of class 1.
    """

    values: np.ndarray
    columns: list[str]
    names: list[str] | None
    drawn: bool = False
    log_odds: bool = False
    notes: list[str] = field(default_factory=list)


def probabilities(table: PredictionTable, text: str) -> Found:
    """Read the columns named by ``--probabilities``."""
    columns = listed("--probabilities", text)
    values = [table.numbers("--probabilities", column) for column in columns]
    for column, numbers in zip(columns, values, strict=True):
        wrong = np.flatnonzero((numbers < 0) | (numbers > 1))
        if len(wrong):
            raise InputError(
                "--probabilities",
                f"{numbers[wrong[0]]:g} in column {column!r}, {table.line(int(wrong[0]))}, is no "
                "probability",
                "give numbers in [0, 1], or name the columns with --logits",
            )
    if len(columns) == 1:
        return Found(values[0], columns, None)
    return _shares(table, columns, np.stack(values, 1))


def _shares(table: PredictionTable, columns: list[str], values: np.ndarray) -> Found:
    """Probabilities of all classes, which sum to 1 but for the digits that were cut off."""
    total = values.sum(1)
    off = np.flatnonzero(np.abs(total - 1) > ROUNDED * len(columns))
    if len(off):
        raise InputError(
            "--probabilities",
            f"{', '.join(columns)} sum to {total[off[0]]:.4g} in {table.line(int(off[0]))}, not 1",
            "name one column for each class, and normalise them",
        )
    return Found(values / total[:, None], columns, class_names(columns))


def logits(table: PredictionTable, text: str) -> Found:
    """Read the columns named by ``--logits``."""
    columns = listed("--logits", text)
    values = [table.numbers("--logits", column) for column in columns]
    if len(columns) == 1:
        odds = values[0]
        return Found(np.stack([np.zeros_like(odds), odds], 1), columns, None, log_odds=True)
    return Found(np.stack(values, 1), columns, class_names(columns))


def decisions(table: PredictionTable, column: str, positive: str | None) -> Found:
    """Read a column of decisions as probabilities of 0 and 1."""
    from fairmp.datasets.targets import encode_label

    table.require("--decision", column)
    try:
        codes, names = encode_label(table.frame[column], positive=positive)
    except InputError as error:
        raise InputError.parse(str(error).replace("label:", "--decision:", 1)) from None
    gone = np.flatnonzero(codes < 0)
    if len(gone):
        raise InputError(
            "--decision",
            f"column {column!r} is empty in {table.line(int(gone[0]))}",
            "drop such rows",
        )
    return Found(np.eye(len(names))[codes], [column], names, drawn=True)


def detected(table: PredictionTable, taken: Mapping[str, str]) -> Found:
    """Find the columns of probabilities where none is named.

    Args:
        table: the table.
        taken: columns that are something else, and the option that says so.
    """
    from fairmp.datasets.columns import as_numbers

    candidates: dict[str, np.ndarray] = {}
    for column in table.columns:
        values = as_numbers(table.frame[column])
        if values is None:
            continue
        there = values[np.isfinite(values)]
        if ((there >= 0) & (there <= 1)).all() and ((there != 0) & (there != 1)).any():
            candidates[column] = values
    free = {column: values for column, values in candidates.items() if column not in taken}
    if candidates and not free:
        column = next(iter(candidates))
        raise InputError(
            taken[column],
            f"no other column of {table.path.name} than {column!r} is in [0, 1] and can hold the "
            "predictions",
            "give another column here, or name the predictions with --probabilities, --logits "
            "or --decision",
        )
    candidates = free
    together = [
        group for group in _alike(list(candidates)) if len(group) > 1 and _sum(candidates, group)
    ]
    likely = [column for column in candidates if LIKELY.fullmatch(column.strip())]
    chosen = together[0] if len(together) == 1 else likely
    if not together and len(likely) != 1:
        chosen = []
    if not chosen:
        which = ", ".join(candidates) or "none"
        raise InputError(
            "--probabilities",
            f"which columns of {table.path.name} hold the predictions is not clear (in [0, 1]: "
            f"{which})",
            "name them with --probabilities or --logits",
        )
    found = probabilities(table, ",".join(chosen))
    shown = ", ".join(found.columns)
    of = "of class 1 " if len(found.columns) == 1 else ""
    found.notes.append(f"probabilities {of}taken from {shown}")
    return found


def _sum(candidates: dict[str, np.ndarray], group: Sequence[str]) -> bool:
    """Whether columns sum to 1 in most rows."""
    total = np.sum([candidates[column] for column in group], axis=0)
    return bool((np.abs(total - 1) <= ROUNDED * len(group)).mean() > 0.9)


def class_names(columns: Sequence[str]) -> list[str]:
    """What columns are called beside what they share.

    Example:
        >>> class_names(["p(no)", "p(yes)"]), class_names(["prob_a", "prob_b"])
        (['no', 'yes'], ['a', 'b'])
    """
    start = _shared(columns)
    end = _shared([column[::-1] for column in columns])[::-1]
    # A shared beginning ends where a word does: "north" and "nowhere" share nothing.
    start = start[: len(start) - len(re.search(r"[^\W_]*$", start).group())]  # type: ignore[union-attr]
    end = end[len(re.match(r"[^\W_]*", end).group()) :]  # type: ignore[union-attr]
    names = [column[len(start) : len(column) - len(end)] for column in columns]
    return names if all(names) and len(set(names)) == len(names) else list(columns)


def _shared(words: Sequence[str]) -> str:
    """What words have in common at their beginning."""
    length = 0
    for letters in zip(*words, strict=False):
        if len(set(letters)) > 1:
            break
        length += 1
    return words[0][:length]


def labels(
    table: PredictionTable, column: str, found: Found, positive: str | None
) -> tuple[np.ndarray, list[str]]:
    """True classes (−1 unknown) in the order of the predictions, and the classes' names."""
    from fairmp.datasets.columns import shown
    from fairmp.datasets.targets import encode_label

    table.require("--label", column)
    count = 2 if found.values.ndim == 1 else found.values.shape[1]
    try:
        codes, names = encode_label(table.frame[column], positive=positive)
    except InputError as error:
        raise InputError.parse(
            str(error).replace("label:", "--label:", 1).replace("positive:", "--positive:", 1)
        ) from None
    if found.names is not None and set(names) <= set(found.names):
        rank = np.array([*(found.names.index(name) for name in names), -1])
        return rank[codes], found.names
    numbers = [shown(k) for k in range(count)]
    if set(names) <= set(numbers):
        rank = np.array([*(numbers.index(name) for name in names), -1])
        return rank[codes], found.names or numbers
    if len(names) == count == 2 and found.names is None:
        found.notes.append(f"class 1 is {names[1]!r} ({column}); --positive names another")
        return codes, names
    raise InputError(
        "--label",
        f"column {column!r} has {', '.join(names[:12])}, the predictions have "
        f"{', '.join(found.names or numbers)}",
        "name the columns of probabilities after the classes",
    )


def groups(
    table: PredictionTable, sensitive: list[str] | None, cuts: Any, cross: bool
) -> list[Attribute] | None:
    """The sensitive columns as attributes, each on its own or crossed; empty cells are unknown."""
    import torch

    from fairmp.datasets.columns import as_numbers
    from fairmp.datasets.targets import encode_groups
    from fairmp.postprocessing.attributes import Attribute

    if not sensitive:
        return None
    for column in sensitive:
        table.require("--sensitive", column)
    found = []
    for part in [sensitive] if cross else [[column] for column in sensitive]:
        wanted = cuts
        if len(sensitive) > 1 and not cross and as_numbers(table.frame[part[0]]) is None:
            wanted = None
        codes, names = encode_groups(table.frame[part], bins=wanted, report=table.report)
        short = [name.removeprefix(f"{part[0]} = ") if len(part) == 1 else name for name in names]
        sens = torch.from_numpy(codes)
        nobody = torch.zeros(len(sens), dtype=torch.bool)
        found.append(Attribute(" × ".join(part), tuple(short), sens, nobody))
    return found


def criteria(table: PredictionTable, names: list[str] | None, matrix: str | None) -> list[Any]:
    """What is asked for: names, and a matrix of columns."""
    asked: list[Any] = list(names or ([] if matrix else ["demographic_parity"]))
    if matrix is not None:
        rows = listed("--matrix", matrix)
        asked.append(np.stack([table.numbers("--matrix", column) for column in rows]))
    return asked


def edges_of(table: PredictionTable, edges: Path | None, id: str | None) -> Any:
    """The graph of an edge table (2×E), where there is one."""
    if edges is None:
        if id is not None:
            table.require("--id", id)
        return None
    import torch

    from fairmp.datasets.edges import undirected
    from fairmp.datasets.table_files import edge_ends, ids_of

    if id is not None:
        table.require("--id", id)
    ids = ids_of(table.frame, id)
    ends = edge_ends(edges, ids, None, None, table.report)
    table.report.nodes = len(table.frame)
    found = torch.from_numpy(undirected(*ends, len(table.frame), table.report))
    table.report.notes[:0] = table.report.lines()[: -len(table.report.notes) or None]
    return found


def mask(table: PredictionTable, column: str) -> np.ndarray:
    """Which rows are true in a column."""
    table.require("--population", column)
    words = table.frame[column].astype(str).str.strip().str.lower()
    true = words.isin(["true", "1", "1.0", "yes", "y", "t"])
    false = words.isin(["false", "0", "0.0", "no", "n", "f", "", "nan", "none", "<na>"])
    wrong = np.flatnonzero(~(true | false))
    if len(wrong):
        raise InputError(
            "--population",
            f"{words.iloc[wrong[0]]!r} in {table.line(int(wrong[0]))} is neither true nor false",
            "give 1 and 0, or true and false",
        )
    return true.to_numpy(dtype=bool)


def features_of(
    table: PredictionTable,
    features: str | None,
    estimate_sens: bool,
    sensitive: list[str] | None,
    label: str | None,
    id: str | None,
) -> Any:
    """Columns as numbers, for the estimate of groups."""
    if features is None:
        return None
    if not estimate_sens:
        raise InputError("--features", "they are read to estimate groups", "add --estimate-sens")
    from fairmp.datasets.features import encode_features

    if features.strip() == "all":
        taken = {*(sensitive or []), label, id}
        names = [column for column in table.columns if column not in taken]
    else:
        names = listed("--features", features)
        for name in names:
            table.require("--features", name)
    x, _ = encode_features(table.frame[names], report=table.report)
    if not x.shape[1]:
        raise InputError("--features", f"{', '.join(names)} say nothing", "name other columns")
    return x


def listed(option: str, text: str) -> list[str]:
    """Column names with commas between."""
    columns = [part.strip() for part in text.split(",") if part.strip()]
    if not columns:
        raise InputError(option, f"{text!r} names no column", "give names with commas between")
    if len(set(columns)) < len(columns):
        raise InputError(option, f"{text!r} names a column twice")
    return columns


def _alike(columns: list[str]) -> list[list[str]]:
    """Columns that may belong together: all of them, or those that begin alike."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        start = re.match(r"[^\W_\d]*", column).group().lower()  # type: ignore[union-attr]
        groups.setdefault(start, []).append(column)
    parts = [group for group in groups.values() if group != columns]
    return [columns, *parts]
