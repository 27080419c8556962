"""Join new nodes to the training graph that is stored with a model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.edges import Table, read_edges, undirected
from fairmp.datasets.encoding import Encoding, Features
from fairmp.datasets.ids import comparable, positions
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.stored_graph import StoredGraph
from fairmp.datasets.tables import (
    assemble,
    describe,
    encode_nodes,
    log_degree,
    name_of,
    sample_weights,
)
from fairmp.datasets.targets import UnknownGroups
from fairmp.errors import plural


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
    if encoding.degree:
        x = log_degree(edge_index, len(ids))
    else:
        x = _stack_rows(table.arrays.x, stored.x[others])
    y = np.concatenate([table.arrays.y, np.full(len(others), -1)])
    sens = np.concatenate([table.arrays.sens, stored.sens[others]])
    data = assemble(x, edge_index, y, sens, report)
    describe(data, encoding, ids)
    data.name, data.origin = name_of(nodes), torch.from_numpy(place)
    if encoding.weight in table.frame.columns:
        weights = sample_weights(table.frame[encoding.weight])
        data.sample_weight = torch.cat([weights, torch.ones(len(others))])
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
