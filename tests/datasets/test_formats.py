from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import pairwise_distances

from fairmp.datasets.formats import RawGraph, parse, read_raw, similar_nodes
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.sources import Source
from fairmp.errors import InputError

NODES = "id,y,s,age\n5,0,1,20\n7,1,0,30\n9,1,1,40\n"


@pytest.fixture
def source() -> Source:
    return Source("tiny", "Tiny", "Tiny", ("tiny",), {}, "y", "s", "id")


def raw(source: Source, folder: Path, nodes: str, edges: str, *, partial: bool = False) -> RawGraph:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.txt").write_text(edges)
    paths = {"nodes": folder / "nodes.csv", "edges": folder / "edges.txt"}
    return RawGraph(source, paths, partial, LoadReport())


def test_parse_tables(source: Source, tmp_path: Path) -> None:
    graph = parse(raw(source, tmp_path, NODES, "5\t7\n9\t7\n7\t5\n"))
    assert graph.x.tolist() == [[20], [30], [40]]
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert (graph.y.tolist(), graph.sens.tolist()) == ([0, 1, 1], [1, 0, 1])
    assert graph.feature_names == ["age"]
    assert graph.group_names == ["s = 0", "s = 1"]


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (NODES.replace("age", "s2").replace("s,", "t,"), "5 7\n"),
        (NODES.replace("30", "old"), "5 7\n"),
        (NODES.replace("7,1", "5,1"), "5 7\n"),
        (NODES, "a b\n"),
    ],
)
def test_parse_refuses_other_files(source: Source, tmp_path: Path, nodes: str, edges: str) -> None:
    with pytest.raises(InputError, match="Tiny"):
        parse(raw(source, tmp_path, nodes, edges))


def test_read_raw_refuses_empty_cells_unless_partial(source: Source, tmp_path: Path) -> None:
    cut = NODES + "11,1,,\n"
    with pytest.raises(InputError, match="line 5"):
        read_raw(raw(source, tmp_path, cut, ""), "nodes")
    files = raw(source, tmp_path, cut, "", partial=True)
    assert read_raw(files, "nodes").num_rows == 3
    assert len(files.report.notes) == 1


def test_similar_nodes_agrees_with_all_pairs() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    similarity = 1 / (1 + pairwise_distances(x))
    np.fill_diagonal(similarity, 0)
    above = similarity > 0.6 * similarity.max(axis=1, keepdims=True)
    expected = np.argwhere(np.triu(above | above.T))
    assert similar_nodes(x, 0.6).T.tolist() == expected.tolist()
