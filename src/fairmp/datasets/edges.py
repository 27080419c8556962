"""Node ids, and edge tables: from ids to undirected edges between node numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fairmp.datasets.dialects import Dialect, is_numeric
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.numerals import is_text, whole_floats
from fairmp.datasets.readers import TableReader
from fairmp.datasets.values import CHECK_SEPARATOR, require_column
from fairmp.errors import InputError, plural
from fairmp.frames import MAX_EXACT, read_frame

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame

MAX_IDS_PER_NODE = 64  # range of integer ids, per node, up to which rows are looked up in an array
ENDPOINTS = (("source", "target"), ("src", "dst"), ("from", "to"))  # names, in any case
INDEX_NAMES = ("", "Unnamed: 0", "index", "__index_level_0__")  # of a frame's row numbers in a file
MAX_CHECKED_ROWS = 100
MAX_SHOWN_ROWS = 3  # dangling, in an error
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_WHOLE = r"^(0|-?[1-9][0-9]*)\.0+$"
_SCIENTIFIC = r"^-?[0-9]\.[0-9]+e[+-]?[0-9]+$"  # as numpy.savetxt writes integers


def id_array(series: Any) -> Any:
    """A column of ids as a pyarrow array, text if it mixes types; blank text is missing."""
    return blank_to_null(unstripped_ids(series))


def unstripped_ids(series: Any) -> Any:
    """A column of ids as a pyarrow array, text if it mixes types, with the spaces around it."""
    try:
        array = pa.array(series, from_pandas=True)
        is_plain = not isinstance(array.type, pa.BaseExtensionType)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        is_plain = False
    if not is_plain:
        array = pa.array(series.astype(str).where(series.notna(), None), from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def node_ids(table: Any, id: str | None, report: LoadReport | None = None) -> Any:
    """The ids of a node table as a pyarrow array; row numbers without a column."""
    if id is None:
        return pa.array(np.arange(len(table)))
    ids = unstripped_ids(table[id])
    if report is not None:
        spaces = SpacesAround()
        spaces.add(ids)
        report.notes += spaces.notes(f"id {id!r}")
    ids = blank_to_null(ids)
    if pa.types.is_floating(ids.type):
        [ids] = comparable(ids)
    check_ids(ids, "id")
    return ids


def blank_to_null(ids: Any) -> Any:
    """Strip ids that are text, and treat blank ones as missing."""
    if not is_text(ids.type):
        return ids
    ids = pc.utf8_trim_whitespace(ids)
    return pc.if_else(pc.equal(ids, ""), pa.scalar(None, ids.type), ids)


class SpacesAround:
    """Counts ids that are read without the spaces around them, of one or more columns."""

    def __init__(self) -> None:
        self.count, self.example = 0, ""

    def add(self, ids: Any) -> None:
        """Count those of a column; blank ones are missing, and integers are clear."""
        if not is_text(ids.type):
            return
        stripped = pc.utf8_trim_whitespace(ids)
        is_clear = pc.match_substring_regex(stripped, rf"^$|{_INTEGER}")
        cells = ids.filter(pc.and_(pc.not_equal(ids, stripped), pc.invert(is_clear)))
        self.count += len(cells)
        self.example = self.example or (cells[0].as_py() if len(cells) else "")

    def notes(self, title: str) -> list[str]:
        """One note with the count, if there are any."""
        if not self.count:
            return []
        cells, example = plural(self.count, "cell"), self.example
        return [f"{title}: {cells} with spaces around, {example!r} is read as {example.strip()!r}"]


def check_ids(ids: Any, argument: str) -> None:
    """Refuse node ids that are missing or repeated."""
    if ids.null_count:
        rows = plural(ids.null_count, "row")
        raise InputError(argument, f"{rows} without an id", "give every node one, or drop them")
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        value = f"{plural(len(repeated), 'id')} given more than once"
        example = repeated[0]["values"].as_py()
        raise InputError(argument, f"{value} (such as {example!r})", "give every node one row")


def positions(ids: Any, column: Any) -> np.ndarray:
    """Find each value of a column among the ids: its row, or −1 if it is absent."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    rows = pc.index_in(pc.cast(column, ids.type), value_set=ids)
    return pc.fill_null(rows, -1).to_numpy()


