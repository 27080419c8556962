"""A node table larger than memory: read once, kept column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.columns import BinsGiven, as_numbers, coded, holds_dates
from fairmp.datasets.edges import LoadReport, check_ids
from fairmp.datasets.encoding import DEGREE, Encoding, learn_label, learn_sensitive
from fairmp.datasets.features import Category, Column, Number, _why_nothing
from fairmp.datasets.readers import MISSING, Layout, kind_of, layout_of, separator_note
from fairmp.datasets.table_files import _column, _to_frame, require
from fairmp.datasets.targets import encode_groups, encode_label
from fairmp.distributed.shard_format import ArrayWriter
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 1 << 24  # bytes of text parsed at a time
ROWS = 1 << 18  # rows of features made at a time
CATEGORIES = 20  # as many as from_tables gives a feature each


@dataclass(frozen=True)
class Columns:
    """What of a node table is what."""

    id: str | None
    label: str
    sensitive: tuple[str, ...]
    sensitive_bins: BinsGiven = None
    drop: tuple[str, ...] = ()
    source: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class Encoded:
    """A node table as numbers: labels and groups here, features on disk, a file a column.

    Attributes:
        ids: the id column, a pyarrow array; ``None`` where row numbers are ids.
        y: classes (n), −1 unknown.
        sens: groups (n), −1 unknown.
        encoding: how columns became numbers.
        folder: where the features are.
    """

    ids: Any
    y: np.ndarray
    sens: np.ndarray
    encoding: Encoding
    folder: Path

    def features(self, numbers: np.ndarray) -> np.ndarray:
        """Return some nodes' features (len(numbers)×d)."""
        count = len(self.encoding.feature_names)
        result = np.empty((len(numbers), count), dtype=np.float32)
        for k in range(count):
            result[:, k] = np.load(self.folder / f"feature-{k}.npy", mmap_mode="r")[numbers]
        return result

    def know_degree(self, degree: np.ndarray) -> None:
        """Take the degree as the only feature, where there is no other."""
        if self.encoding.degree:
            np.save(self.folder / "feature-0.npy", np.log1p(degree).astype(np.float32))


def read_nodes(path: Path, columns: Columns, folder: Path, report: LoadReport) -> Encoded:
    """Read a node table, and encode its columns one after the other.

    Every column becomes the numbers that :func:`fairmp.datasets.from_tables` makes of it, with
    the same code; memory holds one column at a time.

    Args:
        path: CSV, TSV (gzipped or not) or Parquet.
        columns: which column is what.
        folder: for the columns' files.
        report: where notes go.
    """
    table = _Parquet(path) if kind_of(path, "nodes") == "parquet" else _Text(path, folder, report)
    chosen = _chosen(columns, table.names)
    own = [columns.label, *columns.sensitive, *(() if columns.id is None else (columns.id,))]
    table.scan([name for name in table.names if name in own or name in chosen])

    label = table.column(columns.label)[columns.label]
    y, classes = encode_label(label, report=report)
    groups = label.to_frame()[[]]
    for name in columns.sensitive:
        groups = groups.assign(**{name: table.column(name)[name]})
    sens, names = encode_groups(groups, bins=columns.sensitive_bins, report=report)
    ids = None
    if columns.id is not None:
        ids = _column(table.column(columns.id, text=True)[columns.id])
        check_ids(ids, f"id: column {columns.id!r}")
    report.nodes = len(y)
    learned: list[Column] = []
    made = 0
    for name in chosen:
        how = _save_features(table.column(name)[name], folder, made, report)
        if how is not None:
            learned.append(how)
            made += len(how.feature_names)
    if not learned:
        report.notes.append(f"no feature column is left: the only feature is {DEGREE}")
    read = {column.name for column in learned}
    encoding = Encoding(
        columns.id,
        columns.source,
        columns.target,
        learn_label(label, classes, None, None),
        learn_sensitive(groups, columns.sensitive_bins, None),
        tuple(names),
        tuple(learned),
        tuple(name for name in table.names if name not in read),
        degree=not learned,
    )
    return Encoded(ids, y.astype(np.int32), sens.astype(np.int32), encoding, folder)


