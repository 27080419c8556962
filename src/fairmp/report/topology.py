"""Picture of a graph: nodes by group, edges within and between groups."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits
from torch_geometric.data import Data

from fairmp.datasets.columns import counted
from fairmp.errors import check_integer
from fairmp.report.figures import COLOURS, MARKERS
from fairmp.report.formats import shorten

CAPTION = "caption"
NUM_WALKS = 24
NUM_STEPS = 200  # of the layout
# So many edges can be distinguished, however few nodes they join.
MIN_EDGES_SHOWN = 1000
INSIDE, CROSSING, UNKNOWN = "#222222", "#cc3311", "#bbbbbb"
# Without vermilion and black, which are too close to the colours of the edges.
NODE_COLOURS = tuple(COLOURS[k] for k in (0, 4, 2, 3, 5))
RANKS = ("Largest", "Second", "Third", "Fourth", "Fifth")


class _Component(NamedTuple):
    """A component, or a sample of it."""

    nodes: np.ndarray
    ends: np.ndarray  # positions in ``nodes`` of the ends of all edges (2×E), for the layout
    shown: np.ndarray  # the same for the edges that are drawn
    size: int  # nodes of the full component
    edges: int  # edges of the full component


def topology(
    data: Data, *, components: int = 3, max_nodes: int = 1500, max_edges: int = 5000, seed: int = 0
) -> Any:
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
    parts, count, isolated = _components(data, groups, components, max_nodes, max_edges, seed)
    fig = Figure(figsize=(9.0, 6.4), dpi=150)
    # The largest component, and the others in small panels at its side.
    bottom, top, side = 0.145, 0.9, 0.2 if len(parts) > 1 else 0.0
    height = (top - bottom) / max(len(parts) - 1, 3)
    for k, part in enumerate(parts):
        small = (0.99 - side, top - k * height, side, 0.9 * height)
        axes = fig.add_axes(small if k else (0.01, bottom, 0.98 - side, top - bottom))
        axes.axis("off")
        # Thousands of lines as one image: the SVG stays small, and its text stays text.
        axes.set_rasterization_zorder(10)
        axes.margins(0.2 if k else 0.04)
        source, target = part.ends
        place = layout(source, target, len(part.nodes), seed=seed)
        _draw(axes, place, part.shown, groups[part.nodes])
        if k:
            axes.set_title(f"{part.size:,} nodes", fontsize=8.5, color="#57606a", y=-0.05)
    fig.text(0.02, 0.965, str(getattr(data, "name", "graph")), fontsize=13, va="center")
    _legend(fig, groups, getattr(data, "group_names", None))
    caption = _caption(parts, count, isolated, groups, data.edge_index.cpu().numpy())
    fig.text(0.02, 0.015, caption, fontsize=8.5, va="bottom", linespacing=1.35, gid=CAPTION)
    return fig


def take_caption(fig: Any) -> str:
    """Remove the caption from a picture and return it: a page sets it as text."""
    [text] = [text for text in fig.texts if text.get_gid() == CAPTION]
    text.remove()
    return str(text.get_text().replace("\n", " "))


def _components(
    data: Data, groups: np.ndarray, components: int, max_nodes: int, max_edges: int, seed: int
) -> tuple[list[_Component], int, int]:
    """The largest components, the number of components with an edge, and of isolated nodes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    rng = np.random.default_rng(seed)
    n = len(groups)
    source, target = data.edge_index.cpu().numpy()
    source, target = source[source != target], target[source != target]
    graph = csr_array((np.ones(len(source), dtype=bool), (source, target)), shape=(n, n))
    graph = (graph + graph.T).tocsr()
    _, member = connected_components(graph, directed=False)
    sizes = np.bincount(member, minlength=1)
    order = np.argsort(-sizes, kind="stable")[:components]
    found = []
    for k in order[sizes[order] > 1]:
        nodes = np.flatnonzero(member == k)
        part = graph[nodes][:, nodes]
        size, edges = len(nodes), part.nnz // 2
        if size > max_nodes:
            chosen = sample(part, max_nodes, groups[nodes], seed=seed)
            part, nodes = part[chosen][:, chosen], nodes[chosen]
        ends = np.stack(part.nonzero())
        ends = ends[:, ends[0] < ends[1]]
        most = min(max_edges, max(MIN_EDGES_SHOWN, 4 * len(nodes)))
        found.append(_Component(nodes, ends, _shown(ends, len(nodes), most, rng), size, edges))
    return found, int((sizes > 1).sum()), int((sizes == 1).sum())