def position_finder(ids: Any) -> Callable[[Any], np.ndarray]:
    """Return :func:`positions` for many columns of the ids' type.

    Integers are found in an index that is built once: an array, where they are close together.
    """
    if not pa.types.is_integer(ids.type):
        return partial(positions, ids)
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < MAX_IDS_PER_NODE * len(numbers):
        rows = np.full(high - low + 1, -1, dtype=np.int32 if len(numbers) < 2**31 else np.int64)
        rows[numbers - low] = np.arange(len(numbers), dtype=rows.dtype)
    else:
        index = pd.Index(numbers)
        rows = None

    def find(column: Any) -> np.ndarray:
        if column.null_count:
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            return np.where(is_valid, find(pc.fill_null(column, low)), -1)
        values = column.to_numpy()
        if rows is None:
            return index.get_indexer(values)
        inside = (values >= low) & (values <= high)
        if inside.all():
            return rows[values - low]
        return np.where(inside, rows[np.where(inside, values - low, 0)], -1)

    return find


def comparable(*columns: Any) -> list[Any]:
    """Bring columns of ids of any type to one: integers if all of them are, otherwise text.

    An id is the same in both: ``1.0`` is 1. Floats too large to be exact are refused.
    """
    exact = [exact_ids(column) for column in columns]
    integers = [_as_integers(column) for column in exact]
    if all(column is not None for column in integers):
        return integers
    return [pc.cast(column, pa.large_string()) for column in exact]


def exact_ids(column: Any) -> Any:
    """Ids as integers or text, never floats; text that is an integer is in canonical form."""
    type = column.type
    if pa.types.is_dictionary(type):
        return exact_ids(pc.cast(column, type.value_type))
    if pa.types.is_floating(type):
        return whole_floats(column, "id")
    if pa.types.is_integer(type):
        return column
    text = column if is_text(type) else pc.cast(column, pa.large_string())
    return _canonical(text)


def _canonical(text: Any) -> Any:
    """Write integers such as ``1.0`` and ``1.200e+01`` without a point; ``007`` stays.

    So does ``1.23457e+08``, which has lost digits.
    """
    if pc.all(pc.match_substring_regex(text, _INTEGER)).as_py() is not False:
        return text
    text = pc.replace_substring_regex(text, _WHOLE, r"\1")
    scientific = pc.fill_null(pc.match_substring_regex(text, _SCIENTIFIC), False)
    if not pc.any(scientific).as_py():
        return text
    numbers = [Decimal(cell) for cell in text.filter(scientific).to_pylist()]
    exact = [abs(number) < MAX_EXACT for number in numbers]
    if not all(exact):
        value = f"{numbers[exact.index(False)]} is not exact"
        raise InputError("id", value, "write ids with all their digits")
    whole = [str(int(n)) if has_all_digits(n) else None for n in numbers]
    cells = text.filter(scientific)
    written = pc.coalesce(pa.array(whole, text.type), cells)
    return pc.replace_with_mask(text, scientific, written)


def has_all_digits(number: Decimal) -> bool:
    """Whether a number was written as an integer with every digit of it."""
    return int(number.as_tuple().exponent) <= 0 and number == number.to_integral_value()


def _as_integers(column: Any) -> Any | None:
    """Text counts as integers only in canonical form, so that ``007`` matches only ``007``."""
    if is_text(column.type):
        if pc.all(pc.match_substring_regex(column, _INTEGER)).as_py() is False:
            return None
    elif not pa.types.is_integer(column.type):
        return None
    with suppress(pa.ArrowInvalid):  # beyond 64 bits
        return pc.cast(column, pa.int64())
    return None


