"""Where experiments get their graphs: by name, from raw files or from a folder of ``.npz`` files.

The latter need numpy alone, so that a comparison can run where only torch and PyG are installed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.errors import InputError

EMBEDDED = "embedded"
LEAST, MOST = 40, 100_000_000
"""Nodes of the embedded network: fewer have no room for its edges, more for no memory."""

_TENSORS = ("x", "edge_index", "y", "sens", "edge_weight")
_NAMES = ("feature_names", "class_names", "group_names")


def save(data: Data, path: str | Path) -> Path:
    """Write a graph without its masks to an ``.npz`` file.

    Example:
        >>> import tempfile
        >>> from fairmp.datasets import social_network
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save(social_network(n=200, average_degree=5), Path(folder) / "small.npz")
        ...     load(path).name
        'embedded network'
    """
    path = Path(path)
    words = {name: list(data[name]) for name in _NAMES if name in data}
    text = json.dumps({"name": str(getattr(data, "name", path.stem)), **words}, ensure_ascii=False)
    arrays = {name: data[name].cpu().numpy() for name in _TENSORS if name in data}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, words=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)
    return path


def load(path: str | Path) -> Data:
    """Read what :func:`save` wrote; nothing in it is ever executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "words"}
            words = json.loads(file["words"].tobytes().decode())
    except FileNotFoundError:
        raise InputError("path", f"{path} is not there", "write it with graphs.save") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError("path", f"{path} is no graph that graphs.save wrote ({error})") from None
    data = Data(**arrays)
    for name, value in words.items():
        data[name] = value
    return data


def from_npz(name: str, folder: str | Path) -> Data:
    """Read the graph ``name`` from a folder of ``.npz`` files."""
    return load(Path(folder) / f"{name}.npz")


def canonical(name: str) -> str:
    """One name a graph, however it was typed: a data set's key, ``embedded`` or ``embedded:3000``.

    Example:
        >>> canonical("PokecZ"), canonical("Embedded:03000")
        ('pokec-z', 'embedded:3000')
        >>> canonical("embeded")
        Traceback (most recent call last):
        fairmp.errors.InputError: data set: there is no 'embeded', did you mean 'embedded'?; ...
    """
    word, colon, size = name.casefold().partition(":")
    if word not in (EMBEDDED, "embedded network"):
        from fairmp.datasets.sources import source_named

        return source_named(name, beside=(EMBEDDED,)).key
    if not colon:
        return EMBEDDED
    if not (size.isascii() and size.isdigit()):
        raise InputError("data", f"{name!r} has no number of nodes", "write 'embedded:3000'")
    if not LEAST <= int(size) <= MOST:
        raise InputError(
            "data",
            f"{name!r} asks for {int(size):,} nodes",
            f"give {LEAST} to {MOST:,}, as in 'embedded:3000'",
        )
    return f"{EMBEDDED}:{int(size)}"


def from_files(name: str, data_dir: str | Path | None = None) -> Data:
    """Load a data set by the name people type, or the embedded network.

    ``"embedded"`` is the network of the demonstration, ``"embedded:3000"`` one of 3,000 nodes.

    Example:
        >>> from_files("embedded:500").num_nodes
        500
    """
    word, _, size = canonical(name).partition(":")
    if word == EMBEDDED:
        from fairmp.datasets import social_network

        return social_network(n=int(size)) if size else social_network()
    from fairmp.datasets import load as load_named

    return load_named(word, data_dir)


def present(
    names: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Tell which data sets' files are there, all by default, and why others are left out.

    Example:
        >>> present(["embedded:300", "nba"], "an/empty/folder")
        (['embedded:300'], {'NBA': 'its files are not there'})
    """
    from fairmp.datasets.raw import listing

    entries = {entry.source.key: entry for entry in listing(data_dir)}
    found: list[str] = []
    absent: dict[str, str] = {}
    for name in map(canonical, entries if names is None else names):
        if name not in entries:
            found.append(name)
            continue
        entry = entries[name]
        if entry.found:
            found.append(entry.source.key)
        else:
            absent[entry.source.title] = "its files are not there"
    return found, absent


def available(
    names: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> tuple[dict[str, Data], dict[str, str]]:
    """Load the graphs whose files are there; say of the others why not.

    Example:
        >>> found, absent = available(["embedded:300", "nba"], "an/empty/folder")
        >>> list(found), list(absent)
        (['embedded:300'], ['NBA'])
    """
    there, absent = present(names, data_dir)
    found: dict[str, Data] = {}
    for name in there:
        try:
            found[name] = from_files(name, data_dir)
        except InputError as error:
            absent[name] = " ".join(str(error).split())
    return found, absent
