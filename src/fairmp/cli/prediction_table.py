"""A table of predictions: its predictions, labels and groups; written again with more columns."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.errors import InputError
from fairmp.outputs import atomic_file

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.load_report import LoadReport
    from fairmp.datasets.readers import TableReader
    from fairmp.postprocessing.predictions import Attribute

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".gz")
PREDICTION_NAME = re.compile(
    r"(p|prob|proba|probs|probability|probabilities|score|scores|pred|prediction|predictions)"
    r"([ _.\-]?(1|yes|true|pos|positive|class|class_?1|y))?|y[ _.\-]?(p|prob|proba|score|hat)|risk",
    re.IGNORECASE,
)
ROUNDING_ERROR = 0.005  # of a probability written with two digits
QUOTED = r"^'([=+@\t\r-].)"


@dataclass
class PredictionTable:
    """A table of predictions."""

    path: Path
    reader: TableReader
    raw: Any  # a pyarrow table to write again; that of a text file has every cell as written
    frame: pd.DataFrame  # the columns as numbers and text
    report: LoadReport

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return [str(column) for column in self.frame.columns]

    def require(self, option: str, *columns: str) -> None:
        """Refuse the name of a column that the table lacks."""
        from fairmp.datasets.column_names import require_column

        for column in columns:
            require_column(option, column, self.columns, self.path.name)

    def place(self, rows: np.ndarray) -> str:
        """Name the place of the first of some rows (a mask) in the file."""
        return self.reader.locate(int(np.argmax(rows)))

    def numbers(self, option: str, column: str) -> np.ndarray:
        """A column of finite numbers."""
        from fairmp.datasets.values import as_numbers
        from fairmp.errors import plural

        self.require(option, column)
        values = as_numbers(self.frame[column])
        if values is None:
            raise InputError(option, f"column {column!r} of {self.path.name} holds no numbers")
        missing = ~np.isfinite(values)
        if missing.any():
            rows = plural(int(missing.sum()), "row")
            value = f"column {column!r} has no number in {rows}, the first is {self.place(missing)}"
            raise InputError(option, value, "fill or drop them")
        return values

    def matrix(self, option: str, given: str | Sequence[str]) -> tuple[list[str], np.ndarray]:
        """Columns of numbers, by their names, which may be one text with commas between."""
        columns = listed(option, given) if isinstance(given, str) else list(given)
        return columns, np.stack([self.numbers(option, column) for column in columns], 1)


def read(path: Path, id: str | None, wanted: Iterable[str | None] = ()) -> PredictionTable:
    """Read a CSV, TSV or Parquet table of predictions; one without a header lacks those wanted.

    Apostrophes that :func:`without_formulas` wrote are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from fairmp.datasets.load_report import LoadReport
    from fairmp.datasets.readers import TableReader

    report = LoadReport()
    reader = TableReader(path, "PREDICTIONS", notes=report.notes)
    raw = reader.table(text=reader.find_header((id, *wanted)))
    if reader.dialect is not None:
        plain = [pc.replace_substring_regex(cells, QUOTED, r"\1") for cells in raw.columns]
        raw = pa.table(plain, names=[re.sub(QUOTED, r"\1", name) for name in raw.column_names])
    if not raw.num_rows:
        raise InputError("PREDICTIONS", "the table has a header and no rows", "give predictions")
    frame = reader.frame(raw, text=() if id is None else (id,))
    return PredictionTable(path, reader, raw, frame, report)


@dataclass
class Found:
    """The predictions of a table."""

    values: np.ndarray  # predictions (n×C)
    columns: list[str]  # the columns they came from
    names: list[str] | None  # names of the classes, if the table has them
    drawn: bool = False  # they are decisions, so that corrected ones are drawn at random
    log_odds: bool = False  # a single column holds the log-odds of class 1
    notes: list[str] = field(default_factory=list)  # how the columns were found


