"""Find the predictions, labels and groups in a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.cli.prediction_table import PredictionTable
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.postprocessing.attributes import Attribute

PREDICTION_NAME = re.compile(
    r"(p|prob|proba|probs|probability|probabilities|score|scores|pred|prediction|predictions)"
    r"([ _.\-]?(1|yes|true|pos|positive|class|class_?1|y))?|y[ _.\-]?(p|prob|proba|score|hat)|risk",
    re.IGNORECASE,
)

ROUNDING_ERROR = 0.005  # of a probability written with two digits


@dataclass
class Found:
    """The predictions of a table.

    Attributes:
        values: Predictions (n×C), or probabilities of class 1 (n).
        columns: The columns they came from.
        names: Names of the classes, if the table has them.
        drawn: Whether they are decisions, so that corrected ones are drawn at random.
        log_odds: Whether a single column holds the log-odds of class 1.
        notes: How the columns were found.
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
    matrix = np.stack(values, 1)
    total = matrix.sum(1)
    off = np.flatnonzero(np.abs(total - 1) > ROUNDING_ERROR * len(columns))
    if len(off):
        raise InputError(
            "--probabilities",
            f"{', '.join(columns)} sum to {total[off[0]]:.4g} in {table.line(int(off[0]))}, not 1",
            "name one column for each class, and normalise them",
        )
    return Found(matrix / total[:, None], columns, class_names(columns))


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
    codes, names = _classes(table, "--decision", column, positive)
    missing = np.flatnonzero(codes < 0)
    if len(missing):
        raise InputError(
            "--decision",
            f"column {column!r} is empty in {table.line(int(missing[0]))}",
            "drop such rows",
        )
    return Found(np.eye(len(names))[codes], [column], names, drawn=True)


def _classes(
    table: PredictionTable, option: str, column: str, positive: str | None
) -> tuple[np.ndarray, list[str]]:
    from fairmp.datasets.targets import Label

    table.require(option, column)
    try:
        label = Label.fit(table.frame[column], positive=positive)
        return label.transform(table.frame[column]), list(label.classes)
    except InputError as error:
        raise error.rename({"label": option, "positive": "--positive"}) from None


def detected(table: PredictionTable, taken: Mapping[str, str]) -> Found:
    """Find the columns of probabilities if none is named.

    Args:
        table: The table.
        taken: Columns with another role, and the option that gives it.
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
    likely = [column for column in candidates if PREDICTION_NAME.fullmatch(column.strip())]
    chosen = together[0] if len(together) == 1 else likely
    if not together and len(likely) != 1:
        chosen = []
    if not chosen:
        which = ", ".join(candidates) or "none"
        raise InputError(
            "--probabilities",
            f"it is not clear which columns of {table.path.name} hold the predictions (in [0, 1]: "
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
    return bool((np.abs(total - 1) <= ROUNDING_ERROR * len(group)).mean() > 0.9)


def class_names(columns: Sequence[str]) -> list[str]:
    """Names of columns without what they share: ``p(no)`` and ``p(yes)`` are "no" and "yes"."""
    start = _common_start(columns)
    end = _common_start([column[::-1] for column in columns])[::-1]
    # A shared beginning ends where a word does: "north" and "nowhere" share nothing.
    start = start[: len(start) - len(re.search(r"[^\W_]*$", start).group())]  # type: ignore[union-attr]
    end = end[len(re.match(r"[^\W_]*", end).group()) :]  # type: ignore[union-attr]
    names = [column[len(start) : len(column) - len(end)] for column in columns]
    return names if all(names) and len(set(names)) == len(names) else list(columns)


def _common_start(words: Sequence[str]) -> str:
    letters = takewhile(lambda pair: len(set(pair)) == 1, zip(*words, strict=False))
    return "".join(pair[0] for pair in letters)


def labels(
    table: PredictionTable, column: str, found: Found, positive: str | None
) -> tuple[np.ndarray, list[str]]:
    """True classes (−1 unknown) in the order of the predictions, and their names."""
    codes, names = _classes(table, "--label", column, positive)
    count = 2 if found.values.ndim == 1 else found.values.shape[1]
    if found.names is not None and set(names) <= set(found.names):
        rank = np.array([*(found.names.index(name) for name in names), -1])
        return rank[codes], found.names
    numbers = [str(k) for k in range(count)]
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
    from fairmp.datasets.targets import GroupEncoder
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
        encoder = GroupEncoder.fit(table.frame[part], bins=wanted, report=table.report)
        sens = torch.from_numpy(encoder.transform(table.frame[part], table.report))
        stem = f"{part[0]} = " if len(part) == 1 else ""
        names = tuple(name.removeprefix(stem) for name in encoder.groups)
        observed = torch.zeros(len(sens), dtype=torch.bool)
        found.append(Attribute(" × ".join(part), names, sens, observed))
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

    from fairmp.datasets.edge_tables import edge_positions
    from fairmp.datasets.edges import node_ids, undirected

    ends = edge_positions(edges, node_ids(table.frame, id), None, None, table.report)
    table.report.nodes = len(table.frame)
    found = torch.from_numpy(undirected(*ends, len(table.frame), table.report))
    table.report.notes[:0] = table.report.lines()[: -len(table.report.notes) or None]
    return found


def mask(table: PredictionTable, column: str) -> np.ndarray:
    """Rows that are true in a column."""
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
    """Columns encoded as features, for the estimate of groups."""
    if features is None:
        return None
    if not estimate_sens:
        raise InputError("--features", "they are used to estimate groups", "add --estimate-sens")
    from fairmp.datasets.features import fit_column

    if features.strip() == "all":
        taken = {*(sensitive or []), label, id}
        names = [column for column in table.columns if column not in taken]
    else:
        names = listed("--features", features)
        for name in names:
            table.require("--features", name)
    encoders = [fit_column(table.frame[name], report=table.report) for name in names]
    blocks = [one.transform(table.frame[one.name], table.report) for one in encoders if one]
    if not blocks:
        hint = "name other columns"
        raise InputError("--features", f"{', '.join(names)} carry no information", hint)
    return np.concatenate(blocks, axis=1, dtype=np.float32)


def listed(option: str, text: str) -> list[str]:
    """Column names separated by commas."""
    columns = [part.strip() for part in text.split(",") if part.strip()]
    if not columns:
        raise InputError(option, f"{text!r} names no column", "give names separated by commas")
    if len(set(columns)) < len(columns):
        raise InputError(option, f"{text!r} names a column twice")
    return columns


def _alike(columns: list[str]) -> list[list[str]]:
    """Columns that may belong together: all of them, or those with the same first word."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        start = re.match(r"[^\W_\d]*", column).group().lower()  # type: ignore[union-attr]
        groups.setdefault(start, []).append(column)
    parts = [group for group in groups.values() if group != columns]
    return [columns, *parts]
