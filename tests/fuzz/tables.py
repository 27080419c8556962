"""Tables in any dialect, whole or damaged, against pandas with the dialect stated."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fairmp.datasets import from_tables
from fairmp.datasets.readers import TableReader
from fairmp.frames import MISSING

WORDS = [
    "north",
    "south",
    "Ærø",
    "a b",
    "x,y",
    "p;q",
    "u|v",
    'say "no"',
    "it's",
    "-",
    "0x1F",
    "日本",
]
INSERTED = [b" ", b"  ", b",", b";", b"\t", b"\n", b'"', b"\0", b"1e999"]
DATES = ["2020-01-02", "2021-12-31", "1999-07-15"]


@dataclass
class Written:
    """A table of text cells, and how it was written."""

    cells: pd.DataFrame
    separator: str
    decimal: str
    header: bool
    aligned: bool
    comments: int
    path: Path


def number(rng: np.random.Generator, decimal: str) -> str:
    value = rng.choice([rng.normal(), 1e4 * rng.random(), 10.0 ** rng.integers(-6, 7)])
    text = rng.choice([f"{value:.2f}", f"{value:.5g}", f"{value:.0f}", repr(float(value))])
    return str(text).replace(".", decimal)


def grouped(rng: np.random.Generator) -> str:
    return f"{int(10 ** (6 * rng.random())):,}"


def table(rng: np.random.Generator, decimal: str, missing: str) -> pd.DataFrame:
    """A node table as text: id, label, group, and some features of any kind."""
    n = int(rng.integers(8, 40))
    ids = rng.permutation(10 * n)[:n]
    cells: dict[str, list[str]] = {
        "id": [f"P{k:04d}" if n % 2 else str(k) for k in ids],
        "y": [str(rng.choice(["0", "1"])) for _ in ids],
        "s": [str(rng.choice(["f", "m", "x"])) for _ in ids],
    }
    kinds = ["number", "whole", "word", "date", "flag", "mixed"]
    kinds += ["grouped"] * (decimal == ".")  # or else the other columns say that it is decimals
    kinds = rng.choice(kinds, rng.integers(0, 5)).tolist()
    for k, kind in enumerate(kinds):
        make = {
            "number": lambda: number(rng, decimal),
            "whole": lambda: str(rng.integers(-50, 5000)),
            "word": lambda: str(rng.choice(WORDS)),
            "date": lambda: str(rng.choice(DATES)),
            "flag": lambda: str(rng.choice(["true", "false"])),
            "mixed": lambda: str(rng.choice(["7", "x", "1.5", "NA"])),
            "grouped": lambda: grouped(rng),
        }[str(kind)]
        cells[f"{kind}{k}"] = [missing if rng.random() < 0.1 else make() for _ in ids]
    order = rng.permutation(list(cells)) if rng.random() < 0.5 else list(cells)
    return pd.DataFrame({str(name): cells[str(name)] for name in order})


def write(rng: np.random.Generator, place: Path) -> Written:
    separator = str(rng.choice([",", ";", "\t", "|", " "]))
    decimal = str(rng.choice([".", ","], p=[0.7, 0.3]))
    missing = str(rng.choice(["", "NA", "?", "null"]))
    cells = table(rng, decimal, missing)
    header = rng.random() < 0.85
    aligned = separator == " " and rng.random() < 0.4
    buffer = io.StringIO()
    quoting = csv.QUOTE_ALL if rng.random() < 0.2 and not aligned else csv.QUOTE_MINIMAL
    ends = str(rng.choice(["\n", "\r\n"]))
    writer = csv.writer(buffer, delimiter=separator, quoting=quoting, lineterminator=ends)
    rows = [list(cells.columns)] * header + cells.to_numpy().tolist()
    if aligned:
        rows = [[f'"{c}"' if " " in c or '"' in c or not c else c for c in row] for row in rows]
        rows = [[c.replace('say "no"', 'say ""no""') for c in row] for row in rows]
        widths = [
            max(len(row[k]) for row in rows) + int(rng.integers(0, 2)) for k in range(len(rows[0]))
        ]
        left = rng.random() < 0.5
        for row in rows:
            pairs = zip(row, widths, strict=True)
            padded = [c.ljust(w) if left else c.rjust(w) for c, w in pairs]
            buffer.write(" ".join(padded) + ends)
    else:
        writer.writerows(rows)
    comments = int(rng.integers(1, 3)) if rng.random() < 0.1 else 0
    text = "".join(f"# a comment{ends}" for _ in range(comments)) + buffer.getvalue()
    if rng.random() < 0.2:
        text = text.removesuffix(ends)
    content = text.encode("utf-8-sig" if rng.random() < 0.1 else "utf-8")
    if rng.random() < 0.1:
        content = gzip.compress(content)
    path = place / f"nodes.{rng.choice(['csv', 'txt', 'tsv', 'dat'])}"
    path.write_bytes(content)
    return Written(cells, separator, decimal, header, aligned, comments, path)


def stated(written: Written) -> pd.DataFrame:
    """What pandas reads if it is told the dialect."""
    options: dict[str, Any] = {"sep": written.separator}
    if written.aligned:
        options = {"sep": " ", "skipinitialspace": True, "engine": "python", "index_col": False}
        content = written.path.read_bytes()
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        lines = content.decode("utf-8-sig").splitlines()[written.comments :]
        source: Any = io.StringIO("\n".join(line.strip() for line in lines))
    else:
        gzipped = written.path.read_bytes().startswith(b"\x1f\x8b")
        options |= {"compression": "gzip" if gzipped else None, "skiprows": written.comments}
        source = written.path
    names = {} if written.header else {"header": None, "names": list(written.cells.columns)}
    return pd.read_csv(
        source, dtype=str, keep_default_na=False, encoding="utf-8-sig", **names, **options
    )


def whole(rng: np.random.Generator, place: Path) -> str:
    """A table that is in order is read as pandas reads it, or refused."""
    written = write(rng, place)
    expected = stated(written)
    assert (expected.map(str.strip).to_numpy() == written.cells.map(str.strip).to_numpy()).all()
    reader = TableReader(written.path, "nodes")
    reader.find_header(["id", "y", "s"])
    names = list(expected.columns)
    if not written.header:
        if reader.header:  # text alone: the first row looks like a header
            assert not set(names) <= set(reader.names)
            return "no header found"
        names = [f"column {k + 1}" for k in range(len(names))]
    assert reader.names == names, (reader.names, names)
    text = reader.table(text=names).to_pandas()
    cells = text.map(lambda cell: cell.strip()).to_numpy()
    assert (cells == expected.map(str.strip).to_numpy()).all(), (cells, expected.to_numpy())
    frame = reader.frame(text=[names[list(expected.columns).index("id")]])
    for name, column in zip(names, expected.columns, strict=True):
        check_numbers(frame[name], expected[column].str.strip(), written)
    ends = expected["id"].iloc[[0, 1, 2]].str.strip()
    edges = pd.DataFrame({"a": ends.iloc[:2].to_numpy(), "b": ends.iloc[1:].to_numpy()})
    roles = {role: names[list(expected.columns).index(name)] for role, name in ROLES.items()}
    data = from_tables(written.path, edges, **roles)
    assert torch.isfinite(data.x).all()
    assert data.num_nodes == len(expected)
    groups = [data.group_names[k] for k in data.sens.tolist()]
    assert groups == expected["s"].str.strip().tolist()
    labels = [data.class_names[k] for k in data.y.tolist()]
    assert labels == expected["y"].str.strip().tolist()
    return "read"


ROLES = {"id": "id", "label": "y", "sensitive": "s"}


def check_numbers(column: pd.Series, cells: pd.Series, written: Written) -> None:
    """Numbers are those the stated marks give; text stays as it is."""
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return
    for value, cell in zip(column, cells, strict=True):
        if cell in MISSING:
            assert pd.isna(value)
            continue
        if str(cells.name).startswith("grouped"):
            expected = float(cell.replace(",", ""))
        else:
            expected = float(cell.replace(written.decimal, "."))
        assert value == expected or abs(value - expected) <= 1e-12 * abs(expected), (value, cell)


def damaged(rng: np.random.Generator, place: Path) -> str:
    """A damaged table is refused in one line, or becomes a graph of finite numbers."""
    written = write(rng, place)
    path, frame = written.path, written.cells
    kind = rng.choice(["text", "parquet", "feather", "jsonl"], p=[0.7, 0.1, 0.1, 0.1])
    if kind != "text":
        path = place / f"nodes.{kind}"
        save = {"parquet": frame.to_parquet, "feather": frame.to_feather}.get(str(kind))
        frame.to_json(path, orient="records", lines=True) if save is None else save(path)
    content = bytearray(path.read_bytes())
    for _ in range(rng.integers(1, 3)):
        mutate(rng, content)
    path.write_bytes(bytes(content))
    ids = written.cells["id"].to_numpy()
    edges = pd.DataFrame({"a": ids[:-1], "b": ids[1:]})
    data = from_tables(path, edges, **ROLES)
    assert torch.isfinite(data.x).all()
    return "read"


def mutate(rng: np.random.Generator, content: bytearray) -> None:
    """Change some bytes of a file."""
    at = int(rng.integers(0, max(len(content), 1)))
    length = int(rng.integers(1, 40))
    match rng.integers(0, 7):
        case 0:
            del content[at : at + length]
        case 1:
            content[at:at] = content[at : at + length]
        case 2:
            content[at : at + 1] = bytes([rng.integers(0, 256)])
        case 3:
            content[at:at] = str(
                rng.choice([" ", "  ", ",", ";", "\t", "\n", '"', "\0", "1e999"])
            ).encode()
        case 4:
            del content[at:]
        case 5:
            content[at : at + length] = bytes(rng.integers(0, 256, length).tolist())
        case 6:
            other = int(rng.integers(0, max(len(content), 1)))
            content[at:at] = content[other : other + length]