Table: TypeAlias = "str | os.PathLike[str] | IntoFrame | Sequence[Mapping[str, Any]]"

CHECK_IDS = (
    "check {id}, the column with the node ids (without one, ids are row numbers), and the columns "
    "{edge_source} and {edge_target}"
)


class Endpoints(NamedTuple):
    """The node numbers of the two ends of each edge row, −1 where an id is unknown."""

    source: np.ndarray
    target: np.ndarray


def usual_endpoints(names: Sequence[str]) -> tuple[str, str]:
    """The columns called source and target, or the like, or else the first two."""
    lower = [name.lower() for name in names]
    for pair in ENDPOINTS:
        if all(lower.count(name) == 1 for name in pair):
            return names[lower.index(pair[0])], names[lower.index(pair[1])]
    return names[0], names[1]


@dataclass(frozen=True)
class EdgeColumns:
    """The columns of an edge table; endpoints without a name are found (:class:`EdgeTable`)."""

    source: str | None = None
    target: str | None = None
    weight: str | None = None


class Edges(NamedTuple):
    """Undirected edges in both directions (2×E), and their weights (E) if they have any."""

    edge_index: np.ndarray
    weight: np.ndarray | None = None


class EdgeTable:
    """The endpoints, and the weights if asked for, of an edge table.

    Endpoints without a name are the columns called source and target, src and dst or from and to,
    or else the first two columns. A column of row numbers in front, as pandas writes it, is
    skipped.
    """

    def __init__(self, edges: Table, ids: Any, columns: EdgeColumns, report: LoadReport) -> None:
        self.ids, self.weight, self.report = ids, columns.weight, report
        source, target = columns.source, columns.target
        self.reader: TableReader | None = None
        if isinstance(edges, str | os.PathLike):
            self.reader = TableReader(Path(edges), "edges", notes=report.notes)
            named = source is not None or target is not None
            if self.reader.dialect and not named and _starts_with_edge(self.reader.dialect, ids):
                self.reader.drop_header()
            names = self.reader.names
        else:
            self.frame = read_frame(edges, "edges")
            names = list(self.frame.columns)
        if len(names) < 2:
            value = f"the table has one column, {names[0]!r}"
            raise InputError("edges", value, f"give a source and a target; {CHECK_SEPARATOR}")
        self.endpoints = self._endpoints(names, source, target, report)
        wanted = {"edge_source": self.endpoints[0], "edge_target": self.endpoints[1]}
        if self.weight is not None:
            wanted["edge_weight"] = self.weight
        for argument, column in wanted.items():
            require_column(argument, column, names, "the edge table")
        if self.endpoints[0] == self.endpoints[1]:
            value = f"{self.endpoints[0]!r} is the target too"
            raise InputError("edge_source", value, "name two columns")
        unused = [name for name in names if name not in wanted.values() and name != self.skipped]
        if unused:
            report.notes.append(f"edge columns not used: {', '.join(unused)}")

    def _endpoints(
        self, names: list[str], source: str | None, target: str | None, report: LoadReport
    ) -> tuple[str, str]:
        """Name both endpoints."""
        self.skipped: str | None = None
        if (
            len(names) > 2
            and self._starts_with_row_numbers(names[0])
            and names[0]
            not in (
                source,
                target,
            )
        ):
            self.skipped = names[0]
            report.notes.append("the first edge column holds row numbers and is not used")
            names = names[1:]
        usual_source, usual_target = usual_endpoints(names)
        return source or usual_source, target or usual_target

    def _starts_with_row_numbers(self, first: str) -> bool:
        """Whether the first column has the name of a frame's index and counts its rows."""
        if first not in INDEX_NAMES:
            return False
        if self.reader is None:
            cells = [str(cell) for cell in self.frame[first].head(MAX_CHECKED_ROWS)]
        elif self.reader.dialect:
            cells = [row[0].strip() for row in self.reader.dialect.sample[1:]]
        else:
            return True
        return any(cells == [str(k + start) for k in range(len(cells))] for start in (0, 1))

    def read_weights(self) -> np.ndarray | None:
        """Return the weight of each row, which must be above 0, if weights were asked for."""
        if self.weight is None:
            return None
        if self.reader is None:
            cells = self.frame[self.weight]
        else:
            cells = self.reader.table((self.weight,), text=(self.weight,)).columns[0].to_pandas()
        weights: np.ndarray = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
        if len(wrong):
            value = f"column {self.weight!r} has '{cells.iloc[wrong[0]]}' in row {wrong[0] + 1}"
            raise InputError("edge_weight", value, "give numbers above 0, or remove these rows")
        return weights

    def read(self) -> list[Any]:
        """Return the endpoints of all rows, as ids."""
        if self.reader is None:
            columns = [unstripped_ids(self.frame[name]) for name in self.endpoints]
        else:
            table = self.reader.table(self.endpoints, text=self.endpoints)
            columns = [column.combine_chunks() for column in table.columns]
        spaces = SpacesAround()
        for column in columns:
            spaces.add(column)
        self.report.notes += spaces.notes("edges")
        return [blank_to_null(column) for column in columns]

    def batches(self, *, integers: bool) -> Iterator[Endpoints]:
        """Read a file front to back, as text or, faster, integers."""
        assert self.reader is not None
        ids = _check_again(comparable(self.ids, pa.array([0 if integers else "a"]))[0], self.ids)
        find = position_finder(ids)
        matched, rows, dangling = False, 0, 0
        example: list[Any] = []
        shown: list[list[Any]] = []
        spaces = SpacesAround()
        type = pa.int64() if integers else pa.string()
        for batch in self.reader.batches(self.endpoints, type, multiline=False):
            for column in batch.columns:
                spaces.add(column)
            columns = [blank_to_null(column) for column in batch.columns]
            if not integers:
                columns = [pc.cast(exact_ids(column), ids.type) for column in columns]
            ends = Endpoints(*map(find, columns))
            matched = matched or _any_match(ends)
            rows += len(ends.source)
            example = example or [column[0].as_py() for column in columns if len(column)]
            missing = (ends.source < 0) | (ends.target < 0)
            dangling += int(missing.sum())
            for row in np.flatnonzero(missing)[: MAX_SHOWN_ROWS - len(shown)]:
                shown.append([column[int(row)].as_py() for column in columns])
            yield ends
        if not matched:
            raise InputError("edges", _describe_mismatch(example, ids, rows), CHECK_IDS)
        self.check_dangling(dangling, rows, shown)
        self.report.notes += spaces.notes("edges")

    def check_dangling(self, dangling: int, rows: int, shown: list[list[Any]]) -> None:
        """Refuse a table if an end of more than half of its rows is not in the node table."""
        if 2 * dangling <= rows:
            return
        examples = ", ".join(" – ".join(map(str, ends)) for ends in shown)
        columns = " and ".join(map(repr, self.endpoints))
        value = (
            f"{dangling:,} of {rows:,} rows have an end that is not in the node table, such as "
            f"{examples} (columns {columns})"
        )
        hint = "name the columns with {edge_source} and {edge_target}, check {id}, or drop the rows"
        raise InputError("edges", value, hint)


