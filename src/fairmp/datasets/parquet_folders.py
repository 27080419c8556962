"""Tables in several Parquet files: a folder as Spark, Polars or DuckDB write it, or a pattern.

Files and folders whose names start with ``_`` or ``.`` are not part of the table. Folders named
``column=value`` are a column, whose text becomes numbers or dates as in a text file.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from fairmp.datasets.numerals import infer_type
from fairmp.errors import InputError

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def is_several_files(path: Path) -> bool:
    """Whether a table is a folder or a pattern, ``parts/*.parquet``, instead of one file."""
    return path.is_dir() or (glob.has_magic(str(path)) and not path.exists())


def table_files(path: Path, argument: str) -> list[Path]:
    """Return the files of a table, in the order of their names."""
    if not is_several_files(path):
        return [path]
    base = base_folder(path)
    candidates = (
        path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))
    )
    files = sorted(file for file in candidates if file.is_file() and not _is_hidden(file, base))
    if not files:
        hint = "give a folder of Parquet files, or a pattern such as 'parts/*.parquet'"
        raise InputError(argument, f"there are no files in {str(path)!r}", hint)
    for file in files:
        with file.open("rb") as stream:
            if stream.read(4) != b"PAR1":
                hint = "a table of several files must be Parquet"
                raise InputError(argument, f"{str(file)!r} is not a Parquet file", hint)
    return files


def base_folder(path: Path) -> Path:
    """The folder all files of a table are in."""
    while glob.has_magic(str(path)) and not path.exists():
        path = path.parent
    return path


def open_files(path: Path, argument: str) -> ds.Dataset:
    """Open a table of several files."""
    files, base = table_files(path, argument), base_folder(path)
    schema = pa.unify_schemas(
        [pq.read_schema(file) for file in files], promote_options="permissive"
    )
    partitions = [
        pa.field(name, infer_type(pa.array(values)).type if values else pa.string())
        for name, values in _partition_values(files, base).items()
        if name not in schema.names
    ]
    return ds.dataset(
        list(map(str, files)),
        schema=pa.schema([*schema, *partitions]),
        format="parquet",
        partitioning=ds.partitioning(pa.schema(partitions), flavor="hive"),
        partition_base_dir=str(base),
    )


def _partition_values(files: Sequence[Path], base: Path) -> dict[str, list[str]]:
    """The known values in the names of folders, by column."""
    values: dict[str, list[str]] = {}
    for file in files:
        for folder in file.relative_to(base).parts[:-1]:
            name, equals, value = folder.partition("=")
            if equals:
                new = [] if value == NULL_PARTITION else [unquote(value)]
                values.setdefault(unquote(name), []).extend(new)
    return values


def _is_hidden(file: Path, base: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in file.relative_to(base).parts)