def _save_features(
    series: pd.Series, folder: Path, first: int, report: LoadReport
) -> Column | None:
    """Learn how a column becomes features, and save them; ``None`` where it carries nothing.

    As :func:`fairmp.datasets.features.learn_features` does, but for the features of some rows at a
    time: those of twenty categories would take twenty times the column's room.
    """
    name = str(series.name)
    gone = int(series.isna().sum())
    if gone == len(series):
        report.notes.append(f"column {name!r} is empty and left out")
        return None
    numbers = as_numbers(series, CATEGORIES, report)
    column: Column | None
    if numbers is not None:
        gone = int(np.isnan(numbers).sum())
        column = Number.learn(name, numbers, "standard", dates=holds_dates(series))
        codes, values = numbers, None
    else:
        codes, values = coded(series)
        column = Category.learn(name, codes, values, CATEGORIES, report)
    if column is None:
        report.notes.append(f"column {name!r} {_why_nothing(series)} and is left out")
        return None
    if gone:
        report.missing[name] = gone
    with ExitStack() as stack:
        files = [
            stack.enter_context(
                ArrayWriter(folder / f"feature-{first + k}.npy", (len(series),), np.float32)
            )
            for k in range(len(column.feature_names))
        ]
        for start in range(0, len(series), ROWS):
            piece = codes[start : start + ROWS]
            x = (
                column.encode(piece)
                if isinstance(column, Number)
                else column.encode(piece, values or [])
            )
            for k, file in enumerate(files):
                file.append(x[:, k])
    return column


def _chosen(columns: Columns, names: Sequence[str]) -> list[str]:
    if not columns.sensitive:
        raise InputError("sensitive", "no column is named", "give one or more")
    wanted = [("label", columns.label), *(("sensitive", name) for name in columns.sensitive)]
    wanted += [("drop", name) for name in columns.drop]
    for argument, column in [*(() if columns.id is None else [("id", columns.id)]), *wanted]:
        require(argument, column, names, "the node table")
    no_features = {columns.id, columns.label, *columns.sensitive, *columns.drop}
    return [name for name in names if name not in no_features]