def read_edges(
    edges: Table,
    ids: Any,
    columns: EdgeColumns,
    report: LoadReport,
    *,
    isolated: bool = False,
) -> Edges:
    """Read an edge table as edges among the ids; all nodes may be ``isolated``."""
    table = EdgeTable(edges, ids, columns, report)
    node_ids, *ends_as_ids = comparable(ids, *table.read())
    _check_again(node_ids, ids)
    ends = Endpoints(*(positions(node_ids, column) for column in ends_as_ids))
    if not _any_match(ends):
        example = [column[0].as_py() for column in ends_as_ids if len(column)]
        problem = _describe_mismatch(example, node_ids, len(ends.source))
        if not isolated:
            raise InputError("edges", problem, CHECK_IDS)
        report.notes.append(f"no node has an edge: {problem}")
    elif not isolated:
        dangling = np.flatnonzero((ends.source < 0) | (ends.target < 0))
        shown = [
            [column[row].as_py() for column in ends_as_ids]
            for row in map(int, dangling[:MAX_SHOWN_ROWS])
        ]
        table.check_dangling(len(dangling), len(ends.source), shown)
    return undirected_edges(ends, len(ids), report, table.read_weights())


def _any_match(ends: Endpoints) -> bool:
    return bool(((ends.source >= 0) & (ends.target >= 0)).any())


