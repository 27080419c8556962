"""Picture of a graph: nodes by group, edges within and between groups."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.statistics import homophily
from fairmp.errors import check_integer, plural
from fairmp.report.figures import COLOURS, MARKERS
from fairmp.report.formats import shorten

if TYPE_CHECKING:
    import igraph
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = "caption"
MINORITY = 0.25  # share of the nodes below which a group is drawn larger
GROUP = "group"  # attribute of an igraph node
NUM_WALKS = 24
MAX_WALK = 200  # steps of a walk, in multiples of the nodes it is to visit
NUM_STEPS = 300  # of the layout
# So many edges can be distinguished, however few nodes they join.
MIN_EDGES_SHOWN = 1000
INSIDE, CROSSING, UNKNOWN = "#222222", "#cc3311", "#bbbbbb"
# Without vermilion and black, which are too close to the colours of the edges.
NODE_COLOURS = tuple(COLOURS[k] for k in (0, 4, 2, 3, 5))
RANKS = ("Largest", "Second", "Third", "Fourth", "Fifth")


@dataclass(frozen=True)
class _Component:
    """A connected component, or a sample of it."""

    graph: igraph.Graph  # the drawn nodes, and all edges between them, which shape the layout
    shown: np.ndarray  # the edges that are drawn (2×E)
    full_nodes: int  # nodes of the full component
    full_edges: int  # edges of the full component

    @property
    def groups(self) -> np.ndarray:
        """Group of each node."""
        return np.array(self.graph.vs[GROUP])


@dataclass(frozen=True)
class _Components:
    """The components that are drawn, and how much is not."""

    largest: list[_Component]
    smaller: int  # components with an edge that are not drawn
    isolated: int  # nodes without an edge


def topology(
    data: Data, *, components: int = 3, max_nodes: int = 1500, max_edges: int = 5000, seed: int = 0
) -> Figure:
    """Draw the largest connected components: edges within a group dark, between groups red.

    The caption says what was sampled; the nodes and edges of the figure are rasterised to keep an
    SVG small. The picture is deterministic for a seed.

    Args:
        data: a graph with ``edge_index`` and ``sens`` (−1: unknown, drawn grey).
        components: number of components to draw.
        max_nodes: largest number of nodes per component; larger ones are sampled by a random walk.
        max_edges: largest number of edges per component, and at most four per node if there are
            over a thousand, drawn at random; all edges shape the layout.
        seed: seed of samples and initial positions.
    """
    check_integer("components", components, "give 1 or more")
    check_integer("max_nodes", max_nodes, "give 2 or more", low=2)
    check_integer("max_edges", max_edges, "give 1 or more")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    from matplotlib.figure import Figure

    groups = data.sens.cpu().numpy()
    with _seeded(seed):
        drawn = _components(data, components, max_nodes, max_edges, seed)
        places = [layout(component.graph, seed=seed) for component in drawn.largest]
    fig = Figure(figsize=(9.0, 6.4), dpi=150)
    for k, (component, place) in enumerate(zip(drawn.largest, places, strict=True)):
        axes = fig.add_axes(_panel(k, len(drawn.largest)))
        axes.axis("off")
        # Thousands of lines as one image: the SVG stays small, and its text stays text.
        axes.set_rasterization_zorder(10)
        axes.margins(0.2 if k else 0.04)
        _draw(axes, place, component.shown, component.groups)
        if k:
            size = plural(component.full_nodes, "node")
            axes.set_title(size, fontsize=8.5, color="#57606a", y=-0.05)
    fig.text(0.02, 0.965, str(getattr(data, "name", "graph")), fontsize=13, va="center")
    _legend(fig, groups, getattr(data, "group_names", None))
    caption = _caption(drawn, groups, data.edge_index.cpu().numpy())
    fig.text(0.02, 0.015, caption, fontsize=8.5, va="bottom", linespacing=1.35, gid=CAPTION)
    return fig


def _panel(k: int, count: int) -> tuple[float, float, float, float]:
    """Place of component k of a picture: the largest, and the others in a column at its side."""
    bottom, top = 0.145, 0.9
    side = 0.2 if count > 1 else 0.0
    if k == 0:
        return 0.01, bottom, 0.98 - side, top - bottom
    height = (top - bottom) / max(count - 1, 3)
    return 0.99 - side, top - k * height, side, 0.9 * height


def take_caption(fig: Figure) -> str:
    """Remove the caption from a picture and return it: a page sets it as text.

    Example:
        >>> from fairmp.datasets import social_network
        >>> caption = take_caption(topology(social_network(n=400, average_degree=5)))
        >>> print(*caption.split())
        92.0 % of the graph's edges are within a group (dark), 8.0 % between groups (red). Not
        drawn: 5 nodes without an edge.
    """
    [text] = [text for text in fig.texts if text.get_gid() == CAPTION]
    text.remove()
    return str(text.get_text().replace("\n", " "))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed igraph's random numbers; afterwards it uses Python's generator again, its default."""
    import igraph  # which imports matplotlib

    igraph.set_random_number_generator(random.Random(seed))
    try:
        yield
    finally:
        igraph.set_random_number_generator(random)


