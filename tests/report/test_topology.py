from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import igraph
import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fairmp.analysis.theory.block_model import block_graph
from fairmp.datasets import social_network
from fairmp.errors import InputError
from fairmp.report.figures import to_svg
from fairmp.report.topology import CROSSING, INSIDE, UNKNOWN, layout, sample, topology


def png(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def lines(figure) -> dict[str, int]:
    """Edges drawn, by colour."""
    from matplotlib.colors import to_hex

    counts = {INSIDE: 0, CROSSING: 0, UNKNOWN: 0}
    for axes in figure.axes:
        for part in axes.collections:
            if isinstance(part, LineCollection) and len(part.get_segments()):
                counts[to_hex(part.get_colors()[0])] += len(part.get_segments())
    return counts


def caption(figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def grouped(data: Data) -> igraph.Graph:
    graph = igraph.Graph(data.num_nodes, data.edge_index.T.numpy()).simplify()
    graph.vs["group"] = data.sens.tolist()
    return graph


@pytest.fixture(scope="module")
def pieces() -> Data:
    """Three components of 5, 3 and 2 nodes, one of 2 more, one node alone, one of unknown group."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (5, 6), (6, 7), (8, 9), (10, 11)]
    return Data(
        edge_index=to_undirected(torch.tensor(edges).T),
        sens=torch.tensor([0, 0, 1, 1, -1, 0, 1, 0, 1, 1, 0, 0, 1]),
        num_nodes=13,
        name="pieces",
        group_names=["a", "b"],
    )


def test_topology_draws_every_edge_of_the_largest_components(pieces):
    figure = topology(pieces)
    assert len(figure.axes) == 3
    assert lines(figure) == {INSIDE: 3, CROSSING: 3, UNKNOWN: 2}
    words = caption(figure)
    assert "Not drawn: 1 smaller component and 1 node without an edge" in words
    assert "random walk" not in words
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a", "b", "unknown group", "within a group", "between groups"]
    assert len(topology(pieces, components=1).axes) == 1


def test_topology_of_a_large_graph_describes_its_sample():
    data = social_network(n=4000, average_degree=20)
    figure = topology(data, max_nodes=300, max_edges=500)
    assert lines(figure)[INSIDE] + lines(figure)[CROSSING] == 500
    words = caption(figure)
    assert re.search(r"4,000 nodes, 40,000 edges\. Drawn: 300 nodes of a random walk", words)
    assert "500 of the" in words
    share = lines(figure)[CROSSING] / 500
    assert f"{100 * share:.1f}\N{NO-BREAK SPACE}% of these are between groups" in words
    # The whole graph has 8.0 %.
    assert share == pytest.approx(0.08, abs=0.04)


def test_topology_is_deterministic_for_a_seed():
    data = social_network(n=600, average_degree=6)
    one, same, other = (topology(data, max_nodes=200, seed=seed) for seed in (0, 0, 1))
    assert png(one) == png(same)
    assert png(one) != png(other)
    assert to_svg(one) == to_svg(same)


def test_svg_is_small_and_keeps_text():
    svg = to_svg(topology(block_graph(500, 0.05, 0.9, 0.5, seed=0)))
    assert len(svg) < 3e6
    ElementTree.fromstring(svg)
    assert "edges are within a group" in svg


def test_layout_separates_groups():
    data = block_graph(300, 0.05, 0.95, 0.5, seed=0)
    graph = grouped(data).connected_components().giant()
    place = layout(graph)
    edges, sens = np.array(graph.get_edgelist()).T, np.array(graph.vs["group"])
    centres = [place[sens == g].mean(0) for g in (0, 1)]
    nearer = np.linalg.norm(place - centres[0], axis=1) < np.linalg.norm(place - centres[1], axis=1)
    assert (nearer == (sens == 0)).mean() > 0.9
    # Neighbours are nearer to each other than nodes picked at random.
    rng = np.random.default_rng(0)
    apart = np.linalg.norm(place[edges[0]] - place[edges[1]], axis=1).mean()
    assert apart < np.linalg.norm(place - place[rng.permutation(len(place))], axis=1).mean()


@pytest.mark.parametrize("n", [2, 3, 200])
def test_layout_of_paths_is_finite(n):
    place = layout(igraph.Graph.Ring(n, circular=False))
    assert place.shape == (n, 2)
    assert np.isfinite(place).all()
    assert len(np.unique(place.round(6), axis=0)) == n


def test_sample_is_connected_and_has_as_many_nodes_as_asked_for():
    graph = grouped(social_network(n=1500, average_degree=8)).connected_components().giant()
    part = sample(graph, 120, np.random.default_rng(3))
    assert part.vcount() == 120
    assert part.is_connected()


def test_drawn_edges_keep_the_component_connected():
    data = block_graph(400, 0.1, 0.9, 0.5, seed=0)
    figure = topology(data, max_edges=1)
    drawn = nx.Graph()
    for part in figure.axes[0].collections:
        if isinstance(part, LineCollection):
            drawn.add_edges_from(tuple(map(tuple, line.round(6))) for line in part.get_segments())
    assert drawn.number_of_edges() == drawn.number_of_nodes() - 1 == 399
    assert nx.is_connected(drawn)


def test_topology_with_many_groups_and_without_edges():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        edge_index=to_undirected(torch.randint(0, 90, (2, 200), generator=generator)),
        sens=torch.arange(90) % 12,
        num_nodes=90,
    )
    assert png(topology(data)).startswith(b"\x89PNG")
    data.edge_index = torch.empty(2, 0, dtype=torch.int64)
    assert "No edges to draw" in caption(topology(data))


@pytest.mark.parametrize("option", ["components", "max_nodes", "max_edges"])
def test_topology_names_wrong_argument(pieces, option):
    with pytest.raises(InputError, match=f"{option}: 0"):
        topology(pieces, **{option: 0})


def test_topology_of_real_graphs(data_folder):
    from fairmp.datasets import load

    nba = topology(load("nba", data_folder))
    assert "27.6\N{NO-BREAK SPACE}%" in caption(nba)
    pokec = topology(load("pokec-n-graph", data_folder))
    words = caption(pokec)
    assert "66,082 nodes, 516,784 edges. Drawn: 1,500 nodes of a random walk" in words
    assert "223 smaller components" in words
    assert len(to_svg(pokec)) < 3e6
