"""Networks: a transform of the node features, and a propagation along the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator
from fairmp.nn.fmp import FMP, PPR, Temperature


class Graph:
    """A graph as networks read it: its edges, and normalised forms of them, computed once."""

    def __init__(
        self, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> None:
        self.edge_index, self.num_nodes, self.edge_weight = edge_index, num_nodes, edge_weight
        self._adjacency: dict[torch.dtype, Adjacency] = {}
        self._with_self_loops: Tensor | None = None

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """The normalised adjacency matrix Ã."""
        if dtype not in self._adjacency:
            self._adjacency[dtype] = normalise(
                self.edge_index, self.num_nodes, self.edge_weight, dtype
            )
        return self._adjacency[dtype]

    def with_self_loops(self) -> Tensor:
        """The edges with one self-loop per node, sorted by target (2×E')."""
        if self._with_self_loops is None:
            from torch_geometric.utils import add_self_loops, remove_self_loops, sort_edge_index

            edges, _ = remove_self_loops(self.edge_index)
            edges, _ = add_self_loops(edges, num_nodes=self.num_nodes)
            edges = sort_edge_index(edges, num_nodes=self.num_nodes, sort_by_row=False)
            self._with_self_loops = edges
        return self._with_self_loops


class GraphTransform(nn.Module):
    """A transform that is called with features and a :class:`Graph`."""


class Network(nn.Module):
    """A transform followed by a propagation.

    Args:
        transform: features to logits; a PyG ``MLP``, a :class:`GraphTransform`, or another module
            called as PyG's models are, with features, edges and their weights.
        propagation: :class:`~fairmp.nn.fmp.FMP`, :class:`~fairmp.nn.fmp.PPR`, any module
            called in the same way, or ``None``.

    Example:
        >>> class Features(GraphTransform):
        ...     def forward(self, x, graph):
        ...         return x
        >>> graph = Graph(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> Network(Features(), FMP())(torch.eye(2), graph, sens=torch.tensor([0, 1])).shape
        torch.Size([2, 2])
    """

    def __init__(self, transform: nn.Module, propagation: nn.Module | None = None) -> None:
        super().__init__()
        self.transform = transform
        self.propagation = propagation

    def logits(self, x: Tensor, graph: Graph) -> Tensor:
        """Logits of the transform, before any propagation (n×C)."""
        if isinstance(self.transform, GraphTransform):
            return self.transform(x, graph)
        if _is_pyg_mlp(self.transform):
            return self.transform(x)
        return self.transform(x, graph.edge_index, graph.edge_weight)

    def forward(
        self,
        x: Tensor,
        graph: Graph,
        sens: Tensor | GroupOperator | None = None,
        population: Tensor | None = None,
        *,
        temperature: Temperature | None = None,
    ) -> Tensor:
        """Return logits (n×C); ``temperature`` is for a propagation that has one."""
        logits = self.logits(x, graph)
        if self.propagation is None:
            return logits
        if not isinstance(self.propagation, PPR):
            weight = graph.edge_weight
            extra: dict[str, Any] = {} if weight is None else {"edge_weight": weight}
            return self.propagation(logits, graph.edge_index, sens, population, **extra)
        extra = {}
        if isinstance(self.propagation, FMP):
            extra = self.propagation.at_prediction(temperature)
        edges = graph.adjacency(logits.dtype)
        return self.propagation(logits, edges, sens, population, **extra)


def _is_pyg_mlp(module: nn.Module) -> bool:
    # By name: PyG is slow to import, and without it there is no MLP of PyG's.
    names = ((kind.__module__, kind.__name__) for kind in type(module).__mro__)
    return ("torch_geometric.nn.models.mlp", "MLP") in names
