"""A trained network with its corrections, and its predictions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.errors import InputError, check_choice
from fairmp.graph import Graph, TensorCache
from fairmp.metrics import Evaluation, evaluate, graph_clusters
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP
from fairmp.nn.models import Network
from fairmp.training import alignment
from fairmp.training.correction import close_weighted_gap, debiased
from fairmp.training.nodes import LocalReducer, Names, Predicted, graph_of

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

Mode = Literal["batch", "per-node"]
Nodes: TypeAlias = Tensor | np.ndarray | Sequence[int] | Sequence[bool] | None


@dataclass(frozen=True)
class FittedModel:
    """A trained network with its corrections: all it takes to predict."""

    network: Network
    names: Names
    on: On  # what predictions are made equal on
    device: torch.device
    group_duals: Tensor | None = None  # of a fair propagation, for mode "per-node"
    debiaser: Debiaser | None = None  # of a correction after plain propagation
    group_network: Network | None = None  # estimates groups, if predictions may not read them

    @property
    def uses_groups(self) -> bool:
        """Whether a prediction uses the group of its node."""
        corrects_by_group = self.debiaser is not None and self.group_network is None
        return isinstance(self.network.propagation, FMP) or corrects_by_group

    def on_cpu(self) -> FittedModel:
        """A copy on the CPU; the model itself if it is there."""
        if self.device.type == "cpu":
            return self
        duals, group_network = self.group_duals, self.group_network
        return replace(
            self,
            network=copy.deepcopy(self.network).cpu(),
            device=torch.device("cpu"),
            group_duals=None if duals is None else duals.cpu(),
            group_network=None if group_network is None else copy.deepcopy(group_network).cpu(),
        )

    def predict(self, data: Data, nodes: Nodes, mode: Mode) -> Predicted:
        """Predict some nodes of a graph, all by default."""
        data, mask = self.align(data, nodes)
        logits = self.logits(data, graph_of(data), mask, mode)
        numbers = asked_numbers(nodes, mask)
        if numbers is None:
            return Predicted(data, mask, logits)
        return Predicted(data, numbers, logits[(mask.cumsum(0) - 1)[numbers]])

    def estimate_groups(self, data: Data, nodes: Nodes) -> Tensor:
        """Logits of the groups of some nodes, in the order they are asked for."""
        assert self.group_network is not None
        data, mask = self.align(data, nodes)
        with torch.no_grad():
            logits = self.group_network(data.x, graph_of(data), None)[mask]
        numbers = asked_numbers(nodes, mask)
        return logits if numbers is None else logits[(mask.cumsum(0) - 1)[numbers]]

    def align(self, data: Data, nodes: Nodes) -> tuple[Data, Tensor]:
        """Return a graph as the network knows it, and the mask of nodes, on the device."""
        dtype = floating_dtype(self.network)
        data = alignment.aligned(data, self.names, dtype)
        mask = alignment.node_mask(nodes, data.x.size(0)).to(self.device)
        return data if data.x.device == self.device else data.to(str(self.device)), mask

    def logits(
        self,
        data: Data,
        graph: Graph,
        mask: Tensor,
        mode: Mode,
        reducer: LocalReducer | None = None,
    ) -> Tensor:
        """Logits of the nodes in a mask, corrected; the graph must be aligned.

        With several processes each has its nodes, and all call this together.
        """
        check_choice("mode", mode, get_args(Mode))
        if self.uses_groups and not isinstance(data.get("sens"), Tensor):
            hint = "a fair prediction needs the group of each node (-1 if unknown)"
            raise InputError("data.sens", "missing", hint)
        layer = self.network.propagation
        with torch.no_grad():
            if not isinstance(layer, FMP):
                return self._after_propagation(data, graph, mask)
            if mode == "per-node":
                return self._per_node(layer, data, graph)[mask]
            return self._batch(layer, data, graph, mask, reducer or LocalReducer())

    def _after_propagation(self, data: Data, graph: Graph, mask: Tensor) -> Tensor:
        """Propagate plainly, and apply the correction that follows, if there is one."""
        logits = self.network(data.x, graph, None)[mask]
        if self.debiaser is None:
            return logits
        if self.group_network is not None:
            group_logits = self.group_network(data.x, graph, None)[mask]
            return debiased(self.debiaser, logits, None, self.names, group_logits)
        return debiased(self.debiaser, logits, data.sens[mask], self.names)

    def _per_node(self, layer: FMP, data: Data, graph: Graph) -> Tensor:
        """Apply the stored duals."""
        if self.group_duals is None:
            value = "'per-node' needs a solver of fairmp's"
            raise InputError("mode", value, "predict with {mode='batch'}")
        logits = self.network.logits(data.x, graph)
        return layer.frozen(logits, graph.adjacency(logits.dtype), data.sens, self.group_duals)

    def _batch(
        self, layer: FMP, data: Data, graph: Graph, mask: Tensor, reducer: LocalReducer
    ) -> Tensor:
        """Close the gap of the nodes in the mask."""
        sens, names = data.sens, self.names.groups
        alignment.check_population(sens, mask, names, reducer.total)
        operator = reducer.group_operator(sens, mask & groups.known_mask(sens), len(names))
        decisions = layer.closes_decisions(self.on)
        logits = self.network(data.x, graph, operator, decisions=decisions)[mask]
        return close_weighted_gap(logits, data, mask, layer, self.on)

    def measure(
        self,
        predicted: Predicted,
        mode: Mode,
        bootstrap: int,
        reducer: LocalReducer | None = None,
    ) -> Evaluation:
        """Evaluate corrected predictions, and say how they were made."""
        evaluation = self.evaluate(predicted, bootstrap, reducer)
        if self.debiaser is not None:
            return replace(evaluation, mode="per-node")
        if not self.uses_groups:
            return evaluation
        evaluation = replace(evaluation, mode=mode)
        layer = self.network.propagation
        is_closed = mode == "batch" and isinstance(layer, FMP) and layer.closes_decisions(self.on)
        return _without_closed_gap(evaluation) if is_closed else evaluation

    def evaluate(
        self, predicted: Predicted, bootstrap: int, reducer: LocalReducer | None = None
    ) -> Evaluation:
        """Evaluate predictions, on the first process if there are several.

        If groups are probabilities, gaps are measured on nodes of certain group; over processes,
        each of which has a part of the edges, intervals take nodes for independent. Notes say so.
        """
        data, nodes = predicted.data, predicted.nodes
        reducer = reducer or LocalReducer()
        # Nodes of a graph resemble their neighbours.
        clusters, has_whole_graph = None, type(reducer) is LocalReducer
        if bootstrap and has_whole_graph and data.edge_index.numel():
            clusters = _clusters_of(data)[nodes.cpu().numpy()]
        weight = data.get("sample_weight")
        evaluation = reducer.on_rank_zero(
            partial(self._evaluate, bootstrap=bootstrap, clusters=clusters),
            predicted.logits,
            data.y[nodes],
            data.sens[nodes],
            None if weight is None else weight[nodes],
        )
        if bootstrap and not has_whole_graph:
            evaluation = replace(evaluation, notes=(*evaluation.notes, INDEPENDENT_NOTE))
        return evaluation

    def _evaluate(
        self,
        logits: Tensor,
        y: Tensor,
        sens: Tensor,
        weight: Tensor | None,
        *,
        bootstrap: int,
        clusters: np.ndarray | None,
    ) -> Evaluation:
        """Evaluate logits of some nodes; a note says how many are of uncertain group."""
        certain = groups.certain_group(sens)
        evaluation = evaluate(
            y,
            logits,
            sensitive_features=certain,
            bootstrap=bootstrap,
            class_names=self.names.classes,
            group_names=self.names.groups,
            sample_weight=weight,
            clusters=clusters,
        )
        if not groups.is_soft(sens):
            return evaluation
        unsure = int((certain < 0).sum())
        note = f"gaps leave out {unsure} of {len(sens)} nodes, whose group is not certain"
        return replace(evaluation, notes=(*evaluation.notes, note))


CLOSED_GAPS = ("dp", "impact_ratio")  # of decisions, in batch prediction
CLOSED_NOTE = (
    "the gap of decisions was closed for this batch as a whole, so it has no interval; per-node "
    "prediction shows the gap to expect of others"
)
INDEPENDENT_NOTE = (
    "intervals take nodes for independent, since no rank has the whole graph; if connected nodes "
    "are decided alike, they are too narrow"
)
_clusters = TensorCache()


def _clusters_of(data: Data) -> np.ndarray:
    edges, n = data.edge_index, data.num_nodes
    return _clusters.get((edges,), n, lambda: graph_clusters(edges.cpu(), n))


def _without_closed_gap(evaluation: Evaluation) -> Evaluation:
    """Leave out the intervals of what batch prediction closed: a fact about these nodes."""
    kept = {key: ends for key, ends in evaluation.intervals.items() if key not in CLOSED_GAPS}
    if len(kept) == len(evaluation.intervals):
        return evaluation
    return replace(evaluation, intervals=kept, notes=(*evaluation.notes, CLOSED_NOTE))


def asked_numbers(nodes: Nodes, mask: Tensor) -> Tensor | None:
    """The numbers of nodes that were asked for in an order of their own; else ``None``."""
    numbers = None if nodes is None else torch.as_tensor(nodes, device=mask.device)
    return None if numbers is None or numbers.dtype == torch.bool else numbers.long()


def floating_dtype(network: nn.Module) -> torch.dtype:
    """The floating-point type of a network's tensors."""
    # The counter of a batch norm is a whole number, and tensors come in any order.
    tensors = chain(network.parameters(), network.buffers())
    return next(t.dtype for t in tensors if t.is_floating_point())
