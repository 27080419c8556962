"""Graphs in ``.npz`` files: parsed ones for the next time, and the training graph beside a model.

The latter lets new nodes use their edges to it. It has the encoded features (``x``), the groups
(``sens``), the ids (``ids``) and each edge once (``edges``), compressed; no labels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairmp.datasets.columns import LoadReport, counted, require_column
from fairmp.errors import InputError
from fairmp.graph import to_scipy
from fairmp.outputs import atomic_file

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.datasets.edges import Table
    from fairmp.datasets.tables import Encoding


VERSION = 2
GRAPH = "graph.npz"
_BLOCK_BYTES = 1 << 16
_BLOCKS = 16
_METADATA = "words"  # part of the file format

Arrays = dict[str, np.ndarray]


def write_npz(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Any, *, compress: bool = False
) -> None:
    """Write arrays and JSON metadata; the file appears complete or not at all."""
    text = json.dumps(metadata, ensure_ascii=False).encode()
    content: dict[str, Any] = {_METADATA: np.frombuffer(text, np.uint8), **arrays}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as draft, draft.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, **content)


def read_npz(path: Path) -> tuple[Arrays, Any]:
    """Read what :func:`write_npz` wrote; nothing in it is ever executed."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(arrays.pop(_METADATA).tobytes().decode())


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return a key for the options, and each file's size, time and 16 evenly spaced blocks."""
    digest = hashlib.blake2b(json.dumps([VERSION, options], sort_keys=True).encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            for k in range(_BLOCKS):
                file.seek(k * max(stat.st_size - _BLOCK_BYTES, 0) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def load(path: Path, key: str) -> tuple[Arrays, Any] | None:
    """Return the arrays and metadata cached under ``key``; None if absent, outdated or damaged."""
    try:
        arrays, (found, shapes, metadata) = read_npz(path)
    except Exception:  # a damaged zip file raises almost anything
        return None
    return (arrays, metadata) if found == key and shapes == _shapes(arrays) else None


def save(path: Path, key: str, arrays: Mapping[str, np.ndarray], metadata: Any) -> None:
    """Cache arrays, in their smallest type, and metadata; an unwritable folder is no error."""
    with contextlib.suppress(OSError):
        small = {name: narrow(array) for name, array in arrays.items()}
        write_npz(path, small, [key, _shapes(small), metadata])


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    # The zip format has checksums of its members, unless a damaged header hides part of them.
    return {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}


def narrow(array: np.ndarray) -> np.ndarray:
    """Return the array in the smallest integer type that holds it exactly, if there is one."""
    if not array.size or array.dtype.itemsize == 1:
        return array
    low, high = array.min(), array.max()
    for kind in (np.iinfo(np.uint8), np.iinfo(np.int32)):
        fits = kind.min <= low <= high <= kind.max and kind.bits < 8 * array.dtype.itemsize
        if fits and np.array_equal(small := array.astype(kind.dtype), array):
            return small
    return array


def save_graph(data: Data, folder: Path) -> Path:
    """Write what prediction needs of a graph that :func:`from_tables` made."""
    ids = data.__dict__["ids"].to_numpy(zero_copy_only=False)
    edges = data.edge_index.numpy()
    arrays = {
        "x": (data.x.values() if data.x.is_sparse else data.x).numpy(),
        "sens": narrow(data.sens.numpy()),
        "ids": ids.astype(str) if ids.dtype == object else ids,
        "edges": narrow(edges[:, edges[0] < edges[1]]),
    }
    if data.x.is_sparse:
        arrays["places"] = data.x.indices().numpy().astype(np.int32)
    write_npz(folder / GRAPH, arrays, {"nodes": len(ids)}, compress=True)
    return folder / GRAPH


def extend(
    path: Path, nodes: Table, edges: Table | None, *, encoding: Encoding, **how: Any
) -> tuple[Data, torch.Tensor]:
    """Join new nodes to the graph that :func:`save_graph` wrote; return the graph and their mask.

    New nodes come first, and a node of the training graph among them has its new row. The others
    have no label, and ``origin`` is the place of each node of the training graph.
    """
    # A graph in a file is read without pandas and Arrow.
    import pyarrow as pa
    import scipy.sparse as sp

    from fairmp.datasets.edges import comparable, edge_positions, positions, undirected
    from fairmp.datasets.tables import assemble, from_tables

    try:
        old, _ = read_npz(path)
        known, x, sens, stored = (old[name] for name in ("ids", "x", "sens", "edges"))
        shape = len(known), len(encoding.feature_names)
        if "places" in old:
            x = sp.csr_array((x, tuple(old["places"])), shape=shape)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        hint = "train again, or leave it out with {graph=False}"
        raise InputError("graph", f"{path} cannot be read ({error})", hint) from None
    if x.shape != shape or len(known) != len(sens):
        hint = "train again, or leave it out with {graph=False}"
        raise InputError("graph", f"{path} is of another model", hint)
    new = from_tables(nodes, None, encoding=encoding, **how)
    report: LoadReport = new.__dict__["report"]
    own, before = comparable(new.__dict__["ids"], pa.array(known))
    # Of each old node among the new ones, −1 if it is not there.
    place = np.array(positions(own, before)[0], dtype=np.int64)
    kept = np.flatnonzero(place < 0)
    place[kept] = len(own) + np.arange(len(kept))
    ids = pa.concat_arrays([own, before.take(pa.array(kept))])
    count, edge_index = len(ids), place[stored]
    if edges is not None:
        report.notes = [note for note in report.notes if not note.startswith("no edge table")]
        names = encoding.source, encoding.target
        ends = edge_positions(edges, ids, *names, report, isolated=True)
        given = undirected(*ends, count, report)
        edge_index = np.concatenate([given, edge_index], axis=1)
    edge_index = undirected(edge_index[0], edge_index[1], count, LoadReport())
    if new.x.is_sparse or sp.issparse(x):
        features = sp.csr_array(sp.vstack([to_scipy(new.x), sp.csr_array(x[kept])]))
    else:
        features = np.concatenate([new.x, x[kept]])
    if encoding.degree:
        features = np.log1p(np.bincount(edge_index[0], minlength=count))[:, None]
    labels = np.concatenate([new.y, np.full(len(kept), -1)])
    data = assemble(features, edge_index, labels, np.concatenate([new.sens, sens[kept]]), report)
    data.update({key: new[key] for key in ("feature_names", "class_names", "group_names", "name")})
    data.origin = torch.from_numpy(place)
    if "sample_weight" in new:
        data.sample_weight = torch.cat([new.sample_weight, torch.ones(len(kept))])
    data.__dict__ |= {"encoding": encoding, "ids": ids}
    fresh = torch.arange(count) < len(own)
    across = int((fresh[edge_index[0]] & ~fresh[edge_index[1]]).sum())
    report.notes.append(
        f"with {counted(len(kept), 'node')} of the training graph, "
        f"{counted(across, 'edge')} between them and these"
    )
    return data, fresh


def joined(path: Path, ids: Any) -> int:
    """Count the ids that are in the graph that :func:`save_graph` wrote."""
    import pyarrow as pa

    from fairmp.datasets.edges import comparable, positions

    own, before = comparable(ids, pa.array(read_npz(path)[0]["ids"]))
    return int((positions(before, own)[0] >= 0).sum())


def matching(nodes: Path, column: str, value: str) -> torch.Tensor:
    """Mask of the rows of a node table that have a value, as it is written, in a column."""
    from fairmp.datasets.readers import TableReader

    reader = TableReader(nodes, "nodes")
    require_column("where", column, reader.names, "the node table")
    [cells] = reader.table((column,), text=(column,)).columns
    return torch.tensor([str(cell).strip() == value for cell in cells.to_pylist()])


def listed(data: Data, table: Path, id: str | None) -> torch.Tensor:
    """Mask of the nodes whose ids are in a table; all of them must be nodes."""
    from fairmp.datasets.edges import blank_to_null, comparable, positions
    from fairmp.datasets.readers import TableReader

    reader = TableReader(table, "only")
    column = id if id in reader.names else reader.names[0]
    [cells] = reader.table((column,), text=(column,)).columns
    own, wanted = comparable(data.__dict__["ids"], blank_to_null(cells.combine_chunks()))
    [rows] = positions(own, wanted)
    if (rows < 0).any():
        example = wanted[int((rows < 0).argmax())].as_py()
        raise InputError("only", f"{example!r} is not in the node table", "give ids of {nodes}")
    mask = torch.zeros(len(own), dtype=torch.bool)
    mask[torch.from_numpy(rows.astype(np.int64))] = True
    return mask