class _Parquet:
    """A table whose columns lie apart already."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        self.path = path
        try:
            self.file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError):
            raise _broken("nodes", path) from None
        self.names: list[str] = list(self.file.schema_arrow.names)
        if not self.file.metadata.num_rows:
            raise InputError("nodes", "the table has a header and no rows", "give one row a node")
        _check_names(self.names)

    def scan(self, wanted: Sequence[str]) -> None:
        """Nothing to do: columns lie apart already."""

    def column(self, name: str, *, text: bool = False) -> pd.DataFrame:
        import pyarrow as pa

        try:
            table = self.file.read(columns=[name])
        except (pa.ArrowException, OSError):
            raise _broken("nodes", self.path) from None
        return _to_frame(table, self.path, "nodes", keep=(name,) if text else ())


class _Text:
    """A table of text, taken apart in one pass: each column becomes a file of its own."""

    def __init__(self, path: Path, folder: Path, report: LoadReport) -> None:
        self.path, self.folder = path, folder
        self.layout = layout_of(path, "nodes")
        note = separator_note(path, self.layout)
        if note:
            report.notes.append(note)
        self.names = [cell.strip() for cell in self.layout.first]
        _check_names(self.names)

    def scan(self, wanted: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.csv as arrow

        self.wanted = list(wanted)
        rows = 0
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    arrow.CSVWriter(str(self.folder / f"column-{k}.csv"), _one_text(name))
                )
                for k, name in enumerate(self.wanted)
            ]
            for batch in text_batches(self.path, "nodes", self.layout, quotes=True):
                rows += batch.num_rows
                for name, writer in zip(self.wanted, writers, strict=True):
                    cells = batch.column(self.names.index(name)).cast(pa.string())
                    writer.write(pa.record_batch([cells], schema=_one_text(name)))
        if not rows:
            raise InputError("nodes", "the table has a header and no rows", "give one row a node")

    def column(self, name: str, *, text: bool = False) -> pd.DataFrame:
        import pyarrow as pa
        import pyarrow.csv as arrow

        table = arrow.read_csv(
            self.folder / f"column-{self.wanted.index(name)}.csv",
            arrow.ReadOptions(block_size=BLOCK, skip_rows=1, column_names=[name]),
            arrow.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            arrow.ConvertOptions(
                column_types={name: pa.string()} if text else None,
                null_values=list(MISSING),
                strings_can_be_null=False,
                decimal_point=self.layout.decimal,
            ),
        )
        return _to_frame(table, self.path, "nodes", keep=(name,) if text else ())


def _one_text(name: str) -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.string())])


def text_batches(
    path: Path,
    argument: str,
    layout: Layout,
    *,
    names: Sequence[str] | None = None,
    types: dict[str, Any] | None = None,
    quotes: bool = False,
) -> Iterator[Any]:
    """Read a text table a block at a time, as pyarrow record batches.

    Args:
        path: the file; gzip is recognised by its first bytes.
        argument: the name that errors begin with.
        layout: what :func:`fairmp.datasets.readers.layout_of` says of it.
        names: the column names where the file has no header line.
        types: columns to read, and as what; all of them as text by default.
        quotes: whether a cell may hold a line end between quotes.
    """
    import pyarrow as pa
    import pyarrow.csv as arrow

    if layout.aligned:
        yield from _aligned_batches(path, argument, layout, names, types)
        return
    bad: list[Any] = []

    def judge(row: Any) -> str:
        bad.append(row)
        return "error"

    header = list(layout.first) if names is None else list(names)
    wanted = dict.fromkeys(header, pa.string()) if types is None else types
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        stream = pa.input_stream(str(path), compression="gzip" if packed else None)
        with (
            stream,
            arrow.open_csv(
                stream,
                arrow.ReadOptions(
                    skip_rows=layout.comments,
                    column_names=None if names is None else header,
                    block_size=BLOCK,
                ),
                arrow.ParseOptions(
                    delimiter=layout.separator, newlines_in_values=quotes, invalid_row_handler=judge
                ),
                arrow.ConvertOptions(
                    column_types=wanted,
                    include_columns=list(wanted),
                    null_values=list(MISSING),
                    strings_can_be_null=False,
                    decimal_point=layout.decimal,
                ),
            ) as reader,
        ):
            yield from reader
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        if not bad:
            raise Unread.parse(
                f"{argument}: cannot read {path.name} ({' '.join(str(error).split())})"
            ) from None
        row = bad[0]
        line = f"line {row.number:,}" if row.number is not None else "a line"
        raise InputError(
            argument,
            f"{path.name} {line} has {row.actual_columns:,} cells where {row.expected_columns:,} "
            "were expected",
            "the file is cut short or broken there",
        ) from None


class Unread(InputError):
    """A table whose cells are not what they were taken for, or that is broken."""


def _aligned_batches(
    path: Path,
    argument: str,
    layout: Layout,
    names: Sequence[str] | None,
    types: dict[str, Any] | None,
) -> Iterator[Any]:
    import pandas as pd
    import pyarrow as pa

    try:
        frames = pd.read_csv(
            path,
            sep=r"\s+",
            skiprows=layout.comments,
            header=0 if names is None else None,
            names=None if names is None else list(names),
            dtype=str,
            keep_default_na=False,
            chunksize=1 << 20,
        )
        for frame in frames:
            kept = frame if types is None else frame[list(types)]
            table = pa.Table.from_pandas(kept, preserve_index=False)
            if types is not None:
                gone = {"": None, **dict.fromkeys(MISSING)}
                cells = [kept[name].replace(gone) for name in types]
                table = pa.table([pa.array(c, pa.string()) for c in cells], names=list(types))
                table = table.cast(pa.schema(list(types.items())))
            yield from table.to_batches()
    except (pa.ArrowInvalid, ValueError, OSError) as error:
        raise Unread.parse(
            f"{argument}: cannot read {path.name} ({' '.join(str(error).split())})"
        ) from None


def _check_names(names: Sequence[str]) -> None:
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise InputError("nodes", f"two columns are named {twice[0]!r}", "rename one")


def _broken(argument: str, path: Path) -> InputError:
    return InputError(
        argument, f"cannot read the Parquet file {path.name}", "it is broken or cut short"
    )
