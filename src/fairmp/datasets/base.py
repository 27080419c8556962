"""The base of the benchmark graphs: find, check, parse once, prepare as asked, split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch_geometric.data import Data, InMemoryDataset

from fairmp.datasets import cache as disk
from fairmp.datasets.columns import Scale, check_scale, rescale
from fairmp.datasets.digits import digit_tail
from fairmp.datasets.edges import LoadReport, check_ids, counted, positions, undirected
from fairmp.datasets.raw import FoundFile, PathLike, cache_home, check, fetch
from fairmp.datasets.readers import layout_of, read_text
from fairmp.datasets.sources import Source
from fairmp.datasets.splits import with_split
from fairmp.datasets.tables import assemble
from fairmp.errors import InputError

Arrays = dict[str, np.ndarray]


class FairGraph(InMemoryDataset):
    """One graph with labels, sensitive groups and a split; the base of the data sets here.

    ``dataset[0]`` has ``x`` (float32), ``edge_index`` (both directions of every edge, sorted, no
    self-loops), ``y`` and ``sens`` (−1: unknown), ``train_mask``, ``val_mask``, ``test_mask``,
    ``feature_names``, ``class_names``, ``group_names``, ``name``, and a ``report`` of what was
    read. Id, label and sensitive column are not among the features.

    Args:
        root: The folder with the raw files; those that are not there are downloaded to it. By
            default the folder in the environment variable ``FAIRMP_DATA``, then the user's cache.
        multiclass: Keep label values above 1 as classes of their own; they count as 1 otherwise.
        sens_in_features: Add the sensitive column as the last feature.
        scale: ``"standard"``, ``"minmax"`` or ``"none"``; columns of 0 and 1 are left alone. The
            default is ``"standard"``, mean 0 and variance 1, since raw columns reach from 0 to 1
            and from 0 to millions side by side, and propagation averages them as they are.
        seed: The seed of the split.
        transform: Applied to the graph at every access.
        partial: Read files that are cut short: drop broken last rows and edges whose ends are
            missing, with a note, instead of refusing them. Implies ``verify=False``.
        verify: Refuse a file whose SHA-256 is not the published one, as far as that is known.
        cache: Keep what was parsed in the user's cache folder, for the next time.
        mirror: The address of a copy of a data folder to download from instead of the public homes.

    Raises:
        InputError: With one line, if a file is missing, broken or not the published one.
    """

    source: ClassVar[Source]
    id_column: ClassVar[str | None] = "user_id"
    label_column: ClassVar[str]
    sens_column: ClassVar[str]
    drop_columns: ClassVar[tuple[str, ...]] = ()
    label_values: ClassVar[dict[int, int]] = {}
    sens_values: ClassVar[dict[str, int]] = {}
    group_names: ClassVar[list[str] | None] = None

    def __init__(
        self,
        root: PathLike | None = None,
        *,
        multiclass: bool = False,
        sens_in_features: bool = False,
        scale: Scale = "standard",
        seed: int = 0,
        transform: Callable[[Data], Data] | None = None,
        partial: bool = False,
        verify: bool = True,
        cache: bool = True,
        mirror: str | None = None,
    ) -> None:
        check_scale(scale)
        super().__init__(None, transform)
        found = fetch(self.source, root, mirror=mirror)
        arrays, report, names = self._parsed(found, partial, verify and not partial, cache)
        data = self._prepared(arrays, report, names, multiclass, sens_in_features, scale)
        self._data = with_split(data, seed=seed)

    def _parsed(
        self, found: tuple[FoundFile, ...], partial: bool, verify: bool, cache: bool
    ) -> tuple[Arrays, LoadReport, list[str]]:
        paths = {file.role: file.path for file in found if file.path}
        options = {"data set": self.source.key, "partial": partial, "verify": verify}
        key = disk.fingerprint(list(paths.values()), options) if cache else ""
        places = "\n".join(str(path.resolve()) for path in paths.values())
        place = hashlib.blake2b(f"{places}\n{partial}".encode(), digest_size=8).hexdigest()
        kept = cache_home() / "processed" / f"{self.source.key}-{place}.safetensors"
        hit = disk.load(kept, key) if cache else None
        if hit:
            arrays, metadata = hit
            return arrays, LoadReport(**metadata["report"]), metadata["feature_names"]
        report = LoadReport()
        if verify:
            self._verify(found, report)
        arrays, names = self._parse(paths, partial, report)
        if report.dangling and not partial:
            raise InputError(
                self.source.title,
                f"{report.dangling:,} of {report.edge_rows:,} edge rows name an id that the node "
                "table lacks",
                "the files do not belong together or one is cut short (partial=True drops those "
                "rows)",
            )
        if cache:
            metadata = {"report": asdict(report), "feature_names": names}
            disk.save(kept, key, arrays, metadata)
        return arrays, report, names

    def _verify(self, found: tuple[FoundFile, ...], report: LoadReport) -> None:
        for file in found:
            state = check(file).state
            name = file.path.name if file.path else file.file.name
            if state == "differs":
                raise InputError(
                    self.source.title,
                    f"{file.path} is not the published file, its SHA-256 does not start with "
                    f"{file.file.sha256[:8]}",
                    "fetch it again, or pass verify=False",
                )
            if state == "first digits ok":
                digits = len(file.file.sha256)
                report.notes.append(
                    f"{name}: only the first {digits} digits of its SHA-256 are known; they agree"
                )
            if state == "sum unknown":
                report.notes.append(f"{name}: its SHA-256 is not known and was not checked")

    def _parse(
        self, paths: dict[str, Path], partial: bool, report: LoadReport
    ) -> tuple[Arrays, list[str]]:
        """Read the raw files: features without s, labels, groups, ``edge_index``, and the names."""
        import pyarrow as pa

        title = self.source.title
        with ThreadPoolExecutor(1) as aside:
            coming = aside.submit(
                read_raw, paths["edges"], title, ["one", "other"], partial, report
            )
            table, x, names = self._nodes(paths["nodes"], partial, report)
            edges = coming.result()
        count = report.nodes = table.num_rows
        ids = table[self.id_column] if self.id_column else pa.array(np.arange(count))
        check_ids(ids, f"{title}: {paths['nodes'].name}")
        try:
            ends = [edges.column(k).cast(pa.int64()) for k in range(2)]
        except pa.ArrowInvalid:
            raise InputError(
                title, f"{paths['edges'].name} holds something else than whole numbers"
            ) from None
        one, other = positions(ids, *ends)
        return {
            "x": x,
            "edge_index": undirected(one, other, count, report),
            "y": _mapped(table[self.label_column], self.label_values, title),
            "sens": _mapped(table[self.sens_column], self.sens_values, title),
        }, names

    def _nodes(
        self, path: Path, partial: bool, report: LoadReport
    ) -> tuple[Any, np.ndarray, list[str]]:
        """Read the node table: what is no feature as a table, the features, and their names."""
        title = self.source.title
        layout = layout_of(path, title)
        columns = list(layout.first)
        own = [self.label_column, self.sens_column, *self.drop_columns]
        own += [self.id_column] if self.id_column else []
        for column in own:
            if column not in columns:
                raise InputError(
                    title, f"{path.name} has no column {column!r}", "it is another file"
                )
        behind = len(columns) - 1 - max(columns.index(column) for column in own)
        cut = digit_tail(path, behind) if layout.separator == "," else None
        table = _short_table(cut[0], columns[: -cut[1].shape[1]]) if cut else None
        if cut and table:
            x = np.concatenate(
                [disk.narrow(matrix(table.drop_columns(own), title)), cut[1]], axis=1
            )
        else:
            table = read_raw(path, title, None, partial, report)
            x = disk.narrow(matrix(table.drop_columns(own), title))
        return table, x, [name for name in columns if name not in own]

    def _prepared(
        self,
        arrays: Arrays,
        report: LoadReport,
        names: list[str],
        multiclass: bool,
        sens_in_features: bool,
        scale: Scale,
    ) -> Data:
        x, y, sens = arrays["x"], arrays["y"], arrays["sens"]
        if sens_in_features:
            filled = np.where(sens < 0, sens[sens >= 0].mean(), sens)
            x = np.concatenate([x, filled[:, None].astype(np.float32)], axis=1)
            names = [*names, self.sens_column]
        classes = [str(k) for k in range(int(y.max()) + 1)]
        if not multiclass and len(classes) > 2:
            y, classes = np.minimum(y, 1), ["0", "1 or more"]
        report.unknown_labels = int((y < 0).sum())
        report.unknown_groups = int((sens < 0).sum())
        data = assemble(rescale(x, scale), arrays["edge_index"], y, sens, report)
        data.feature_names, data.class_names = names, classes
        data.group_names = self.group_names or [
            f"{self.sens_column} = {k}" for k in range(int(sens.max()) + 1)
        ]
        data.name = self.source.title
        return data


def read_raw(
    path: Path,
    title: str,
    names: list[str] | None,
    partial: bool,
    report: LoadReport,
) -> Any:
    """Read a raw file, which has no empty cell: one is where the file was cut short."""
    import pyarrow.compute as pc

    layout = layout_of(path, title)
    table = read_text(path, title, layout, names=names, partial=partial, notes=report.notes)
    if not any(column.null_count for column in table.columns):
        return table
    whole = np.ones(table.num_rows, dtype=bool)
    for column in table.columns:
        whole &= pc.is_valid(column).to_numpy()
    if not partial:
        line = int(np.argmin(whole)) + (2 if names is None else 1)
        raise InputError(
            title,
            f"{path.name} line {line:,} has an empty cell",
            "the file is cut short or broken there (partial=True drops such lines)",
        )
    dropped = counted(int((~whole).sum()), "row")
    report.notes.append(f"{path.name}: {dropped} with an empty cell, dropped")
    return table.filter(whole)


def _short_table(lines: bytes, names: list[str]) -> Any | None:
    """Parse what is left of the rows; None where anything is odd, for the long way to explain."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    try:
        table = arrow.read_csv(pa.BufferReader(lines), arrow.ReadOptions(column_names=names))
    except pa.ArrowInvalid:
        return None
    whole = lines.count(b"\n") == table.num_rows
    return table if whole and not any(c.null_count for c in table.columns) else None


def matrix(table: Any, title: str) -> np.ndarray:
    """Copy the columns of a table into one matrix, a block of rows at a time to stay in cache."""
    for field in table.schema:
        if str(field.type) in ("string", "binary"):
            raise InputError(title, f"column {field.name!r} holds text where numbers should be")
    x = np.empty((table.num_rows, table.num_columns), dtype=np.float32)
    row = 0
    for batch in table.to_batches(max_chunksize=4096):
        columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
        x[row : row + len(batch)] = np.stack(columns, dtype=np.float32, casting="unsafe").T
        row += len(batch)
    return x


def _mapped(column: Any, values: dict[Any, int], title: str) -> np.ndarray:
    """Read a column as integers, through a table of values where there is one; below 0 is −1."""
    found = column.to_pylist() if values else column.to_numpy()
    if values:
        strangers = sorted({str(value) for value in found if value not in values})
        if strangers:
            raise InputError(
                title, f"{strangers[0]!r} is no value of {', '.join(map(str, values))}"
            )
        found = np.array([values[value] for value in found])
    return np.maximum(found.astype(np.int64), -1)
