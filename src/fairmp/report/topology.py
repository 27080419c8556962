"""The picture of a graph: who is tied to whom, and which ties cross between groups."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.report.figures import COLOURS, MARKERS
from fairmp.report.layout import layout, sample

INSIDE, CROSSING, UNKNOWN = "#222222", "#cc3311", "#bbbbbb"
# Vermilion is left to the edges that cross.
NODES = tuple(colour for colour in COLOURS if colour not in ("#D55E00", "#000000", "#999999"))


@dataclass(frozen=True)
class _Piece:
    """A component, or a sample of one: its nodes in the graph, and its edges by place in nodes."""

    nodes: np.ndarray
    source: np.ndarray
    target: np.ndarray
    size: int
    edges: int


def topology(data: Data, *, components: int = 3, max_nodes: int = 1500, seed: int = 0) -> Any:
    """Draw the largest connected components: edges inside a group dark, edges across it red.

    A component of more than ``max_nodes`` nodes is drawn by a sample, what a random walk meets;
    the caption in the figure says so, and what share of the edges cross in it and in the whole.
    The same graph and seed give the same picture.

    Args:
        data: a graph with ``edge_index`` and ``sens`` (−1: unknown, drawn grey).
        components: how many components to draw.
        max_nodes: the most nodes to draw of one.
        seed: of samples and starts.

    Returns:
        A matplotlib figure; edges and nodes are rasterised in it, so that an SVG stays small.

    Example:
        >>> from fairmp.datasets import social_network
        >>> figure = topology(social_network(n=200, average_degree=4))
        >>> figure.savefig("topology.png")  # doctest: +SKIP
    """
    if components < 1:
        raise InputError(f"components: {components} is too few; give 1 or more")
    if max_nodes < 2:
        raise InputError(f"max_nodes: {max_nodes} is too few; give 2 or more")
    groups = data.sens.cpu().numpy()
    pieces, count = _pieces(data, groups, components, max_nodes, seed)

    from matplotlib.figure import Figure

    fig = Figure(figsize=(9.0, 6.6), dpi=150)
    area = fig.add_axes((0.01, 0.17, 0.98, 0.75)) if not pieces else None
    names = _names(data, groups)
    for piece, axes in zip(pieces, _panels(fig, len(pieces)), strict=True):
        place = layout(piece.source, piece.target, len(piece.nodes), seed=seed)
        _draw(axes, piece, place, groups)
    if area is not None:
        area.axis("off")
    fig.suptitle(str(getattr(data, "name", "graph")), x=0.02, y=0.975, ha="left", fontsize=13)
    _legend(fig, groups, names)
    fig.text(0.02, 0.02, _caption(data, pieces, count, groups), fontsize=8.5, va="bottom")
    return fig