def _components(data: Data, count: int, max_nodes: int, max_edges: int, seed: int) -> _Components:
    """Find the largest components, and sample their nodes and edges where there are too many."""
    rng = np.random.default_rng(seed)
    import igraph

    graph = igraph.Graph(n=len(data.sens), edges=data.edge_index.T.cpu().numpy()).simplify()
    graph.vs[GROUP] = data.sens.tolist()
    components = graph.connected_components()
    sizes = np.array(components.sizes())
    order = np.argsort(-sizes, kind="stable")[:count]
    largest = []
    for k in order[sizes[order] > 1]:
        full = part = components.subgraph(k)
        if full.vcount() > max_nodes:
            part = sample(full, max_nodes, rng)
        limit = min(max_edges, max(MIN_EDGES_SHOWN, 4 * part.vcount()))
        largest.append(_Component(part, _shown(part, limit, rng), full.vcount(), full.ecount()))
    smaller = int((sizes > 1).sum()) - len(largest)
    return _Components(largest, smaller, isolated=int((sizes == 1).sum()))


def _shown(graph: igraph.Graph, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Random edges to draw (2×E), with a spanning tree so that the component stays connected."""
    order = rng.permutation(graph.ecount())
    tree = graph.spanning_tree(weights=order.tolist(), return_tree=False)
    order[tree] -= graph.ecount()
    chosen = np.argsort(order)[: max(limit, len(tree))]
    return _ends(graph)[:, np.sort(chosen)]


def _ends(graph: igraph.Graph) -> np.ndarray:
    """Ends of each edge (2×E)."""
    return np.array(graph.get_edgelist(), dtype=np.int64).reshape(-1, 2).T


def _draw(axes: Axes, place: np.ndarray, edges: np.ndarray, groups: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    source, target = groups[edges]
    unknown = (source < 0) | (target < 0)
    crossing = (source != target) & ~unknown
    lines = place[edges.T]
    many = len(lines) > 500
    kinds = (
        (unknown, UNKNOWN, 0.5, 0.6),
        (~unknown & ~crossing, INSIDE, 0.5, 0.35),
        (crossing, CROSSING, 0.8, 0.6),
    )
    for order, (chosen, colour, width, alpha) in enumerate(kinds):
        style: dict[str, Any] = {"linewidths": width, "alpha": alpha}
        if not many:
            style = {"linewidths": 1.6 * width, "alpha": 0.9}
        axes.add_collection(LineCollection(lines[chosen], colors=colour, zorder=1 + order, **style))
    size = float(np.clip(12_000 / len(place), 9, 26))
    codes, counts = np.unique(groups, return_counts=True)
    # Small groups last and larger, or the others hide them.
    for rank, k in enumerate(np.argsort(-counts, kind="stable")):
        x, y = place[groups == codes[k]].T
        is_small = codes[k] >= 0 and counts[k] < MINORITY * len(groups)
        edge = {"edgecolors": "black", "linewidths": 0.6} if is_small else {}
        style = {"edgecolors": "white", "linewidths": 0.3, **edge, **_style(codes[k])}
        axes.scatter(x, y, size * (3 if is_small else 1), zorder=5 + rank / len(codes), **style)


def _style(group: int) -> dict[str, Any]:
    if group < 0:
        return {"color": UNKNOWN, "marker": "."}
    colour, marker = NODE_COLOURS[group % len(NODE_COLOURS)], MARKERS[group % len(MARKERS)]
    return {"color": colour, "marker": marker}


def _legend(fig: Figure, groups: np.ndarray, names: list[str] | None) -> None:
    from matplotlib.lines import Line2D

    present = np.unique(groups)
    has_names = names is not None and len(names) > present.max()
    labels = {g: shorten(names[g]) if names and has_names else f"group {g}" for g in present}
    handles = [
        Line2D([], [], linestyle="", label=labels[g], markersize=7, **_style(g))
        for g in present[present >= 0][:8]
    ]
    if (present < 0).any():
        label = "unknown group"
        handles.append(Line2D([], [], linestyle="", label=label, markersize=7, **_style(-1)))
    handles += [
        Line2D([], [], color=INSIDE, linewidth=1.4, label="within a group"),
        Line2D([], [], color=CROSSING, linewidth=2.2, label="between groups"),
    ]
    style: dict[str, Any] = {"frameon": False, "ncols": min(len(handles), 6), "fontsize": 9}
    fig.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.99, 0.995), **style)


def _caption(components: _Components, groups: np.ndarray, edge_index: np.ndarray) -> str:
    within = _within(groups, edge_index[:, edge_index[0] != edge_index[1]])
    if not components.largest:
        return "No edges to draw."
    if within is None:
        return "No edge joins two nodes of known group."
    sentences = [
        f"{100 * within:.1f} % of the graph's edges are within a group (dark), "
        f"{100 - 100 * within:.1f} % between groups (red)."
    ]
    for component, rank in zip(components.largest, RANKS, strict=False):
        if text := _sampled(component):
            sentences.append(f"{rank} component: {text}")
    left = []
    if components.smaller:
        left.append(plural(components.smaller, "smaller component"))
    if components.isolated:
        left.append(f"{plural(components.isolated, 'node')} without an edge")
    if left:
        sentences.append(f"Not drawn: {' and '.join(left)}.")
    text = " ".join(sentences).replace(" %", "\N{NO-BREAK SPACE}%")
    return "\n".join(textwrap.wrap(text, 132))


def _sampled(component: _Component) -> str:
    """What is drawn of a component; empty if it is drawn in full."""
    nodes, shown, edges = (
        component.graph.vcount(),
        component.shown.shape[1],
        component.graph.ecount(),
    )
    if nodes == component.full_nodes and shown == component.full_edges:
        return ""
    drawn = f"all nodes and {shown:,} random edges that keep them connected"
    if nodes < component.full_nodes:
        some = "the" if shown == edges else f"{shown:,} of the"
        drawn = (
            f"{nodes:,} nodes of a random walk (the most representative of {NUM_WALKS}) and "
            f"{some} {edges:,} edges among them"
        )
    within = _within(component.groups, component.shown)
    crossing = 0.0 if within is None else 1 - within
    return (
        f"{plural(component.full_nodes, 'node')}, {plural(component.full_edges, 'edge')}. "
        f"Drawn: {drawn}; {100 * crossing:.1f} % of these are between groups."
    )


def _within(groups: np.ndarray, edges: np.ndarray) -> float | None:
    """Share of within-group edges among those of known groups."""
    return homophily(torch.from_numpy(edges).long(), torch.from_numpy(groups))


def layout(graph: igraph.Graph, *, seed: int = 0) -> np.ndarray:
    """Force-directed positions (n×2) of a connected graph's nodes, the long side horizontal.

    igraph's Fruchterman-Reingold layout. An edge attracts less if its nodes have many others, so
    that hubs do not pull the groups of a dense graph into one ball.
    """
    degree = np.array(graph.degree())
    source, target = _ends(graph)
    attraction = 1 / (degree[source] * degree[target])
    start = np.random.default_rng(seed).normal(scale=0.01, size=(graph.vcount(), 2))
    place = graph.layout_fruchterman_reingold(
        weights=(attraction / attraction.mean()).tolist(),
        seed=start.tolist(),
        niter=NUM_STEPS,
        grid=False,  # which is faster, but separates groups less
    )
    centred = np.array(place.coords) - np.mean(place.coords, 0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    # Signs of singular vectors are arbitrary; make the largest entry positive.
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])[:, None]
    return np.asarray(centred @ axes.T)


def sample(graph: igraph.Graph, count: int, rng: np.random.Generator) -> igraph.Graph:
    """Sample connected nodes of a connected graph by a random walk.

    Short walks may not leave a community, so of several walks it keeps the one whose shares of
    groups and of between-group edges are closest to the graph's.
    """
    num_groups = max(graph.vs[GROUP]) + 1
    overall = _composition(graph, num_groups)
    parts = [graph.induced_subgraph(_walk(graph, count, rng)) for _ in range(NUM_WALKS)]
    distances = [float(np.abs(_composition(part, num_groups) - overall).sum()) for part in parts]
    return parts[int(np.argmin(distances))]


def _walk(graph: igraph.Graph, count: int, rng: np.random.Generator) -> list[int]:
    node = int(rng.integers(graph.vcount()))
    visited: dict[int, None] = {}
    for _ in range(MAX_WALK):
        path = graph.random_walk(node, count)
        visited |= dict.fromkeys(path)
        node = path[-1]
        if len(visited) >= count:
            break
    return list(visited)[:count]


def _composition(graph: igraph.Graph, num_groups: int) -> np.ndarray:
    """Shares of the groups among nodes, and the weighted share of between-group edges."""
    groups = np.array(graph.vs[GROUP])
    shares = np.bincount(groups + 1, minlength=num_groups + 1) / len(groups)
    within = _within(groups, _ends(graph))
    return np.append(shares, 0.0 if within is None else 4 * (1 - within))