def _check_again(ids: Any, before: Any) -> Any:
    """Check ids that were brought to another type, in which they may be repeated."""
    if ids.type != before.type:
        check_ids(ids, "id")
    return ids


def _describe_mismatch(example: list[Any], ids: Any, rows: int) -> str:
    if not rows:
        return "the table has a header and no rows"
    ends = f"an edge has {example[0]!r} and {example[1]!r}, a node has {ids[0].as_py()!r}"
    return f"none of the {rows:,} rows joins two ids of the node table; {ends}"


def _starts_with_edge(dialect: Dialect, ids: Any) -> bool:
    """Whether a first line is an edge and not a header: it holds ids, or nothing but numbers."""
    first = dialect.sample[0]
    if len(first) < 2:
        return False
    node_ids, *ends = comparable(ids, *(pa.array([cell.strip()]) for cell in first[:2]))
    if all((positions(node_ids, end) >= 0).all() for end in ends):
        return True
    return is_numeric([cell for row in dialect.sample[:2] for cell in row])


def proper_rows(source: np.ndarray, target: np.ndarray, report: LoadReport) -> Endpoints:
    """Drop and count rows with an unknown id (−1), and self-loops."""
    known_mask = (source >= 0) & (target >= 0)
    loops = known_mask & (source == target)
    report.edge_rows += len(source)
    report.dangling += len(source) - int(known_mask.sum())
    report.self_loops += int(loops.sum())
    keep = known_mask & ~loops
    return Endpoints(source, target) if keep.all() else Endpoints(source[keep], target[keep])


def undirected(
    source: np.ndarray, target: np.ndarray, num_nodes: int, report: LoadReport
) -> np.ndarray:
    """Turn edge rows into ``edge_index``: both directions, sorted, no repeats, no self-loops."""
    return undirected_edges(Endpoints(source, target), num_nodes, report).edge_index


def undirected_edges(
    ends: Endpoints, num_nodes: int, report: LoadReport, weight: np.ndarray | None = None
) -> Edges:
    """Turn edge rows into edges in both directions, sorted, without repeats and self-loops.

    The weights of repeated rows add up; an edge given in both directions has their mean.
    """
    if weight is not None:
        weight = weight[(ends.source >= 0) & (ends.target >= 0) & (ends.source != ends.target)]
    ends = proper_rows(ends.source, ends.target, report)
    rows = sp.coo_array(
        (np.ones(len(ends.source), dtype=bool), (ends.source, ends.target)),
        shape=(num_nodes, num_nodes),
    )
    directed = rows.tocsr()  # adds up repeated rows
    both = (directed + directed.T).tocsr()
    both.sort_indices()
    edges = both.nnz // 2
    report.repeated += len(ends.source) - directed.nnz
    report.reciprocal += directed.nnz - edges
    report.edges += edges
    edge_index = np.empty((2, both.nnz), dtype=np.int64)
    edge_index[0] = np.repeat(np.arange(num_nodes), np.diff(both.indptr))
    edge_index[1] = both.indices
    if weight is None:
        return Edges(edge_index)
    total = sp.coo_array((weight, (ends.source, ends.target)), shape=rows.shape).tocsr()
    listed = directed.astype(np.float64)  # 1 per direction that is listed
    mean, directions = (total + total.T).tocsr(), (listed + listed.T).tocsr()
    mean.sort_indices()
    directions.sort_indices()
    return Edges(edge_index, mean.data / directions.data)