def _shown(ends: np.ndarray, n: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Random edges to draw, with a spanning tree so that the component stays connected."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    count = ends.shape[1]
    if count <= most:
        return ends
    order = rng.permutation(count)
    tree = minimum_spanning_tree(csr_array((order + 1.0, tuple(ends)), shape=(n, n)))
    first = np.isin(order, tree.data.astype(np.int64) - 1)
    return ends[:, np.lexsort((order, ~first))[: max(most, n - 1)]]


def _draw(axes: Any, place: np.ndarray, ends: np.ndarray, own: np.ndarray) -> None:
    from matplotlib.collections import LineCollection

    one, other = own[ends]
    unknown = (one < 0) | (other < 0)
    crossing = (one != other) & ~unknown
    lines = place[ends.T]
    many = len(lines) > 500
    kinds = (
        (unknown, UNKNOWN, 0.5, 0.6),
        (~unknown & ~crossing, INSIDE, 0.5, 0.35),
        (crossing, CROSSING, 0.8, 0.6),
    )
    for order, (chosen, colour, width, alpha) in enumerate(kinds):
        width, alpha = (width, alpha) if many else (1.6 * width, 0.9)
        style: dict[str, Any] = {"colors": colour, "linewidths": width, "alpha": alpha}
        axes.add_collection(LineCollection(lines[chosen], zorder=1 + order, **style))
    size = float(np.clip(12_000 / len(place), 9, 26))
    for g in np.unique(own):
        style = {"s": size, "edgecolors": "white", "linewidths": 0.3, "zorder": 5}
        axes.scatter(*place[own == g].T, **_style(g), **style)


def _style(group: int) -> dict[str, Any]:
    if group < 0:
        return {"color": UNKNOWN, "marker": "."}
    colour, marker = NODE_COLOURS[group % len(NODE_COLOURS)], MARKERS[group % len(MARKERS)]
    return {"color": colour, "marker": marker}


def _legend(fig: Any, groups: np.ndarray, names: list[str] | None) -> None:
    from matplotlib.lines import Line2D

    found = np.unique(groups)
    given = names if names is not None and len(names) > found.max() else None
    handles = []
    for g in [g for g in found if g >= 0][:8] + [g for g in found if g < 0]:
        label = "unknown group" if g < 0 else shorten(given[g]) if given else f"group {g}"
        handles.append(Line2D([], [], linestyle="", label=label, markersize=7, **_style(g)))
    handles += [
        Line2D([], [], color=INSIDE, linewidth=1.4, label="within a group"),
        Line2D([], [], color=CROSSING, linewidth=2.2, label="between groups"),
    ]
    style: dict[str, Any] = {"frameon": False, "ncols": min(len(handles), 6), "fontsize": 9}
    fig.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.99, 0.995), **style)


def _caption(
    parts: list[_Component], count: int, isolated: int, groups: np.ndarray, edge_index: np.ndarray
) -> str:
    overall = _crossing(groups, edge_index)
    if not parts or overall is None:
        return "No edges to draw." if not parts else "No edge joins two nodes of known group."
    lines = [
        f"{100 - 100 * overall:.1f} % of the graph's edges are within a group (dark), "
        f"{100 * overall:.1f} % between groups (red)."
    ]
    for part, rank in zip(parts, RANKS, strict=False):
        nodes, edges, among = len(part.nodes), part.shown.shape[1], part.ends.shape[1]
        if nodes == part.size and edges == part.edges:
            continue
        text = f"{rank} component: {part.size:,} nodes, {part.edges:,} edges. Drawn: "
        if nodes < part.size:
            some = "the" if edges == among else f"{edges:,} of the"
            text += (
                f"{nodes:,} nodes of a random walk (the most representative of {NUM_WALKS}) and "
                f"{some} {among:,} edges among them"
            )
        else:
            text += f"all nodes and {edges:,} random edges that keep them connected"
        drawn = _crossing(groups[part.nodes], part.shown) or 0.0
        lines.append(f"{text}; {100 * drawn:.1f} % of these are between groups.")
    smaller = count - len(parts)
    left = [counted(smaller, "smaller component")] if smaller else []
    left += [f"{counted(isolated, 'node')} without an edge"] if isolated else []
    if left:
        lines.append(f"Not drawn: {' and '.join(left)}.")
    return "\n".join(textwrap.wrap(" ".join(lines).replace(" %", "\N{NO-BREAK SPACE}%"), 132))


def _crossing(groups: np.ndarray, ends: np.ndarray) -> float | None:
    """Share of between-group edges among those of known groups."""
    one, other = groups[ends]
    known = (one >= 0) & (other >= 0) & (ends[0] != ends[1])
    return float((one != other)[known].mean()) if known.any() else None


