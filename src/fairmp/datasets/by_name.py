"""Graphs by name, for commands: from raw files, or generated.

A name is a data set's key (``"german"``), ``"embedded"`` or ``"embedded:3000"``, and may end in a
protocol of :mod:`fairmp.datasets.protocols`: ``"german+nifty"``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.errors import InputError, check_choice

if TYPE_CHECKING:
    from torch_geometric.data import Data

EMBEDDED = "embedded"
MIN_NODES, MAX_NODES = 40, 100_000_000  # of the embedded network: room for edges, any memory
PROTOCOLS = ("nifty", "fairgnn")


def with_protocol(data: Data, protocol: str) -> Data:
    """Prepare a graph for a protocol."""
    from fairmp.datasets import protocols

    result: Data = getattr(protocols, protocol)(data)
    result.protocol, result.name = protocol, f"{data.name}, {protocol} protocol"
    return result


def canonical(name: str) -> str:
    """Return the canonical name of a graph."""
    name, plus, protocol = name.partition("+")
    if plus:
        return f"{canonical(name)}+{check_choice('protocol', protocol.casefold(), PROTOCOLS)}"
    word, colon, size = name.casefold().partition(":")
    if word not in (EMBEDDED, "embedded network"):
        from fairmp.datasets.sources import source_named

        return source_named(name, others=(EMBEDDED,), argument="data").key
    if not colon:
        return EMBEDDED
    if not (size.isascii() and size.isdigit()):
        raise InputError("data", f"{name!r} has no number of nodes", "write 'embedded:3000'")
    if not MIN_NODES <= int(size) <= MAX_NODES:
        hint = f"give {MIN_NODES} to {MAX_NODES:,}, as in 'embedded:3000'"
        raise InputError("data", f"{name!r} asks for {int(size):,} nodes", hint)
    return f"{EMBEDDED}:{int(size)}"


def check_data_dir(data_dir: str | Path | None) -> None:
    """Raise if the folder with the raw files does not exist."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        hint = "name the folder with the raw files"
        raise InputError("data_dir", f"{data_dir} is not a folder", hint)


def from_files(name: str, data_dir: str | Path | None = None) -> Data:
    """Load a benchmark graph or generate the embedded network, and apply the name's protocol."""
    from fairmp import datasets

    name, _, protocol = canonical(name).partition("+")
    word, _, size = name.partition(":")
    if word == EMBEDDED:
        data = datasets.social_network(n=int(size)) if size else datasets.social_network()
    else:
        check_data_dir(data_dir)
        raw = {"sens_in_features": True, "scale": "none"} if protocol == "nifty" else {}
        data = datasets.load(word, data_dir, **raw)
    return with_protocol(data, protocol) if protocol else data


def name_of_tables(nodes: Path, edges: Path | None, **columns: Any) -> str:
    """Name of a node and an edge table, different for other contents or columns."""
    from fairmp.datasets.parquet_folders import base_folder, table_files

    digest = hashlib.sha256(repr(sorted(columns.items())).encode())
    edge_files = [] if edges is None else table_files(edges, "edges")
    for path in (*table_files(nodes, "nodes"), *edge_files):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{base_folder(nodes).stem}-{digest.hexdigest()[:8]}"
