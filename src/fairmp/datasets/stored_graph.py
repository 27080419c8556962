"""The training graph beside a model, and new nodes that are joined to it by their edges.

The file has the encoded features, the groups, the ids and each edge once, compressed; no labels.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.cache import narrow, read_npz, write_npz
from fairmp.datasets.edges import Table, comparable, positions, read_edges, undirected
from fairmp.datasets.encoding import EncodedNodes, Encoding, Features
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.tables import NodeTable, build_graph, encode_nodes, name_of
from fairmp.datasets.targets import UnknownGroups
from fairmp.errors import InputError, plural

FILE = "graph.npz"
TRAIN_AGAIN = "train again, or leave it out with {graph=False}"


@dataclass(frozen=True)
class StoredGraph:
    """What prediction needs of a training graph."""

    x: Features
    sens: np.ndarray
    ids: np.ndarray
    edges: np.ndarray  # 2×m, each edge once

    @classmethod
    def load(cls, path: Path, encoding: Encoding) -> StoredGraph:
        """Read what :func:`save_graph` wrote for a model with this encoding."""
        try:
            arrays = read_npz(path).arrays
            x, sens, ids, edges = (arrays[name] for name in ("x", "sens", "ids", "edges"))
            shape = len(ids), len(encoding.feature_names)
            if "places" in arrays:
                x = sp.csr_array((x, tuple(arrays["places"])), shape=shape)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            value = f"{path} cannot be read ({error})"
            raise InputError("graph", value, TRAIN_AGAIN) from None
        if x.shape != shape or len(ids) != len(sens):
            raise InputError("graph", f"{path} is of another model", TRAIN_AGAIN)
        return cls(x, sens, ids, edges)


def save_graph(data: Data, folder: Path) -> Path:
    """Store the training graph, made by :func:`from_tables`, with the model."""
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
    write_npz(folder / FILE, arrays, {"nodes": len(ids)}, compress=True)
    return folder / FILE


def count_stored(path: Path, ids: Any) -> int:
    """Count the ids (a pyarrow array) that are in a stored graph."""
    wanted, stored = comparable(ids, pa.array(read_npz(path).arrays["ids"]))
    return int((positions(stored, wanted) >= 0).sum())


class JoinedGraph(NamedTuple):
    """A graph of new nodes and of the training graph, and the mask of the new nodes."""

    data: Data
    is_new: torch.Tensor


def join_nodes(
    path: Path,
    nodes: Table,
    edges: Table | None,
    *,
    encoding: Encoding,
    id: str | None = None,
    unknown_groups: UnknownGroups = "refuse",
) -> JoinedGraph:
    """Join new nodes to the training graph stored in a file.

    New nodes come first, and a node of the training graph among them has its new row. The others
    have no label, and ``data.origin`` is the place of each node of the training graph.
    """
    report = LoadReport()
    stored = StoredGraph.load(path, encoding)
    table = encode_nodes(nodes, encoding, report, id=id, unknown_groups=unknown_groups)
    new_ids, stored_ids = comparable(table.ids, pa.array(stored.ids))
    # The place of each stored node: its new row, or else after the new nodes.
    place = positions(new_ids, stored_ids).astype(np.int64)
    others = np.flatnonzero(place < 0)
    place[others] = len(new_ids) + np.arange(len(others))
    ids = pa.concat_arrays([new_ids, stored_ids.take(pa.array(others))])
    pairs = place[stored.edges]
    if edges is not None:
        ends = encoding.source, encoding.target
        added = read_edges(edges, ids, *ends, report, isolated=True)
        pairs = np.concatenate([added, pairs], axis=1)
    edge_index = undirected(pairs[0], pairs[1], len(ids), LoadReport())
    x, y, sens = table.arrays
    arrays = EncodedNodes(
        # Degrees, the feature of tables without others, are those of the joined graph.
        x=x if encoding.degree else _stack_rows(x, stored.x[others]),
        y=np.concatenate([y, np.full(len(others), -1)]),
        sens=np.concatenate([sens, stored.sens[others]]),
    )
    weights = table.weights
    if weights is not None:
        weights = torch.cat([weights, torch.ones(len(others))])
    data = build_graph(NodeTable(arrays, ids, weights), edge_index, encoding, report)
    data.name, data.origin = name_of(nodes), torch.from_numpy(place)
    report.nodes = len(new_ids)
    is_new = torch.arange(len(ids)) < len(new_ids)
    across = int((is_new[edge_index[0]] & ~is_new[edge_index[1]]).sum())
    training_graph = f"{plural(len(others), 'node')} of the training graph"
    report.notes.append(f"joined to {training_graph} by {plural(across, 'edge')}")
    return JoinedGraph(data, is_new)


def _stack_rows(first: Features, second: Features) -> Features:
    if sp.issparse(first) or sp.issparse(second):
        return sp.csr_array(sp.vstack([sp.csr_array(first), sp.csr_array(second)]))
    return np.concatenate([first, second])
