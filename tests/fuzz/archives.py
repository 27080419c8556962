"""Archives and compressed tables with any byte changed: one line, and nothing left behind."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from fairmp import InputError
from fairmp.datasets.download import extract
from fairmp.datasets.readers import TableReader
from tests.fuzz.tables import mutate

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
NAMES = ["b.txt", "a/b.txt", "../b.txt", "/b.txt", "a\\b.txt", "b.txt/", "c.txt", "ü.txt"]


def case(rng: np.random.Generator, place: Path) -> str:
    return packed(rng, place) if rng.random() < 0.7 else columnar(rng, place)


def packed(rng: np.random.Generator, place: Path) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", int(rng.choice(METHODS))) as bundle:
        for name in rng.choice(NAMES, rng.integers(0, 4)):
            bundle.writestr(str(name), rng.bytes(int(rng.integers(0, 300))))
    content = bytearray(buffer.getvalue())
    for _ in range(rng.integers(0, 3)):
        mutate(rng, content)
    if rng.random() < 0.1 and len(content) > 7:
        content[6] |= 1  # says that it is encrypted
    archive, folder = place / "archive.zip", place / "folder"
    archive.write_bytes(bytes(content))
    folder.mkdir()
    try:
        extract(archive, "b.txt", folder, limit=10_000)
    except InputError:
        assert not list(folder.iterdir())
        raise
    finally:
        assert sorted(p.name for p in place.iterdir()) == ["archive.zip", "folder"]
    assert [p.name for p in folder.iterdir()] == ["b.txt"]
    return "unpacked"


def columnar(rng: np.random.Generator, place: Path) -> str:
    frame = pd.DataFrame({"a": rng.integers(0, 9, 20), "b": rng.choice(["x", "y"], 20)})
    kind = str(rng.choice(["parquet", "feather", "jsonl.gz", "csv.gz"]))
    path = place / f"t.{kind}"
    if kind in ("parquet", "feather"):
        getattr(frame, f"to_{kind}")(path)
    elif kind == "csv.gz":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    content = bytearray(path.read_bytes())
    mutate(rng, content)
    path.write_bytes(bytes(content))
    TableReader(path, "nodes").frame()
    return "read"
