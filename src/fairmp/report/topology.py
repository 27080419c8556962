"""The picture of a graph: who is tied to whom, and which ties cross between groups."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_geometric.data import Data

from fairmp.datasets.edges import counted
from fairmp.errors import InputError
from fairmp.report.figures import COLOURS, MARKERS
from fairmp.report.graph_layout import WALKS, layout, sample

# Up to so many edges can be told from each other however few nodes they join.
_FEW = 1000
INSIDE, CROSSING, UNKNOWN = "#222222", "#cc3311", "#bbbbbb"
# Of the palette, vermilion is too close to the red of the edges that cross, black to the others.
NODES = tuple(COLOURS[k] for k in (0, 4, 2, 3, 5))


@dataclass(frozen=True)
class _Piece:
    """A component, or a sample of one.

    ``nodes`` are numbers in the graph, ``source`` and ``target`` places in ``nodes``; the edges
    ``shown`` are drawn, all of them count for the layout. ``size`` and ``edges`` are the whole
    component's.
    """

    nodes: np.ndarray
    source: np.ndarray
    target: np.ndarray
    shown: np.ndarray
    size: int
    edges: int


def topology(
    data: Data,
    *,
    components: int = 3,
    max_nodes: int = 1500,
    max_edges: int = 5000,
    seed: int = 0,
) -> Any:
    """Draw the largest connected components: edges inside a group dark, edges across it red.

    A component of more than ``max_nodes`` nodes is drawn by a sample, what a random walk meets; of
    very many edges some are drawn, at random. The caption in the figure says so, and what share of
    the edges cross in the picture and in the graph. The same graph and seed give the same picture.

    Args:
        data: a graph with ``edge_index`` and ``sens`` (−1: unknown, drawn grey).
        components: how many components to draw.
        max_nodes: the most nodes to draw of one.
        max_edges: the most edges to draw of one, and no more than four a node where there are
            over a thousand; all of them shape the layout.
        seed: of samples and starts.

    Returns:
        A matplotlib figure; edges and nodes are rasterised in it, so that an SVG stays small.

    Example:
        >>> from fairmp.datasets import social_network
        >>> figure = topology(social_network(n=200, average_degree=4))
        >>> figure.savefig("topology.png")  # doctest: +SKIP
    """
    if components < 1:
        raise InputError("components", f"{components} is too few", "give 1 or more")
    if max_nodes < 2:
        raise InputError("max_nodes", f"{max_nodes} is too few", "give 2 or more")
    if max_edges < 1:
        raise InputError("max_edges", f"{max_edges} is too few", "give 1 or more")
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "give 0 or a positive integer")
    groups = data.sens.cpu().numpy()
    pieces, count, singles = _pieces(data, groups, components, max_nodes, max_edges, seed)

    from matplotlib.figure import Figure

    fig = Figure(figsize=(9.0, 6.4), dpi=150)
    panels = _panels(fig, len(pieces))
    for piece, axes in zip(pieces, panels, strict=True):
        place = layout(piece.source, piece.target, len(piece.nodes), seed=seed)
        _draw(axes, piece, place, groups)
        if axes is not panels[0]:
            axes.set_title(f"{piece.size:,} nodes", fontsize=8.5, color="#57606a", y=-0.05)
    fig.text(0.02, 0.965, str(getattr(data, "name", "graph")), fontsize=13, va="center")
    _legend(fig, groups, getattr(data, "group_names", None))
    caption = _caption(pieces, count, singles, groups, data.edge_index.cpu().numpy())
    fig.text(0.02, 0.015, caption, fontsize=8.5, va="bottom", linespacing=1.35)
    return fig


def _pieces(
    data: Data, groups: np.ndarray, components: int, max_nodes: int, max_edges: int, seed: int
) -> tuple[list[_Piece], int, int]:
    """Take the largest components apart; count those with an edge, and the nodes without one."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rng = np.random.default_rng(seed)
    n = len(groups)
    source, target = data.edge_index.cpu().numpy()
    source, target = source[source != target], target[source != target]
    ones = np.ones(2 * len(source), dtype=np.int8)
    ends = np.concatenate([source, target]), np.concatenate([target, source])
    graph = csr_array((ones, ends), shape=(n, n))
    graph.sum_duplicates()
    graph.data[:] = 1
    _, member = connected_components(graph, directed=False)
    sizes = np.bincount(member, minlength=1)
    order = np.argsort(-sizes, kind="stable")[:components]
    pieces = []
    for k in order[sizes[order] > 1]:
        nodes = np.flatnonzero(member == k)
        part = graph[nodes][:, nodes]
        edges = part.nnz // 2
        size = len(nodes)
        if size > max_nodes:
            chosen = sample(part, max_nodes, groups[nodes], seed=seed)
            part, nodes = part[chosen][:, chosen], nodes[chosen]
        pairs = part.tocoo()
        once = pairs.row < pairs.col
        ends = pairs.row[once], pairs.col[once]
        most = min(max_edges, max(_FEW, 4 * len(nodes)))
        pieces.append(_Piece(nodes, *ends, _shown(*ends, len(nodes), most, rng), size, edges))
    return pieces, int((sizes > 1).sum()), int((sizes == 1).sum())