def find(
    table: PredictionTable,
    named: Mapping[str, str | None],
    taken: Mapping[str, str],
    positive: str | None = None,
) -> Found:
    """The predictions in the columns that an option names, or in those that look like it."""
    given = {option: text for option, text in named.items() if text is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise InputError(second, f"goes without {first}", "give one of them")
    for option, text in given.items():
        if option == "--decision":
            return decisions(table, text, positive)
        return scores(table, option, text)
    return detected(table, taken)


def scores(table: PredictionTable, option: str, given: str | Sequence[str]) -> Found:
    """Read the columns named by ``--probabilities`` or ``--logits``."""
    columns, matrix = table.matrix(option, given)
    single = len(columns) == 1
    names = None if single else class_names(columns)
    if option == "--logits":
        values = np.concatenate([np.zeros_like(matrix), matrix], 1) if single else matrix
        return Found(values, columns, names, log_odds=single)
    for column, numbers in zip(columns, matrix.T, strict=True):
        wrong = (numbers < 0) | (numbers > 1)
        if wrong.any():
            value = f"{numbers[wrong][0]:g} in column {column!r}, {table.place(wrong)}"
            hint = "give numbers in [0, 1], or name the columns with --logits"
            raise InputError(option, f"{value}, is no probability", hint)
    if single:
        return Found(np.concatenate([1 - matrix, matrix], 1), columns, None)
    total = matrix.sum(1)
    off = np.abs(total - 1) > ROUNDING_ERROR * len(columns)
    if off.any():
        value = f"{', '.join(columns)} sum to {total[off][0]:.4g} in {table.place(off)}, not 1"
        raise InputError(option, value, "name one column for each class, and normalise them")
    return Found(matrix / total[:, None], columns, names)


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
    from fairmp.datasets.load_report import LoadReport
    from fairmp.datasets.targets import Label

    table.require(option, column)
    try:
        label = Label.fit(table.frame[column], LoadReport(), positive=positive)
        return label.transform(table.frame[column], LoadReport()), list(label.classes)
    except InputError as error:
        raise error.rename({"label": option, "positive": "--positive"}) from None


def detected(table: PredictionTable, taken: Mapping[str, str]) -> Found:
    """Find the columns of probabilities; ``taken`` are those of other options, with their names."""
    from fairmp.datasets.values import as_numbers

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
    # Columns that may belong together: all of them, or those with the same first word.
    stems = {column: re.split(r"[\W_\d]", column, maxsplit=1)[0].lower() for column in free}
    alike = [tuple(c for c in free if stems[c] == stem) for stem in stems.values()]
    together = []
    for group in dict.fromkeys([tuple(free), *alike]):
        close = np.abs(sum(free[column] for column in group) - 1) <= ROUNDING_ERROR * len(group)
        if len(group) > 1 and np.mean(close) > 0.9:
            together.append(group)
    named = PREDICTION_NAME.fullmatch if table.reader.header else bool
    likely = [column for column in free if named(column.strip())]
    chosen = together[0] if len(together) == 1 else likely
    if not chosen or (not together and len(likely) != 1):
        value = f"it is not clear which columns of {table.path.name} hold the predictions"
        hint = "name them with --probabilities or --logits"
        in_range = ", ".join(free) or "none"
        raise InputError("--probabilities", f"{value} (in [0, 1]: {in_range})", hint)
    found = scores(table, "--probabilities", chosen)
    of = "of class 1 " if len(found.columns) == 1 else ""
    found.notes.append(f"probabilities {of}taken from {', '.join(found.columns)}")
    return found


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
    numbers = [str(k) for k in range(found.values.shape[1])]
    for order in (found.names, numbers):
        if order is not None and set(names) <= set(order):
            rank = np.array([*(order.index(name) for name in names), -1])
            return rank[codes], found.names or numbers
    if len(names) == len(numbers) == 2 and found.names is None:
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

    from fairmp.datasets.targets import GroupEncoder
    from fairmp.datasets.values import as_numbers
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


def edges_of(table: PredictionTable, edges: Path | None, id: str | None) -> Any:
    """The ``edge_index`` of an edge table, if there is one."""
    if id is not None:
        table.require("--id", id)
    if edges is None:
        return None
    import torch

    from fairmp.datasets.edges import read_edges
    from fairmp.datasets.ids import node_ids

    report = table.report
    report.nodes = len(table.frame)
    ids = node_ids(table.frame, id)
    found = torch.from_numpy(read_edges(edges, ids, None, None, report))
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


def features_of(table: PredictionTable, text: str, left_out: Iterable[str | None]) -> np.ndarray:
    """Columns encoded as features, for the estimate of groups; 'all' but some."""
    from fairmp.datasets.columns import fit_column

    if text.strip() == "all":
        names = [column for column in table.columns if column not in left_out]
    else:
        names = listed("--features", text)
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


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Put an apostrophe before text that a spreadsheet would run, in cells and column names."""

    def quoted(cell: Any) -> Any:
        if not isinstance(cell, str) or len(cell) < 2 or cell[0] not in "=+-@\t\r":
            return cell
        return cell if is_numeric([cell]) else f"'{cell}"

    from fairmp.datasets.dialects import is_numeric

    text = frame.select_dtypes(exclude=["number", "bool", "datetime"]).columns
    changed = {name: frame[name].astype(object).map(quoted) for name in text}
    return frame.assign(**changed).rename(columns=quoted)


def write(
    table: PredictionTable,
    extra: Mapping[str, Any],
    goal: Path,
    *,
    safe: bool = True,
    new: bool = False,
) -> None:
    """Write the table with more columns, in the format of the file's ending, atomically."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for name in extra:
        if name in table.columns:
            value = f"{table.path.name} has a column {name!r} already"
            raise InputError("PREDICTIONS", value, "rename it")
    dialect, ending = table.reader.dialect, goal.suffix.lower()
    with atomic_file(goal.absolute(), new=new) as staging:
        if ending in PARQUET:
            raw = table.raw
            if dialect is not None:  # cells of text become numbers where they are
                raw = pa.Table.from_pandas(table.frame, preserve_index=False)
            for name, values in extra.items():
                raw = raw.append_column(name, pa.array(values))
            parquet.write_table(raw, staging)
        else:
            # Arrow types, so that a column of integers with missing values stays one.
            frame = table.raw.to_pandas(types_mapper=pd.ArrowDtype)
            decimal = "," if "decimal" in table.reader.commas.values() else "."
            for name, values in extra.items():
                column = pd.Series(values, index=frame.index)
                if column.dtype.kind == "f":
                    column = column.map("{:.9g}".format).str.replace(".", decimal, regex=False)
                frame[name] = column
            (without_formulas(frame) if safe else frame).to_csv(
                staging,
                sep=dialect.separator if dialect else ",",
                index=False,
                lineterminator="\n",
                compression="gzip" if ending == ".gz" else None,
            )