@threadpool_limits.wrap(limits=1)
def layout(source: np.ndarray, target: np.ndarray, n: int, *, seed: int = 0) -> np.ndarray:
    r"""Force-directed positions (n×2) of a connected graph's nodes, the long side horizontal.

    Nodes repel each other by :math:`m_i m_j / r` with mass degree + 1, and edges attract by
    :math:`\ln(1 + r)` (LinLog), starting from the two slowest modes of the normalised Laplacian:
    communities separate. networkx's layouts take three to six times as long at 1,500 nodes;
    its spring layout draws dense graphs as a ball, and its ForceAtlas2 does not separate groups.
    """
    if n < 3:
        return np.stack([np.arange(n) - (n - 1) / 2, np.zeros(n)], 1)
    rng = np.random.default_rng(seed)
    scale = float(np.sqrt(n))
    place = 3 * scale * _spectral(source, target, n) + rng.normal(scale=0.05, size=(n, 2))
    place = place.astype(np.float32)
    mass = (np.bincount(np.concatenate([source, target]), minlength=n) + 1).astype(np.float32)
    # Weighted so that repulsion and attraction balance at distances of about `scale`, for graphs
    # of any density.
    push = len(source) * np.log1p(scale) * scale / float(mass.sum() ** 2 - (mass**2).sum())
    gravity = 0.02 * len(source) / n * np.log1p(scale) / scale
    for step in range(NUM_STEPS):
        force = push * _repulsion(place, mass) + _attraction(place, source, target)
        force = (force - gravity * place) / mass[:, None]
        length = np.linalg.norm(force, axis=1, keepdims=True) + 1e-9
        limit = 0.5 * scale * (1 - step / NUM_STEPS) ** 2
        place += (force / length * np.minimum(length * scale, limit)).astype(np.float32)
    place = place.astype(np.float64) - place.mean(0)
    _, _, axes = np.linalg.svd(place, full_matrices=False)
    # Signs of singular vectors are arbitrary; make the largest entry positive.
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])[:, None]
    return np.asarray(place @ axes.T)


def _spectral(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    """Ranks of the nodes along the two slowest modes, in [−½, ½]."""
    from scipy.linalg import eigh

    root = 1 / np.sqrt(np.bincount(np.concatenate([source, target]), minlength=n))
    matrix = np.zeros((n, n))
    matrix[source, target] = matrix[target, source] = root[source] * root[target]
    modes = eigh(matrix, subset_by_index=[n - 3, n - 2])[1]
    # Ranks, because a chain of nodes would otherwise dominate the picture.
    return np.asarray(modes.argsort(0, kind="stable").argsort(0, kind="stable") / n - 0.5)


def _repulsion(place: np.ndarray, mass: np.ndarray) -> np.ndarray:
    square = (place**2).sum(1)
    distance = square[:, None] + square[None, :] - 2 * (place @ place.T)
    np.maximum(distance, 1e-2, out=distance)
    weight = np.divide(mass[:, None] * mass[None, :], distance, out=distance)
    np.fill_diagonal(weight, 0)
    return place * weight.sum(1, keepdims=True) - weight @ place


def _attraction(place: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    apart = place[target] - place[source]
    distance = np.linalg.norm(apart, axis=1) + 1e-9
    n, pull = len(place), (apart * (np.log1p(distance) / distance)[:, None]).T
    sums = [np.bincount(source, side, n) - np.bincount(target, side, n) for side in pull]
    return np.stack(sums, 1)


def sample(neighbours: Any, count: int, groups: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Sample connected nodes of a connected graph (scipy CSR) by a random walk, sorted.

    Short walks may not leave a community, so of several walks it keeps the one whose shares of
    groups and of between-group edges are closest to the graph's.
    """
    rng = np.random.default_rng(seed)
    overall = _split(neighbours, groups, np.arange(len(groups)))
    walks = (_walk(neighbours.indptr, neighbours.indices, count, rng) for _ in range(NUM_WALKS))
    return min(walks, key=lambda w: float(np.abs(_split(neighbours, groups, w) - overall).sum()))


def _walk(starts: np.ndarray, ends: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    node = int(rng.integers(len(starts) - 1))
    met = {node}
    for draw in rng.random(200 * count):
        if len(met) == count:
            break
        low, high = starts[node], starts[node + 1]
        node = int(ends[low + int(draw * (high - low))])
        met.add(node)
    return np.sort(np.fromiter(met, dtype=np.int64))


def _split(neighbours: Any, groups: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Shares of the groups among nodes, and the weighted share of between-group edges."""
    own, ends = groups[nodes], np.stack(neighbours[nodes][:, nodes].nonzero())
    shares = np.bincount(own + 1, minlength=groups.max() + 2) / len(nodes)
    return np.append(shares, 4 * (_crossing(own, ends) or 0.0))