def _shown(
    source: np.ndarray, target: np.ndarray, n: int, most: int, rng: np.random.Generator
) -> np.ndarray:
    """Choose the edges to draw at random, so that what hangs together still does."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    if len(source) <= most:
        return np.arange(len(source))
    order = rng.permutation(len(source))
    tree = minimum_spanning_tree(csr_array((order + 1.0, (source, target)), shape=(n, n)))
    first = np.isin(order, tree.data.astype(np.int64) - 1)
    return np.lexsort((order, ~first))[: max(most, n - 1)]


def _panels(fig: Any, count: int) -> list[Any]:
    """Axes for the largest component, and small ones beside it for the others."""
    left, bottom, top = 0.01, 0.145, 0.9
    if not count:
        return []
    side = 0.2 if count > 1 else 0.0
    panels = [fig.add_axes((left, bottom, 0.98 - side, top - bottom))]
    height = (top - bottom) / max(count - 1, 3)
    for k in range(1, count):
        panels.append(fig.add_axes((0.99 - side, top - k * height, side, 0.9 * height)))
    for axes in panels:
        axes.axis("off")
        # Thousands of lines as one image: the SVG stays small, its words stay text.
        axes.set_rasterization_zorder(10)
        axes.margins(0.04 if axes is panels[0] else 0.2)
    return panels


def _draw(axes: Any, piece: _Piece, place: np.ndarray, groups: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    own = groups[piece.nodes]
    one, other = own[piece.source], own[piece.target]
    crossing = (one != other) & (one >= 0) & (other >= 0)
    unknown = (one < 0) | (other < 0)
    lines = np.stack([place[piece.source], place[piece.target]], 1)
    shown = np.zeros(len(lines), dtype=bool)
    shown[piece.shown] = True
    many = len(piece.shown) > 500
    kinds = (
        (unknown, UNKNOWN, 0.5, 0.6),
        (~unknown & ~crossing, INSIDE, 0.5, 0.35),
        (crossing, CROSSING, 0.8, 0.6),
    )
    for order, (chosen, colour, width, ink) in enumerate(kinds):
        axes.add_collection(
            LineCollection(
                lines[chosen & shown], colors=colour, linewidths=width if many else 1.6 * width,
                alpha=ink if many else 0.9, zorder=1 + order,
            )
        )  # fmt: skip
    size = float(np.clip(12_000 / len(place), 9, 26))
    for g in np.unique(own):
        axes.scatter(
            *place[own == g].T, s=size, marker=_marker(g), color=_colour(g), edgecolors="white",
            linewidths=0.3, zorder=5,
        )  # fmt: skip


def _colour(group: int) -> str:
    return UNKNOWN if group < 0 else NODES[group % len(NODES)]


def _marker(group: int) -> str:
    return "." if group < 0 else MARKERS[group % len(MARKERS)]


def _legend(fig: Any, groups: np.ndarray, names: list[str] | None) -> None:
    from matplotlib.lines import Line2D

    found = np.unique(groups)
    shown = [g for g in found if g >= 0][:8] + [g for g in found if g < 0]
    given = names if names is not None and len(names) > found.max() else None
    handles = [
        Line2D(
            [], [], linestyle="", marker=_marker(g), color=_colour(g), markersize=7,
            label="unknown group" if g < 0 else shorten(given[g]) if given else f"group {g}",
        )
        for g in shown
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=INSIDE, linewidth=1.4, label="inside a group"),
        Line2D([], [], color=CROSSING, linewidth=2.2, label="across groups"),
    ]
    fig.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(0.99, 0.995), frameon=False,
        ncols=min(len(handles), 6), fontsize=9,
    )  # fmt: skip


def shorten(name: str) -> str:
    """Cut a name that would not fit a legend.

    Example:
        >>> shorten("north"), shorten("a group with a very long name")
        ('north', 'a group with a very lon…')
    """
    return name if len(name) <= 24 else f"{name[:23]}…"


def _caption(
    pieces: list[_Piece], count: int, singles: int, groups: np.ndarray, edge_index: np.ndarray
) -> str:
    whole = _crossing(groups, *edge_index)
    if not pieces or whole is None:
        return "No edge to draw." if not pieces else "No edge joins two nodes of known group."
    lines = [
        f"Dark ties stay inside a group ({100 - 100 * whole:.1f} % of the graph's edges), red ties "
        f"cross between groups ({100 * whole:.1f} %)."
    ]
    for piece, rank in zip(pieces, _RANKS, strict=False):
        nodes, edges = len(piece.nodes), len(piece.shown)
        if nodes == piece.size and edges == piece.edges:
            continue
        text = f"{rank} component: {piece.size:,} nodes, {piece.edges:,} edges. Drawn: "
        if nodes < piece.size:
            text += f"the {nodes:,} nodes that a random walk met (of {WALKS} walks the one most "
            every = edges == len(piece.source)
            text += "like it) and " + ("the " if every else f"{edges:,} of the ")
            text += f"{len(piece.source):,} edges among them"
        else:
            text += f"all nodes and {edges:,} edges, taken at random so that nothing falls apart"
        ends = piece.source[piece.shown], piece.target[piece.shown]
        drawn = _crossing(groups[piece.nodes], *ends) or 0.0
        lines.append(f"{text}, of which {100 * drawn:.1f} % cross.")
    left = []
    if count > len(pieces):
        left.append(counted(count - len(pieces), "smaller component"))
    if singles:
        left.append(f"{counted(singles, 'node')} without an edge")
    if left:
        lines.append(f"Not drawn: {' and '.join(left)}.")
    return "\n".join(textwrap.wrap(" ".join(lines).replace(" %", "\N{NO-BREAK SPACE}%"), 132))


_RANKS = ("Largest", "Second", "Third", "Fourth", "Fifth")


def _crossing(groups: np.ndarray, source: np.ndarray, target: np.ndarray) -> float | None:
    one, other = groups[source], groups[target]
    known = (one >= 0) & (other >= 0) & (source != target)
    return float((one != other)[known].mean()) if known.any() else None
