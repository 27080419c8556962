r"""A trained network, what is fitted to it after training, and its predictions.

**Calibration**: one temperature and a bias per class. The correction moves to the *closest* fair
predictions, which means something only if the predictions are probabilities. The logits X of the
transform become :math:`aX + 1b^\top`, and since plain propagation is linear, what is propagated
becomes :math:`aZ + c b^\top` with Z and c the propagated X and 1. Fitting a and b to labels is a
multinomial logistic regression.

**Corrections**: demographic parity is held inside the propagation, for the nodes being predicted
or, per node, with the duals of nodes that were not trained on. Criteria on labels are corrected
after plain propagation, by a shift per group found on the labelled validation nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError, check_choice
from fairmp.graph import Adjacency, Graph
from fairmp.metrics import Evaluation, evaluate
from fairmp.metrics.calibration import calibrate
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import Network
from fairmp.postprocessing.predictions import Attribute
from fairmp.training import alignment
from fairmp.training.nodes import LocalReducer, Names, TrainingNodes, graph_of

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

Mode = Literal["batch", "per-node"]
Nodes: TypeAlias = Tensor | np.ndarray | Sequence[int] | Sequence[bool] | None


@dataclass(frozen=True)
class PlainPropagation:
    """Logits, and a column of ones, propagated without a correction."""

    logits: Tensor  # n×C
    ones: Tensor  # n×1

    def rows(self, nodes: Tensor) -> PlainPropagation:
        """The rows of some nodes."""
        return PlainPropagation(self.logits[nodes], self.ones[nodes])


def propagate_uncorrected(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> PlainPropagation:
    """Propagate logits and a column of ones without a correction."""
    columns = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        columns = PPR.forward(propagation, columns, adjacency)
    return PlainPropagation(columns[:, :-1], columns[:, -1:])


def fit_calibration(plain: PlainPropagation, y: Tensor) -> Tensor:
    """Return slope a and biases b (1+C) that calibrate :math:`az_i + c_i b` (m×C)."""
    logits, ones = (part.double().cpu().numpy() for part in (plain.logits, plain.ones))
    temperature, bias = calibrate(logits, y.cpu().numpy(), reach=ones)
    return torch.cat([torch.tensor([1 / temperature]), torch.from_numpy(bias)]).to(plain.logits)


def calibrate_network(network: Network, nodes: TrainingNodes, logits: Tensor) -> Tensor:
    """Calibrate a network on the validation labels; return its logits, calibrated."""
    data, adjacency = nodes.data, nodes.graph.adjacency(logits.dtype)
    plain = propagate_uncorrected(logits, network.propagation, adjacency).rows(data.val_mask)

    def fit(logits: Tensor, ones: Tensor, y: Tensor) -> Tensor:
        return fit_calibration(PlainPropagation(logits, ones), y)

    y = data.y[data.val_mask]
    calibration = nodes.reducer.on_rank_zero(fit, plain.logits, plain.ones, y)
    network.calibration = calibration.to(logits)
    return network.calibrated(logits)


@dataclass(frozen=True)
class Predicted:
    """Logits of some nodes, and the graph they belong to, as the model knows it."""

    data: Data
    nodes: Tensor  # a mask, or numbers in the order they were asked for
    logits: Tensor  # one row per node


@dataclass(frozen=True)
class FittedModel:
    """A trained network with its corrections: all it takes to predict."""

    network: Network
    names: Names
    on: On  # what predictions are made equal on
    device: torch.device
    group_duals: Tensor | None = None  # of a fair propagation, for mode "per-node"
    debiaser: Debiaser | None = None  # for a criterion on labels

    @property
    def uses_groups(self) -> bool:
        """Whether a prediction uses the group of its node."""
        return isinstance(self.network.propagation, FMP) or self.debiaser is not None

    def predict(self, data: Data, nodes: Nodes, mode: Mode) -> Predicted:
        """Predict some nodes of a graph, all by default."""
        data, mask = self.align(data, nodes)
        logits = self.logits(data, graph_of(data), mask, mode)
        if nodes is None:
            return Predicted(data, mask, logits)
        numbers = torch.as_tensor(nodes, device=mask.device)
        if numbers.dtype == torch.bool:
            return Predicted(data, mask, logits)
        rows = (mask.cumsum(0) - 1)[numbers.long()]
        return Predicted(data, numbers.long(), logits[rows])

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
        sens: Tensor | None = data.get("sens")
        if self.uses_groups and not isinstance(sens, Tensor):
            hint = "a fair prediction needs the group of each node (-1 if unknown)"
            raise InputError("data.sens", "missing", hint)
        with torch.no_grad():
            layer = self.network.propagation
            if not isinstance(layer, FMP):
                logits = self.network(data.x, graph, sens)[mask]
                if self.debiaser is None or sens is None:
                    return logits
                return debiased(self.debiaser, logits, sens[mask], self.names)
            assert sens is not None
            if mode == "per-node":
                return self._per_node(layer, data.x, graph, sens)[mask]
            return self._batch(layer, data, graph, mask, reducer or LocalReducer())

    def _per_node(self, layer: FMP, x: Tensor, graph: Graph, sens: Tensor) -> Tensor:
        """Apply the stored duals."""
        assert self.group_duals is not None
        logits = self.network.logits(x, graph)
        return layer.frozen(logits, graph.adjacency(logits.dtype), sens, self.group_duals)

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
        """Evaluate predictions, on the first process if there are several.

        If groups are probabilities, gaps are measured on nodes of certain group, and a note says
        so.
        """

        def measure(logits: Tensor, y: Tensor, sens: Tensor, weight: Tensor | None) -> Evaluation:
            certain = groups.certain_group(sens)
            evaluation = evaluate(
                logits,
                y,
                certain,
                bootstrap=bootstrap,
                class_names=self.names.classes,
                group_names=self.names.groups,
                sample_weight=weight,
            )
            if groups.is_soft(sens):
                unsure = int((certain < 0).sum())
                note = f"gaps leave out {unsure} of {len(sens)} nodes, whose group is not certain"
                evaluation = replace(evaluation, notes=(*evaluation.notes, note))
            return evaluation

        data, nodes = predicted.data, predicted.nodes
        weight = data.get("sample_weight")
        evaluation = (reducer or LocalReducer()).on_rank_zero(
            measure,
            predicted.logits,
            data.y[nodes],
            data.sens[nodes],
            None if weight is None else weight[nodes],
        )
        if not self.uses_groups:
            return evaluation
        return replace(evaluation, mode=mode if self.debiaser is None else "per-node")


@dataclass(frozen=True)
class Correction:
    """Logits of the fitted graph, and what per-node prediction stores."""

    uncorrected: Tensor  # all nodes; before the propagation, if that corrects
    parts: dict[str, Tensor]  # corrected, of the nodes of each part, by the name of its mask
    group_duals: Tensor | None = None
    debiaser: Debiaser | None = None


def hold_parity(layer: FMP, nodes: TrainingNodes, logits: Tensor, on: On) -> Correction:
    """Propagate fairly for each part of the split, and find the duals of per-node prediction."""
    data, adjacency = nodes.data, nodes.graph.adjacency(logits.dtype)
    decisions = layer.closes_decisions(on)
    solutions = {
        mask: layer.solve(logits, adjacency, nodes.group_operator(mask), decisions=decisions)
        for mask in MASKS
    }
    served = solutions["val_mask"]
    # Parity needs no labels: unlabelled nodes make the served correction more precise.
    held_out = groups.known_mask(data.sens) & ~(data.train_mask | data.test_mask)
    unlabelled = held_out & ~data.val_mask
    if nodes.reducer.total(unlabelled.sum().double().view(1)) > 0:
        operator = nodes.group_operator_of(held_out)
        served = layer.solve(logits, adjacency, operator, decisions=decisions)
    parts = {}
    for mask, solution in solutions.items():
        rows = solution.f[data[mask]].to(data.x.dtype)
        parts[mask] = close_weighted_gap(rows, data, data[mask], layer, on)
    return Correction(logits, parts, group_duals=served.group_duals)


def hold_criterion(
    debiaser: Debiaser | None, nodes: TrainingNodes, propagated: Tensor
) -> Correction:
    """Correct propagated logits for a criterion on labels, if there is one."""
    data, logits = nodes.data, propagated
    if debiaser is not None:
        logits = debiased(debiaser, propagated, data.sens, nodes.names)
    parts = {mask: logits[data[mask]] for mask in MASKS}
    return Correction(propagated, parts, debiaser=debiaser)


def debiased(debiaser: Debiaser, logits: Tensor, sens: Tensor, names: Names) -> Tensor:
    """Correct propagated logits node by node."""
    attributes = group_attributes(sens, names.groups)
    fair: Tensor = debiaser.transform(logits.cpu(), sensitive_features=attributes)
    return fair.to(logits)


def fit_debiaser(
    nodes: TrainingNodes, logits: Tensor, criterion: str, layer: FMP, on: On
) -> Debiaser:
    """Find the correction of propagated logits for a criterion, on the validation labels."""
    data, names = nodes.data, nodes.names

    def fit(logits: Tensor, sens: Tensor, y: Tensor, weight: Tensor | None) -> Debiaser:
        from fairmp.postprocessing.debiaser import Debiaser

        correction = Debiaser(
            criterion,
            layer.target,
            kind="logits",
            on=on,
            temperature=1.0 if on == "decisions" else layer.temperature,
            class_names=names.classes,
        )
        return correction.fit(
            logits.cpu(),
            y.cpu(),
            sensitive_features=group_attributes(sens, names.groups),
            sample_weight=None if weight is None else weight.cpu(),
        )

    mask, weight = data.val_mask, nodes.sample_weight
    return nodes.reducer.on_rank_zero(
        fit, logits[mask], data.sens[mask], data.y[mask], None if weight is None else weight[mask]
    )


def close_weighted_gap(logits: Tensor, data: Data, mask: Tensor, layer: FMP, on: On) -> Tensor:
    """Close the gap that sample weights measure among some nodes, if there are weights."""
    if "sample_weight" not in data:
        return logits
    from fairmp.postprocessing.solver import debias

    fair: Tensor = debias(
        logits.cpu(),
        data.sens[mask].cpu(),
        kind="logits",
        target=layer.target,
        on=on,
        temperature=1.0 if on == "decisions" else layer.temperature,
        sample_weight=data.sample_weight[mask].cpu(),
    )
    return fair.to(logits)


def group_attributes(sens: Tensor, names: Sequence[str]) -> list[Attribute]:
    """Groups as a Debiaser takes them."""
    return [Attribute("group", tuple(names), sens.cpu())]


def floating_dtype(network: nn.Module) -> torch.dtype:
    """The floating-point type of a network's tensors."""
    # The counter of a batch norm is a whole number, and tensors come in any order.
    return next(t.dtype for t in network.state_dict().values() if t.is_floating_point())
