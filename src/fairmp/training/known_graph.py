r"""The training graph as seen by people who join it later.

New people receive messages, and known people stay as they were: their degrees, the columns of their
neighbourhoods and the states of the K propagation steps are those of the training graph, kept with
the model. In step k a new person i with neighbours j has

.. math::
    f_i^{k+1} = γ x_i + (1-γ) \sum_j \tilde{A}_{ij} f_j^k ,

where :math:`f_j^k` of a known person is a stored number. So a person costs as much as they have
edges, however large the graph is, and a prediction does not depend on earlier ones. People who are
given together are neighbours where they have an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fairmp.datasets.new_nodes import NewEdges
from fairmp.graph import Graph, from_scipy
from fairmp.nn.fmp import PPR
from fairmp.nn.models import Network, reads_graph
from fairmp.training.blend import Blend
from fairmp.training.compact import compact
from fairmp.training.estimators import Estimator
from fairmp.training.new_inputs import KnownNeighbourhoods, NewInputs, NewRows


@dataclass(frozen=True)
class KnownNodes:
    """The training graph as new nodes see it."""

    x: Tensor
    graph: Graph
    sens: Tensor

    @classmethod
    def none(cls, num_features: int, dtype: torch.dtype) -> KnownNodes:
        """No graph: new nodes have no known neighbours."""
        edge_index = torch.empty(2, 0, dtype=torch.long)
        return cls(torch.empty(0, num_features, dtype=dtype), Graph(edge_index, 0), edge_index[0])

    def joined(self, new: NewRows) -> tuple[Tensor, Graph]:
        """Features and edges of known nodes and, after them, new ones, which only receive."""
        n, edges = self.graph.num_nodes, new.edges
        from_known, among = (sp.coo_array(part) for part in (edges.from_known, edges.among))
        source = np.concatenate([edges.known[from_known.coords[1]], n + among.coords[1]])
        target = np.concatenate([n + from_known.coords[0], n + among.coords[0]])
        edge_index = torch.from_numpy(np.stack([source, target]).astype(np.int64))
        weight = self.graph.edge_weight
        if weight is not None:
            added = torch.from_numpy(np.concatenate([from_known.data, among.data]))
            weight = torch.cat([weight, added.to(weight)])
        edge_index = torch.cat([self.graph.edge_index, edge_index.to(self.graph.edge_index)], 1)
        graph = Graph(edge_index, n + len(new.x), weight)
        graph.origin = torch.arange(n)
        return torch.cat([self.x, new.x.to(self.x)]), graph


class KnownNetwork:
    """A network, and the states of the known nodes before each of its steps.

    Args:
        network: of the labels, or of the groups.
        known: the training graph.
        neighbourhoods: the columns of its nodes.
        logits: of its nodes before propagation, if they are at hand (n×C).
    """

    def __init__(
        self,
        network: Network,
        known: KnownNodes,
        neighbourhoods: KnownNeighbourhoods,
        logits: Tensor | None = None,
    ) -> None:
        self.network, self.known, self._logits = network, known, logits
        transform = network.transform
        self.reads_graph = (
            transform.reads_graph if isinstance(transform, Blend) else reads_graph(transform)
        )
        if isinstance(transform, Blend):
            self._inputs = NewInputs(transform.inputs, neighbourhoods)
            self._members = [
                compact(model) if isinstance(model, Estimator) else model
                for model in transform.members
            ]
        self._states: dict[bool, list[Tensor]] = {}  # with a correction, and without

    def logits(self, new: NewRows) -> Tensor:
        """Logits of new nodes before propagation (m×C)."""
        transform = self.network.transform
        if self.reads_graph:
            x, graph = self.known.joined(new)
            return self.network.logits(x, graph)[self.known.graph.num_nodes :]
        if not isinstance(transform, Blend):
            return self.network.calibrated(transform(new.x))
        logits = transform.average(
            lambda view, fold: self._inputs.rows(view, fold, new),
            new.x,
            self.known.graph,
            self._members,
        )
        return self.network.calibrated(logits)

    def propagate(
        self,
        new: NewRows,
        logits: Tensor,
        sens: Tensor | None = None,
        duals: Tensor | None = None,
    ) -> Tensor:
        """Propagate logits to new nodes; with duals, corrected by their groups."""
        layer, known = self.network.propagation, torch.from_numpy(new.edges.known)
        if layer is None:
            return logits
        if not isinstance(layer, PPR):
            return self._propagate_joined(new, logits, sens)
        # A correction after the last step is no part of what neighbours receive.
        corrects = duals is not None and bool((duals[:-1] != 0).any())
        states = [logits.new_empty(0, logits.size(1))] * layer.K
        if len(known):
            states = [state[known] for state in self._known_states(layer, duals, corrects)]
        among, from_known = self._normalised(new.edges, logits.dtype)
        return layer.receive(logits, among, from_known, states, sens, duals)

    def prepare(self, duals: Tensor | None = None) -> None:
        """Compute what new nodes receive, so that the first of them does not wait for it."""
        layer = self.network.propagation
        if not len(self.known.x):
            return
        # Somebody like the first known person, with one edge to them.
        first = torch.tensor([0])
        edges = NewEdges.of(1, receiver=np.array([0]), sender=np.array([1]), weight=np.ones(1))
        new, sens = NewRows(self.known.x.index_select(0, first), edges), torch.tensor([-1])
        if not self.reads_graph:
            self.logits(new)
        if isinstance(layer, PPR):
            self.propagate(new, self.known_logits()[:1], sens, duals)

    def known_logits(self) -> Tensor:
        """Logits of the known nodes before propagation (n×C)."""
        if self._logits is None:
            self._logits = self.network.logits(self.known.x, self.known.graph)
        return self._logits

    def _known_states(self, layer: PPR, duals: Tensor | None, corrects: bool) -> list[Tensor]:
        """States of the known nodes before each step."""
        if corrects not in self._states:
            x, known = self.known_logits(), self.known
            adjacency = known.graph.adjacency(x.dtype)
            states = layer.states(x, adjacency, known.sens, duals if corrects else None)
            self._states[corrects] = states[:-1]
        return self._states[corrects]

    def _normalised(self, edges: NewEdges, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows of Ã of new nodes: among each other, and for their known neighbours."""
        scale, known_scale = 1 / np.sqrt(1 + edges.degree), np.empty(0)
        if len(edges.known):
            adjacency = self.known.graph.adjacency(dtype)
            known_scale = adjacency.scale[torch.from_numpy(edges.known)].double().numpy()
        if isinstance(edges.among, np.ndarray):
            among = scale[:, None] * (edges.among + np.eye(len(scale))) * scale
            from_known = scale[:, None] * edges.from_known * known_scale
            return torch.from_numpy(among).to(dtype), torch.from_numpy(from_known).to(dtype)
        rows, loops = sp.diags_array(scale), sp.eye_array(len(scale), format="csr")
        among = rows @ (edges.among + loops) @ rows
        from_known = rows @ edges.from_known @ sp.diags_array(known_scale)
        among, from_known = (from_scipy(sp.csr_array(part)) for part in (among, from_known))
        return among.to(dtype), from_known.to(dtype)

    def _propagate_joined(self, new: NewRows, logits: Tensor, sens: Tensor | None) -> Tensor:
        """Call a propagation of the user's on known and new nodes together."""
        _, graph = self.known.joined(new)
        together = torch.cat([self.known_logits(), logits])
        all_sens = None if sens is None else torch.cat([self.known.sens, sens])
        return self.network.propagate(together, graph, all_sens)[self.known.graph.num_nodes :]
