"""Who is in a graph, and who is tied to whom: groups, labels, degrees, homophily."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fairmp.datasets.checks import check
from fairmp.errors import InputError
from fairmp.groups import group_operator


@dataclass(frozen=True)
class Group:
    """A sensitive group in the graph.

    Attributes:
        name: the group.
        nodes: its nodes.
        share: its share of the nodes of known group; None for the nodes of unknown group.
        labelled: its nodes with a label.
        base_rates: the share of each class among them; None where there are none.
        mean_degree: neighbours a node, on average.
        median_degree: neighbours of the node in the middle.
        isolated: nodes without a neighbour.
        inside: the share of its nodes' neighbours of known group that are in the group too; None
            where there are none.
    """

    name: str
    nodes: int
    share: float | None
    labelled: int
    base_rates: tuple[float, ...] | None
    mean_degree: float
    median_degree: float
    isolated: int
    inside: float | None


@dataclass(frozen=True)
class Homophily:
    """How often an edge stays inside a group.

    Attributes:
        raw: ε, the share of edges that do, among those whose two ends have a known group.
        chance: the share that would if the same degrees were joined at random.
        adjusted: (ε − chance)/(1 − chance); 0 by chance, 1 where no edge crosses.

    All are None where they have no meaning: no edge, or all of them in one group.
    """

    raw: float | None
    chance: float | None
    adjusted: float | None


def cleaned(data: Data) -> tuple[Data, list[str]]:
    """Bring a graph to the shape the audit reads, and say what was done to it.

    Raises:
        InputError: If features, edges or groups are missing or wrong.

    Example:
        >>> data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 2], [1, 0, 2]]),
        ...             sens=torch.tensor([0, 1, 1]))
        >>> clean, notes = cleaned(data)
        >>> clean.edge_index.tolist(), clean.y.tolist(), notes
        ([[0, 1], [1, 0]], [-1, -1, -1], ['self-loops were left out'])
    """
    check(data, labels=False)
    if not isinstance(data.get("sens"), Tensor):
        raise InputError(
            "data.sens", "missing", "give the group of each node, -1 where it is unknown"
        )
    sens = data.sens.cpu().long()
    group_operator(sens)
    n = data.x.size(0)
    y = data.y.cpu().long() if isinstance(data.get("y"), Tensor) else torch.full((n,), -1)
    edges, notes = data.edge_index.cpu(), []
    if edges.dim() != 2 or edges.size(0) != 2 or (edges.numel() and int(edges.max()) >= n):
        raise InputError(
            "data.edge_index",
            f"shape {tuple(edges.shape)} with nodes up to "
            f"{int(edges.max()) if edges.numel() else 0} does not fit {n} nodes",
            "give a (2, edges) tensor of node numbers",
        )
    if bool((edges[0] == edges[1]).any()):
        edges = remove_self_loops(edges)[0]
        notes.append("self-loops were left out")
    both = to_undirected(edges, num_nodes=n)
    if not torch.equal(both, edges):
        notes.append("every edge was taken once, in both directions")
    clean = Data(x=data.x.detach().cpu().float(), edge_index=both, y=y, sens=sens)
    clean.name = str(getattr(data, "name", "graph"))
    clean.group_names = _names(data, "group_names", sens)
    clean.class_names = _names(data, "class_names", y)
    return clean, notes


def _names(data: Data, key: str, codes: Tensor) -> list[str]:
    count = max(int(codes.max()) + 1, 0)
    given = data.get(key)
    if isinstance(given, list | tuple) and len(given) >= count:
        return [str(name) for name in given]
    return [str(k) for k in range(count)]


def homophily(edge_index: Tensor, sens: Tensor) -> Homophily:
    r"""Measure the sensitive homophily, raw and adjusted for chance.

    Among the E edges whose two ends have a known group, let :math:`D_g` be the sum of the degrees
    in group g. Joined at random, the same degrees would give

    .. math::
        \bar\epsilon = \sum_g \frac{D_g^2}{(2E)^2}, \qquad
        \epsilon_{adj} = \frac{\epsilon - \bar\epsilon}{1 - \bar\epsilon} .

    Raw homophily misleads where a group is large or well connected: of a group with nine tenths
    of all degrees, 82 % of the edges stay inside some group by chance.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> homophily(path, torch.tensor([0, 0, 1, 1]))
        Homophily(raw=0.666..., chance=0.5, adjusted=0.333...)
    """
    source, target = sens[edge_index]
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    if not source.numel():
        return Homophily(None, None, None)
    raw = float((source == target).double().mean())
    degrees = torch.bincount(source).double()
    chance = float(((degrees / degrees.sum()) ** 2).sum())
    return Homophily(raw, chance, (raw - chance) / (1 - chance) if chance < 1 else None)


def groups(data: Data) -> tuple[Group, ...]:
    """Describe each group, and last the nodes of unknown group where there are any.

    Example:
        >>> from fairmp.datasets import social_network
        >>> first, second = groups(social_network(n=500, average_degree=10))
        >>> first.nodes + second.nodes, first.inside > 0.9
        (500, True)
    """
    sens, y = data.sens.numpy(), data.y.numpy()
    degree = np.bincount(data.edge_index[0].numpy(), minlength=len(sens))
    source, target = sens[data.edge_index.numpy()]
    known = int((sens >= 0).sum())
    names = [*data.group_names, "unknown"]
    found = []
    for g in [*range(int(sens.max()) + 1), *([-1] if known < len(sens) else [])]:
        members = sens == g
        labels = y[members & (y >= 0)]
        towards = target[(source == g) & (target >= 0)]
        counts = np.bincount(labels, minlength=len(data.class_names))
        found.append(
            Group(
                name=names[g],
                nodes=int(members.sum()),
                share=int(members.sum()) / known if g >= 0 else None,
                labelled=len(labels),
                base_rates=tuple((counts / len(labels)).tolist()) if len(labels) else None,
                mean_degree=float(degree[members].mean()),
                median_degree=float(np.median(degree[members])),
                isolated=int((degree[members] == 0).sum()),
                inside=float((towards == g).mean()) if g >= 0 and len(towards) else None,
            )
        )
    return tuple(found)
