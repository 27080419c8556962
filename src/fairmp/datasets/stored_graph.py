"""The training graph beside a model, and new nodes that are joined to it by their edges.

The file has the encoded features, the groups, the ids and each edge once, compressed, and the
logits of the nodes before propagation, which new nodes receive; no labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.cache import (
    METADATA,
    Arrays,
    Header,
    checksum,
    narrow,
    read_headers,
    read_npz,
    write_npz,
)
from fairmp.datasets.edges import (
    EdgeColumns,
    Edges,
    Endpoints,
    Table,
    blank_to_null,
    comparable,
    positions,
    read_edges,
    undirected_edges,
)
from fairmp.datasets.encoding import EncodedNodes, Encoding, Features
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.tables import NodeTable, assemble, build_graph, encode_nodes, name_of
from fairmp.datasets.targets import UnknownGroups
from fairmp.errors import InputError, plural

FILE = "graph.npz"
REQUIRED = ("x", "sens", "ids", "edges")
MAX_ITEM_BYTES = 1 << 16  # of an id
MAX_EXPANDED_BYTES, MAX_RATIO = 1 << 30, 100  # of the arrays, in bytes and to the file's size
TRAIN_AGAIN = "train again, or leave it out with {graph=False}"


@dataclass(frozen=True)
class StoredGraph:
    """What prediction needs of a training graph."""

    x: Features
    sens: np.ndarray
    ids: np.ndarray
    edges: np.ndarray  # 2×m, each edge once
    edge_weight: np.ndarray | None = None  # m
    logits: np.ndarray | None = None  # of the model, before propagation (n×C)

    def to_data(self) -> Data:
        """The graph with edges in both directions, and the ids of its nodes."""
        edges, weight = self.edges.astype(np.int64), self.edge_weight
        data = assemble(
            self.x, np.hstack([edges, edges[::-1]]), np.full(len(self.ids), -1), self.sens,
            LoadReport(),
        )  # fmt: skip
        if weight is not None:
            data.edge_weight = torch.from_numpy(np.tile(weight, 2))
        data.__dict__["ids"] = pa.array(self.ids)
        return data

    @classmethod
    def load(cls, path: Path, encoding: Encoding) -> StoredGraph:
        """Read what :func:`save_graph` wrote for a model with this encoding."""
        arrays = _read_checked(path, len(encoding.feature_names))
        x, sens, ids, edges = (arrays[name] for name in REQUIRED)
        if "places" in arrays:
            shape = len(ids), len(encoding.feature_names)
            x = sp.csr_array((x, tuple(arrays["places"])), shape=shape)
        if (sens >= len(encoding.groups)).any():
            raise InputError("graph", f"{path} is of another model", TRAIN_AGAIN)
        logits = arrays.get("logits")
        if logits is not None and logits.shape != (len(ids), len(encoding.label.classes)):
            raise InputError("graph", f"{path} is of another model", TRAIN_AGAIN)
        return cls(x, sens, ids, edges, arrays.get("edge_weight"), logits)


def _read_checked(path: Path, features: int | None = None) -> Arrays:
    """Read a stored graph, and check its arrays before and after they are expanded."""
    try:
        headers = read_headers(path)
        if features is None:
            features = headers["x"].shape[-1]
        elif "places" not in headers and headers["x"].shape[1:] != (features,):
            raise InputError("graph", f"{path} is of another model", TRAIN_AGAIN)
        _check_sizes(headers, path.stat().st_size)
        _check_headers(headers, features)
        arrays, metadata = read_npz(path)
        if metadata != {"nodes": len(arrays["ids"]), "sha256": checksum(arrays)}:
            raise ValueError("the checksum does not match")
        _check_values(arrays, features)
    except InputError:
        raise
    except Exception as error:  # a damaged zip file raises almost anything
        value = f"{path} cannot be read ({error or type(error).__name__})"
        raise InputError("graph", value, TRAIN_AGAIN) from None
    return arrays


def _check_sizes(headers: Mapping[str, Header], file_bytes: int) -> None:
    """Raise if few bytes would become very many."""
    expanded = sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers.values())
    if expanded > max(MAX_EXPANDED_BYTES, MAX_RATIO * file_bytes):
        raise ValueError(f"{file_bytes:,} bytes would become {expanded:,}")


def _check_headers(headers: Mapping[str, Header], features: int) -> None:
    """Raise unless the arrays are those of one graph."""
    missing = [name for name in (*REQUIRED, METADATA) if name not in headers]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    nodes = math.prod(headers["ids"].shape)
    x, places = headers["x"], headers.get("places")
    shapes: dict[str, tuple[int, ...]] = {
        "ids": (nodes,),
        "sens": (nodes,),
        "edges": (2, *headers["edges"].shape[1:2]),
        "x": (nodes, features) if places is None else x.shape[:1],
        "places": (2, *x.shape[:1]),
        "edge_weight": headers["edges"].shape[1:2],
        "logits": (nodes, *headers.get("logits", x).shape[1:2]),
        METADATA: headers[METADATA].shape[:1],
    }
    kinds = {"ids": "iuU", "sens": "iu", "edges": "iu", "x": "f", "places": "iu"}
    kinds |= {"edge_weight": "f", "logits": "f", METADATA: "u"}
    for name, (shape, dtype) in headers.items():
        wrong_type = dtype.kind not in kinds.get(name, "") or dtype.itemsize > MAX_ITEM_BYTES
        if shape != shapes.get(name) or wrong_type:
            raise ValueError(f"{name} is {dtype} of shape {shape}")


def _check_values(arrays: Arrays, features: int) -> None:
    """Raise unless indices are within bounds and features are numbers."""
    nodes = len(arrays["ids"])
    places = arrays.get("places", np.zeros((2, 0), np.int32))
    bounds = {
        "sens": (arrays["sens"], -1, None),
        "edges": (arrays["edges"], 0, nodes),
        "places": (places, 0, np.array([[nodes], [features]])),
    }
    for name, (values, low, high) in bounds.items():
        if (values < low).any() or (high is not None and (values >= high).any()):
            raise ValueError(f"{name} is out of bounds")
    if (arrays["edges"][0] >= arrays["edges"][1]).any():
        raise ValueError("edges are not from a node to one after it")
    ids = blank_to_null(pa.array(arrays["ids"]))
    if ids.null_count or len(ids.unique()) < nodes:
        raise ValueError("ids are missing or repeated")
    if (arrays.get("edge_weight", np.ones(1)) <= 0).any():
        raise ValueError("edge_weight is not above 0")
    for name in ("x", "edge_weight", "logits"):
        if name in arrays and not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not finite")


def save_graph(data: Data, folder: Path, logits: torch.Tensor | None = None) -> Path:
    """Store the training graph, made by :func:`from_tables`, with the model.

    ``logits`` (n×C) are those of the model before propagation; without them they are computed
    again when new nodes are predicted.
    """
    ids = data.__dict__["ids"].to_numpy(zero_copy_only=False)
    edges = data.edge_index.numpy()
    arrays = {
        "x": (data.x.values() if data.x.is_sparse else data.x).numpy(),
        "sens": narrow(data.sens.numpy()),
        "ids": ids.astype(str) if ids.dtype == object else ids,
        "edges": narrow(edges[:, edges[0] < edges[1]]),
    }
    if "edge_weight" in data:
        arrays["edge_weight"] = data.edge_weight.numpy()[edges[0] < edges[1]]
    if logits is not None:
        arrays["logits"] = logits.cpu().float().numpy()
    if data.x.is_sparse:
        arrays["places"] = data.x.indices().numpy().astype(np.int32)
    metadata = {"nodes": len(ids), "sha256": checksum(arrays)}
    write_npz(folder / FILE, arrays, metadata, compress=True, private=True)
    return folder / FILE


def count_stored(path: Path, ids: Any) -> int:
    """Count the ids (a pyarrow array) that are in a stored graph."""
    wanted, stored = comparable(ids, pa.array(_read_checked(path)["ids"]))
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
    edge_columns: EdgeColumns | None = None,
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
    joined = Edges(place[stored.edges], stored.edge_weight)
    if edges is not None:
        columns = edge_columns or EdgeColumns()
        columns = EdgeColumns(
            columns.source or encoding.edge_source,
            columns.target or encoding.edge_target,
            columns.weight or encoding.edge_weight,
        )
        added = read_edges(edges, ids, columns, report, isolated=True)
        joined = _first_of_each(added, joined)
    edge_index, edge_weight = undirected_edges(
        Endpoints(*joined.edge_index), len(ids), LoadReport(), joined.weight
    )
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
    data = build_graph(
        NodeTable(arrays, ids, weights), Edges(edge_index, edge_weight), encoding, report
    )
    data.name, data.origin = name_of(nodes), torch.from_numpy(place)
    report.nodes = len(new_ids)
    is_new = torch.arange(len(ids)) < len(new_ids)
    across = int((is_new[edge_index[0]] & ~is_new[edge_index[1]]).sum())
    if len(others):
        training_graph = f"{plural(len(others), 'node')} of the training graph"
        report.notes.append(f"joined to {training_graph} by {plural(across, 'edge')}")
    else:
        report.notes.append("all nodes of the training graph are among them")
    return JoinedGraph(data, is_new)


def _first_of_each(new: Edges, stored: Edges) -> Edges:
    """Edges of both, each once; the weight of a new edge replaces a stored one."""
    pairs = np.sort(np.concatenate([new.edge_index, stored.edge_index], axis=1), axis=0)
    pairs, first = np.unique(pairs, axis=1, return_index=True)
    if stored.weight is None or new.weight is None:
        return Edges(pairs)
    return Edges(pairs, np.concatenate([new.weight, stored.weight])[first])


def _stack_rows(first: Features, second: Features) -> Features:
    if sp.issparse(first) or sp.issparse(second):
        return sp.csr_array(sp.vstack([sp.csr_array(first), sp.csr_array(second)]))
    return np.concatenate([first, second])
