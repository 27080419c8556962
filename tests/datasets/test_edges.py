from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from fairmp.datasets.edges import undirected
from fairmp.datasets.load_report import LoadReport

ROWS = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=40)


@settings(deadline=None)
@given(ROWS)
def test_undirected_agrees_with_pyg(rows):
    report = LoadReport()
    source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    ours = undirected(source, target, 7, report)

    known = [(a, b) for a, b in rows if a >= 0 and b >= 0]
    proper = [(a, b) for a, b in known if a != b]
    edge_index = torch.tensor(known, dtype=torch.long).reshape(-1, 2).T
    edge_index = to_undirected(remove_self_loops(edge_index)[0], num_nodes=7)
    theirs = coalesce(edge_index, num_nodes=7)
    assert ours.tolist() == theirs.tolist()
    assert ours.dtype == np.int64

    directed = set(proper)
    pairs = {tuple(sorted(edge)) for edge in proper}
    assert report.edge_rows == len(rows)
    assert report.dangling == len(rows) - len(known)
    assert report.self_loops == len(known) - len(proper)
    assert report.repeated == len(proper) - len(directed)
    assert report.reciprocal == sum((b, a) in directed for a, b in directed) // 2
    assert report.edges == len(pairs)
