"""What the columns of a table of predictions mean: scores, labels, groups, features, edges."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from fairmp.datasets import edges as edge_tables
from fairmp.datasets.columns import fit_column
from fairmp.datasets.edges import node_ids
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.targets import Bins, GroupEncoder, Label, as_in_training
from fairmp.datasets.values import as_numbers, as_text, factorize, from_text
from fairmp.errors import InputError
from fairmp.frames import MISSING
from fairmp.metrics.counts import SUM_TOLERANCE
from fairmp.metrics.inputs import guess_positive
from fairmp.postprocessing.prediction_table import PredictionTable
from fairmp.postprocessing.predictions import Attribute

PREDICTION_NAME = re.compile(
    r"(p|prob|proba|probs|probability|probabilities|score|scores|pred|prediction|predictions)"
    r"([ _.\-]?(1|yes|true|pos|positive|class|class_?1|y))?|y[ _.\-]?(p|prob|proba|score|hat)|risk",
    re.IGNORECASE,
)
MIN_NORMALISED = 0.9  # share of rows that sum to 1, of columns that belong together


@dataclass(frozen=True)
class TableScores:
    """The predictions of a table."""

    values: np.ndarray  # n×C
    kind: Literal["logits", "probabilities"]
    columns: tuple[str, ...]  # they came from
    class_names: tuple[str, ...] | None  # if the table has them
    are_decisions: bool = False  # probabilities of 0 and 1; corrected decisions are drawn
    are_log_odds: bool = False  # a single column has the log-odds of class 1
    notes: tuple[str, ...] = ()  # how the columns were found


def read_scores(
    table: PredictionTable,
    *,
    probabilities: str | None = None,
    logits: str | None = None,
    decision: str | None = None,
    positive: str | None = None,
    taken: Mapping[str, str],
) -> TableScores:
    """Read the predictions from the columns that are named, or that look like probabilities.

    ``taken`` has the columns with another meaning, and the argument that names each.
    """
    named = {"probabilities": probabilities, "logits": logits, "decision": decision}
    arguments = [argument for argument, text in named.items() if text is not None]
    if len(arguments) > 1:
        value = f"cannot be combined with {arguments[0]}"
        raise InputError(arguments[1], value, "give one of them")
    if decision is not None:
        return _decisions(table, decision, positive)
    if logits is not None:
        return _logits(table, listed("logits", logits))
    if probabilities is not None:
        return _probabilities(table, listed("probabilities", probabilities))
    return _detected(table, taken)


def _logits(table: PredictionTable, columns: Sequence[str]) -> TableScores:
    values = np.stack([table.numbers("logits", column) for column in columns], 1)
    if len(columns) == 1:
        values = np.concatenate([np.zeros_like(values), values], 1)
        return TableScores(values, "logits", tuple(columns), None, are_log_odds=True)
    return TableScores(values, "logits", tuple(columns), class_names(columns))


def _probabilities(
    table: PredictionTable, columns: Sequence[str], notes: tuple[str, ...] = ()
) -> TableScores:
    values = np.stack([table.numbers("probabilities", column) for column in columns], 1)
    for column, numbers in zip(columns, values.T, strict=True):
        wrong = (numbers < 0) | (numbers > 1)
        if wrong.any():
            place = table.first_place(wrong)
            value = f"{numbers[wrong][0]:g} in column {column!r}, {place}, is not a probability"
            hint = "give numbers in [0, 1], or name the columns with {logits}"
            raise InputError("probabilities", value, hint)
    if len(columns) == 1:
        values = np.concatenate([1 - values, values], 1)
        return TableScores(values, "probabilities", tuple(columns), None, notes=notes)
    total = values.sum(1)
    off = np.abs(total - 1) > SUM_TOLERANCE * len(columns)
    if off.any():
        place = table.first_place(off)
        value = f"{', '.join(columns)} sum to {total[off][0]:.4g} in {place}, not 1"
        hint = "name one column for each class, and normalise them"
        raise InputError("probabilities", value, hint)
    values, names = values / total[:, None], class_names(columns)
    return TableScores(values, "probabilities", tuple(columns), names, notes=notes)


def _decisions(table: PredictionTable, column: str, positive: str | None) -> TableScores:
    """A column of decisions as probabilities of 0 and 1."""
    codes, names = _classes(table, "decision", column, positive)
    if (codes < 0).any():
        value = f"column {column!r} is empty in {table.first_place(codes < 0)}"
        raise InputError("decision", value, "drop such rows")
    values = np.eye(len(names))[codes]
    return TableScores(values, "probabilities", (column,), names, are_decisions=True)


def _classes(
    table: PredictionTable, argument: str, column: str, positive: str | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes (−1 where empty) and names of the classes of a column."""
    table.require(argument, column)
    try:
        label = Label.fit(table.frame[column], LoadReport(), positive=positive)
        return label.transform(table.frame[column], LoadReport()), tuple(label.classes)
    except InputError as error:
        raise error.rename(argument if error.argument == "label" else error.argument) from None


