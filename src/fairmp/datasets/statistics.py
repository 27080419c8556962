"""Size and homophily of a graph, and the figures printed in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.raw import PathLike


@dataclass(frozen=True)
class Statistics:
    """One row of the table of data sets; shares are in [0, 1], None if unknown."""

    name: str
    nodes: int
    features: int
    edges: int  # directed, without self-loops: every undirected edge counts twice
    label_homophily: float | None  # unlabelled counts as a class
    label_homophily_labelled: float | None  # among edges between labelled nodes
    sens_homophily: float | None  # among edges between nodes of known group
    labelled: int | None = None
    classes: dict[str, int] | None = None  # number of nodes per class
    groups: dict[str, int] | None = None  # number of nodes per group


PAPER = {
    "nba": Statistics("NBA", 403, 95, 21_242, 0.3922, None, 0.7237),
    "pokec-z": Statistics("Pokec-z", 67_796, 276, 1_235_916, 0.7116, None, 0.9506),
    "pokec-n": Statistics("Pokec-n", 66_569, 265, 1_034_094, 0.7323, None, 0.9530),
}
PAPER["pokec-n-graph"] = PAPER["pokec-n"]


def statistics(data: Data) -> Statistics:
    """Compute the figures of the paper's table; self-loops are left out."""
    edges = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    return Statistics(
        name=getattr(data, "name", "graph"),
        nodes=int(data.num_nodes or 0),
        features=int(data.num_features),
        edges=edges.size(1),
        label_homophily=homophily(edges, data.y, known_only=False),
        label_homophily_labelled=homophily(edges, data.y),
        sens_homophily=homophily(edges, data.sens),
        labelled=int((data.y >= 0).sum()),
        classes=sizes(data.y, getattr(data, "class_names", None)),
        groups=sizes(data.sens, getattr(data, "group_names", None)),
    )


def homophily(edge_index: Tensor, codes: Tensor, *, known_only: bool = True) -> float | None:
    """Share of edges between nodes of the same class or group; None without edges.

    Like PyG's edge homophily, but in double precision and for nodes of unknown code.

    Args:
        edge_index: edges (2×E) without self-loops.
        codes: class or group of each node, −1 where it is unknown.
        known_only: leave out edges with an unknown end; otherwise unknown counts as a class.

    Example:
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> codes = torch.tensor([0, 0, 1, -1])
        >>> homophily(edges, codes), round(homophily(edges, codes, known_only=False), 3)
        (0.5, 0.333)
    """
    counted = EdgeHomophily(codes.cpu().numpy(), known_only)
    counted.add(*edge_index.cpu().numpy())
    return counted.share


@dataclass
class EdgeHomophily:
    """The :func:`homophily` of edges that are given in parts."""

    codes: np.ndarray
    known_only: bool = True
    alike: int = 0  # edges between nodes of the same code
    edges: int = 0

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        """Count edges, by the nodes at their ends."""
        first, second = self.codes[source], self.codes[target]
        alike = first == second
        if self.known_only:
            is_known = (first >= 0) & (second >= 0)
            alike, edges = alike & is_known, int(is_known.sum())
        else:
            edges = len(alike)
        self.alike, self.edges = self.alike + int(alike.sum()), self.edges + edges

    @property
    def share(self) -> float | None:
        """Share of the edges so far that are between nodes of the same code."""
        return self.alike / self.edges if self.edges else None


def sizes(values: Tensor, names: Sequence[str] | None) -> dict[str, int]:
    """Count the nodes of each class or group."""
    counts = torch.bincount(values[values >= 0], minlength=len(names or ())).tolist()
    return dict(zip(names or map(str, range(len(counts))), counts, strict=True))


def of_dataset(name: str, root: PathLike | None = None, **options: Any) -> Statistics:
    """Compute the statistics of a benchmark graph with all its classes, as in the paper."""
    from fairmp.datasets.graphs import load

    return statistics(load(name, root, **{"multiclass": True, **options}))


def agreement(ours: Statistics, paper: Statistics) -> dict[str, bool]:
    """Compare our figures with each one the paper prints, to the printed digit."""
    return {
        name: round(getattr(ours, name) or 0.0, 4) == round(value, 4)
        for name, value in asdict(paper).items()
        if isinstance(value, int | float)
    }


COLUMNS = {
    "nodes": "nodes",
    "features": "features",
    "edges": "directed edges",
    "label_homophily": "label homophily %",
    "label_homophily_labelled": "among labelled %",
    "sens_homophily": "sensitive homophily %",
}
CAPTION = (
    "✓ equals the paper's figure to the printed digit, ✗ does not; no mark: not in the paper. "
    "Classes are those of the files. Label homophily counts unlabelled nodes as a class."
)


def rows(ours: Mapping[str, Statistics]) -> list[list[str]]:
    """One row of text per graph, by key, and one below it where the paper has its figures."""
    marks = {True: " ✓", False: " ✗", None: "  "}
    lines = []
    for key, figures in ours.items():
        paper = PAPER.get(key)
        agrees = agreement(figures, paper) if paper else {}
        cells = [as_text(getattr(figures, name)) + marks[agrees.get(name)] for name in COLUMNS]
        lines.append([figures.name, *cells])
        if paper:
            lines.append(["  paper", *(f"{as_text(getattr(paper, name))}  " for name in COLUMNS)])
    return lines


def as_text(value: Any) -> str:
    """A figure as text: shares in per cent, counts by class or group one after the other."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count:,}" for name, count in value.items())
    if isinstance(value, float):
        return f"{100 * value:.2f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