def _detected(table: PredictionTable, taken: Mapping[str, str]) -> TableScores:
    """Find the columns of probabilities that are not taken."""
    in_range = _columns_in_range(table)
    free = {column: values for column, values in in_range.items() if column not in taken}
    if in_range and not free:
        column = next(iter(in_range))
        value = f"no other column of {table.path.name} than {column!r} is in [0, 1]"
        hint = "give another column here, or name {probabilities}, {logits} or {decision}"
        raise InputError(taken[column], f"{value} and can hold the predictions", hint)
    normalised = _normalised_columns(free)
    is_name = PREDICTION_NAME.fullmatch if table.reader.header else bool
    likely = tuple(column for column in free if is_name(column.strip()))
    if len(normalised) == 1:
        columns = normalised[0]
    elif normalised or len(likely) == 1:
        columns = likely
    else:
        columns = ()
    if not columns:
        value = f"it is not clear which columns of {table.path.name} hold the predictions"
        candidates = ", ".join(free) or "none"
        hint = "name them with {probabilities} or {logits}"
        raise InputError("probabilities", f"{value} (in [0, 1]: {candidates})", hint)
    of_class = "of class 1 " if len(columns) == 1 else ""
    note = f"probabilities {of_class}taken from {', '.join(columns)}"
    return _probabilities(table, columns, (note,))


def _columns_in_range(table: PredictionTable) -> dict[str, np.ndarray]:
    """Columns of numbers in [0, 1] that are not all 0 or 1."""
    columns = {}
    for column in table.columns:
        values = as_numbers(table.frame[column])
        if values is None:
            continue
        finite = values[np.isfinite(values)]
        if ((finite >= 0) & (finite <= 1)).all() and ((finite != 0) & (finite != 1)).any():
            columns[column] = values
    return columns


def _normalised_columns(columns: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Groups of columns that sum to 1: all of them, or those with the same first word."""
    stems = {column: re.split(r"[\W_\d]", column, maxsplit=1)[0].lower() for column in columns}
    alike = [tuple(c for c in columns if stems[c] == stem) for stem in stems.values()]
    normalised = []
    for group in dict.fromkeys([tuple(columns), *alike]):
        total = sum(columns[column] for column in group)
        close = np.abs(total - 1) <= SUM_TOLERANCE * len(group)
        if len(group) > 1 and np.mean(close) > MIN_NORMALISED:
            normalised.append(group)
    return normalised


def class_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Names of columns without what they share: ``p(no)`` and ``p(yes)`` are "no" and "yes"."""
    start = _common_start(columns)
    end = _common_start([column[::-1] for column in columns])
    names = tuple(column[len(start) : len(column) - len(end)] for column in columns)
    return names if all(names) and len(set(names)) == len(names) else tuple(columns)


def _common_start(words: Sequence[str]) -> str:
    """What words begin with, up to the end of a part: "north" and "nowhere" share nothing."""
    return re.sub(r"[^\W_]*$", "", os.path.commonprefix(list(words)))  # noqa: RUF071, of letters


@dataclass(frozen=True)
class TableLabels:
    """True classes in the order of the predictions."""

    y: np.ndarray  # −1 unknown
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_labels(
    table: PredictionTable, column: str, scores: TableScores, positive: str | None = None
) -> TableLabels:
    """Read true classes; their names must be those of the predictions."""
    as_written = _labels_as_written(table, column, scores.class_names)
    if as_written is not None:
        return as_written
    codes, names = _classes(table, "label", column, positive)
    numbers = tuple(str(k) for k in range(scores.values.shape[1]))
    # Where classes have numbers for names, 2 is the class of that name and not the second.
    has_numbers = any(not isinstance(from_text(name), str) for name in scores.class_names or ())
    for order in (scores.class_names, None if has_numbers else numbers):
        if order is not None and set(names) <= set(order):
            rank = np.array([*(order.index(name) for name in names), -1])
            return TableLabels(rank[codes], scores.class_names or numbers)
    if len(names) == len(numbers) == 2 and scores.class_names is None:
        return TableLabels(codes, names)
    expected = ", ".join(scores.class_names or numbers)
    value = f"column {column!r} has {', '.join(names[:12])}, the predictions have {expected}"
    raise InputError("label", value, "name the columns of probabilities after the classes")


def _labels_as_written(
    table: PredictionTable, column: str, class_names: Sequence[str] | None
) -> TableLabels | None:
    """True classes whose cells are the names of the predictions' classes: ``01`` stays ``01``."""
    cells = _texts(table, "label", column)
    classes = set(cells) - {""}
    if class_names is None or len(classes) < 2 or not classes <= set(class_names):
        return None
    rank = {name: code for code, name in enumerate(class_names)}
    return TableLabels(np.array([rank.get(cell, -1) for cell in cells]), tuple(class_names))


def _texts(table: PredictionTable, argument: str, column: str) -> list[str]:
    """The cells of a column as they are written, "" where they are missing."""
    cells = ["" if cell is None else str(cell).strip() for cell in table.cells(argument, column)]
    return ["" if cell in MISSING else cell for cell in cells]


def with_positive_last(scores: TableScores, positive: str | None) -> TableScores:
    """Put the positive one of two named classes last: the one given, or guessed by its name."""
    names = scores.class_names
    if names is None or len(names) != 2:
        return scores
    chosen = positive if positive in names else guess_positive(names)
    if chosen != names[0]:
        return scores
    columns = scores.columns[::-1] if len(scores.columns) == 2 else scores.columns
    values = np.ascontiguousarray(scores.values[:, ::-1])
    return replace(scores, values=values, columns=columns, class_names=names[::-1])


def read_groups(
    table: PredictionTable,
    columns: Sequence[str],
    bins: Bins | None,
    *,
    cross: bool,
    unknown: Sequence[str] | None = None,
) -> list[Attribute]:
    """The sensitive columns as attributes, each on its own or crossed; empty cells are unknown."""
    table.require("sensitive", *columns)
    attributes = []
    for part in [list(columns)] if cross else [[column] for column in columns]:
        frame = table.frame[part]
        is_binned = bins is not None and (
            cross or len(columns) == 1 or as_numbers(frame[part[0]]) is not None
        )
        # Without bins there is nothing to note but the unknown groups, which results count.
        report = table.report if is_binned else LoadReport()
        encoder = GroupEncoder.fit(frame, bins if is_binned else None, unknown, report)
        sens = torch.from_numpy(encoder.transform(frame, report))
        stem = f"{part[0]} = " if len(part) == 1 else ""
        names = tuple(name.removeprefix(stem) for name in encoder.groups)
        attributes.append(Attribute(" × ".join(part), names, sens))
    return attributes


def read_known_groups(table: PredictionTable, column: str, groups: Sequence[str]) -> Attribute:
    """A sensitive column whose groups were named by another table, in the types of that table.

    Where the groups are numbers, ``01`` is 1; where they are text, it is ``01``. Groups that are
    new come after the others.
    """
    if are_numbers(groups):
        table.require("sensitive", column)
        place, values = factorize(table.frame[column])
        texts = [as_text(from_text(value)) for value in values]
        if "-1" not in groups:
            texts = ["" if text == "-1" else text for text in texts]
        cells = np.array([*texts, ""], dtype=object)[place].tolist()
    else:
        cells = _texts(table, "sensitive", column)
    spellings = {cell: as_in_training(cell, groups) for cell in dict.fromkeys(cells)}
    new = {spelling for cell, spelling in spellings.items() if cell} - set(groups)
    names = (*groups, *sorted(new))
    codes = {name: code for code, name in enumerate(names)}
    sens = torch.tensor([codes[spellings[cell]] if cell else -1 for cell in cells])
    return Attribute(column, names, sens)


def are_numbers(groups: Sequence[str]) -> bool:
    """Whether names of groups are numbers as :func:`~fairmp.datasets.values.as_text` has them."""
    numbers = [from_text(name) for name in groups]
    return all(
        not isinstance(number, str | bool) and as_text(number) == name
        for name, number in zip(groups, numbers, strict=True)
    )


def read_edges(
    table: PredictionTable, edges: Path, id: str | None, columns: edge_tables.EdgeColumns
) -> Tensor:
    """The ``edge_index`` of an edge table between the rows."""
    report = table.report
    report.nodes = len(table.frame)
    ids = node_ids(table.frame, id, report)
    edge_index = torch.from_numpy(edge_tables.read_edges(edges, ids, columns, report).edge_index)
    report.notes[:0] = report.lines()[: -len(report.notes) or None]
    return edge_index


def read_edges_to_known(
    table: PredictionTable,
    edges: Path,
    id: str | None,
    columns: edge_tables.EdgeColumns,
    known_ids: Sequence[str],
) -> Tensor:
    """Edges to the rows (2×E) from people whose ids are known, and from other rows.

    Known people have the numbers 0 to n − 1, and row i has n + i. A row may be one of them.
    """
    row_ids = node_ids(table.frame, id, table.report)
    people, rows = edge_tables.comparable(pa.array(known_ids), row_ids)
    place = edge_tables.positions(people, rows)  # of each row among the known, or −1
    is_new = place < 0
    everyone = pa.concat_arrays([people, rows.filter(pa.array(is_new))])
    node = place.copy()  # of each row among everyone
    node[is_new] = len(people) + np.arange(is_new.sum())
    row = np.full(len(everyone), -1)
    row[node] = np.arange(len(node))
    report = table.report
    report.nodes = len(rows)
    joined = edge_tables.read_edges(edges, everyone, columns, report, isolated=True).edge_index
    source, target = joined[:, row[joined[1]] >= 0]
    number = np.where(source < len(people), source, len(people) + row[source])
    return torch.from_numpy(np.stack([number, len(people) + row[target]]))


def read_features(table: PredictionTable, text: str, left_out: Collection[str]) -> np.ndarray:
    """Columns encoded as features, for the estimate of groups; 'all' but some."""
    if text.strip() == "all":
        names = [column for column in table.columns if column not in left_out]
    else:
        names = listed("features", text)
        table.require("features", *names)
    encoders = [fit_column(table.frame[name], report=table.report) for name in names]
    blocks = [
        encoder.expand(encoder.codes(table.frame[encoder.name], table.report))
        for encoder in encoders
        if encoder
    ]
    if not blocks:
        value = f"{', '.join(names)} carry no information"
        raise InputError("features", value, "name other columns")
    return np.concatenate(blocks, axis=1, dtype=np.float32)


def listed(argument: str, text: str) -> list[str]:
    """Column names separated by commas; one that has a comma is in quotes."""
    rows = csv.reader([text], skipinitialspace=True)
    columns = [part.strip() for row in rows for part in row if part.strip()]
    if not columns:
        raise InputError(argument, f"{text!r} names no column", "give names separated by commas")
    if len(set(columns)) < len(columns):
        raise InputError(argument, f"{text!r} names a column twice")
    return columns
