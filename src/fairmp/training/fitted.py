r"""A trained network, what is fitted to it after training, and its predictions.

**Calibration**: one temperature and a bias per class. The correction moves to the *closest* fair
predictions, which means something only if the predictions are probabilities. The logits X of the
transform become :math:`aX + 1b^\top`, and since plain propagation is linear, what is propagated
becomes :math:`aZ + c b^\top` with Z and c the propagated X and 1. Fitting a and b to labels is a
multinomial logistic regression.

**Corrections**: demographic parity is held inside the propagation, for the nodes being predicted
or, per node, with the duals of nodes that were not trained on. Criteria on labels, promises and
blind rules are corrections after plain propagation, found on held-out nodes (``Debiaser``). A blind
rule reads the logits of the groups, which a second network estimates, in place of the group.
"""

from __future__ import annotations

import copy
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
from fairmp.graph import Adjacency, Graph, TensorCache
from fairmp.metrics import Evaluation, evaluate, graph_clusters
from fairmp.metrics.calibration import calibrate
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import Network
from fairmp.nn.solvers import Solution
from fairmp.postprocessing.predictions import Attribute
from fairmp.training import alignment
from fairmp.training.nodes import LocalReducer, Names, TrainingNodes, graph_of
from fairmp.training.served import correction_helps

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

PARITY = "demographic_parity"  # the criterion that is held inside the propagation
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

    def calibrated(self, calibration: Tensor) -> Tensor:
        """What calibrated logits would become, for a slope and biases (1+C)."""
        return calibration[0] * self.logits + self.ones * calibration[1:]


@dataclass(frozen=True)
class HeldOut:
    """Labelled nodes, and what models that were not fitted on them predict, uncorrected.

    These are the validation nodes or, out of fold, all labelled nodes outside the test set.
    """

    nodes: Tensor  # a mask (n)
    plain: PlainPropagation  # one row per node in the mask
    cross_fitted: bool = False

    def calibrated(self, calibration: Tensor | None) -> Tensor:
        """The logits, calibrated if there is a calibration."""
        return self.plain.logits if calibration is None else self.plain.calibrated(calibration)


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


def validation_nodes(network: Network, nodes: TrainingNodes, logits: Tensor) -> HeldOut:
    """What a network that was fitted on the training nodes predicts of the validation nodes."""
    plain = propagate_uncorrected(logits, network.propagation, nodes.graph.adjacency(logits.dtype))
    return HeldOut(nodes.data.val_mask, plain.rows(nodes.data.val_mask))


def calibrate_network(network: Network, nodes: TrainingNodes, held_out: HeldOut) -> None:
    """Calibrate a network on the labels of held-out nodes."""

    def fit(logits: Tensor, ones: Tensor, y: Tensor) -> Tensor:
        return fit_calibration(PlainPropagation(logits, ones), y)

    plain, y = held_out.plain, nodes.data.y[held_out.nodes]
    calibration = nodes.reducer.on_rank_zero(fit, plain.logits, plain.ones, y)
    network.calibration = calibration.to(plain.logits)


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
        sens: Tensor | None = data.get("sens")
        if self.uses_groups and not isinstance(sens, Tensor):
            hint = "a fair prediction needs the group of each node (-1 if unknown)"
            raise InputError("data.sens", "missing", hint)
        with torch.no_grad():
            layer = self.network.propagation
            if not isinstance(layer, FMP):
                logits = self.network(data.x, graph, None)[mask]
                if self.debiaser is None:
                    return logits
                if self.group_network is not None:
                    group_logits = self.group_network(data.x, graph, None)[mask]
                    return blindly_debiased(self.debiaser, logits, group_logits)
                assert sens is not None
                return debiased(self.debiaser, logits, sens[mask], self.names)
            assert sens is not None
            if mode == "per-node":
                return self._per_node(layer, data.x, graph, sens)[mask]
            return self._batch(layer, data, graph, mask, reducer or LocalReducer())

    def _per_node(self, layer: FMP, x: Tensor, graph: Graph, sens: Tensor) -> Tensor:
        """Apply the stored duals."""
        if self.group_duals is None:
            value = "'per-node' needs a solver of fairmp's"
            raise InputError("mode", value, "predict with {mode='batch'}")
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

        If groups are probabilities, gaps are measured on nodes of certain group; over processes,
        each of which has a part of the edges, intervals take nodes for independent. Notes say so.
        """
        data, nodes = predicted.data, predicted.nodes
        reducer = reducer or LocalReducer()
        # Nodes of a graph resemble their neighbours.
        clusters, has_whole_graph = None, type(reducer) is LocalReducer
        if bootstrap and has_whole_graph and data.edge_index.numel():
            clusters = _clusters_of(data)[nodes.cpu().numpy()]

        def measure(logits: Tensor, y: Tensor, sens: Tensor, weight: Tensor | None) -> Evaluation:
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
            if groups.is_soft(sens):
                unsure = int((certain < 0).sum())
                note = f"gaps leave out {unsure} of {len(sens)} nodes, whose group is not certain"
                evaluation = replace(evaluation, notes=(*evaluation.notes, note))
            if bootstrap and not has_whole_graph:
                evaluation = replace(evaluation, notes=(*evaluation.notes, INDEPENDENT_NOTE))
            return evaluation

        weight = data.get("sample_weight")
        evaluation = reducer.on_rank_zero(
            measure,
            predicted.logits,
            data.y[nodes],
            data.sens[nodes],
            None if weight is None else weight[nodes],
        )
        if self.debiaser is not None:
            return replace(evaluation, mode="per-node")
        if not self.uses_groups:
            return evaluation
        evaluation = replace(evaluation, mode=mode)
        layer = self.network.propagation
        is_closed = mode == "batch" and isinstance(layer, FMP) and layer.closes_decisions(self.on)
        return _without_closed_gap(evaluation) if is_closed else evaluation


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


@dataclass(frozen=True)
class Correction:
    """Logits of the fitted graph, and what per-node prediction stores."""

    uncorrected: Tensor  # all nodes; before the propagation, if that corrects
    parts: dict[str, Predicted]  # corrected, by the name of a mask; held-out nodes for validation
    group_duals: Tensor | None = None
    debiaser: Debiaser | None = None


def hold_parity(
    layer: FMP, nodes: TrainingNodes, logits: Tensor, on: On, out_of_fold: Predicted | None = None
) -> Correction:
    """Propagate fairly for each part of the split, and find the duals of per-node prediction.

    Propagated logits that are out of fold stand for the validation nodes. They also decide per-node
    prediction, which then propagates plainly and shifts the groups after the last step; not at all
    where a shift does not make held-out nodes fairer.
    """
    data, adjacency = nodes.data, nodes.graph.adjacency(logits.dtype)
    decisions, parts = layer.closes_decisions(on), {}
    duals: Tensor | None = None
    for mask in MASKS:
        if mask == "val_mask" and out_of_fold is not None:
            continue
        operator = nodes.group_operator(mask)
        solution = layer.solve(logits, adjacency, operator, decisions=decisions)
        rows = solution.f[data[mask]].to(data.x.dtype)
        rows = close_weighted_gap(rows, data, data[mask], layer, on)
        parts[mask] = Predicted(data, data[mask], rows)
        duals = solution.group_duals if mask == "val_mask" else duals
    # Parity needs no labels: unlabelled nodes make the served correction more precise.
    unlabelled = groups.known_mask(data.sens) & ~(data.train_mask | data.val_mask | data.test_mask)
    if out_of_fold is not None:
        held, held_sens = out_of_fold.logits, data.sens[out_of_fold.nodes]
        fair = correct_rows(layer, nodes, held, held_sens, on).f.to(data.x.dtype)
        fair = close_weighted_gap(fair, data, out_of_fold.nodes, layer, on)
        parts["val_mask"] = Predicted(data, out_of_fold.nodes, fair)
        plain = propagate_uncorrected(logits, layer, adjacency).logits[unlabelled]
        rows, sens = torch.cat([held, plain]), torch.cat([held_sens, data.sens[unlabelled]])
        last = correct_rows(layer, nodes, rows, sens, on).group_duals

        def find_shift(logits: Tensor, sens: Tensor) -> Tensor:
            return correct_rows(layer, nodes, logits, sens, on).group_duals[-1]

        if not correction_helps(held, held_sens, find_shift):
            last = torch.zeros_like(last)
        duals = torch.cat([last.new_zeros(layer.K - 1, *last.shape[1:]), last])
    elif nodes.reducer.total(unlabelled.sum().double().view(1)) > 0:
        held_nodes = unlabelled | (data.val_mask & groups.known_mask(data.sens))
        operator = nodes.group_operator_of(held_nodes)
        duals = layer.solve(logits, adjacency, operator, decisions=decisions).group_duals
    served = None if callable(layer.solver) else duals  # which a user's solver gives no meaning
    return Correction(logits, parts, group_duals=served)


def correct_rows(layer: FMP, nodes: TrainingNodes, rows: Tensor, sens: Tensor, on: On) -> Solution:
    """Correct propagated logits (m×C) as the last step of a fair propagation does."""
    step = FMP(1, 0.0, solver=layer.solver, target=layer.target, temperature=layer.temperature)
    known_mask, num_groups = groups.known_mask(sens), len(nodes.names.groups)
    operator = nodes.reducer.group_operator(sens, known_mask, num_groups)
    no_edges = torch.empty(2, 0, dtype=torch.long, device=rows.device)
    return step.solve(rows, no_edges, operator, decisions=layer.closes_decisions(on))


def hold_criterion(
    debiaser: Debiaser | None,
    nodes: TrainingNodes,
    propagated: Tensor,
    out_of_fold: Predicted | None = None,
    group_logits: Tensor | None = None,
) -> Correction:
    """Correct propagated logits after plain propagation, if there is a correction.

    Those that are out of fold stand for the validation nodes. ``group_logits`` (n×G) are read in
    place of the groups.
    """
    data = nodes.data
    parts = {mask: Predicted(data, data[mask], propagated[data[mask]]) for mask in MASKS}
    if out_of_fold is not None:
        parts["val_mask"] = out_of_fold
    if debiaser is not None:
        for mask, part in parts.items():
            if group_logits is None:
                fair = debiased(debiaser, part.logits, data.sens[part.nodes], nodes.names)
            else:
                fair = blindly_debiased(debiaser, part.logits, group_logits[part.nodes])
            parts[mask] = replace(part, logits=fair)
    return Correction(propagated, parts, debiaser=debiaser)


def debiased(debiaser: Debiaser, logits: Tensor, sens: Tensor, names: Names) -> Tensor:
    """Correct propagated logits node by node."""
    attributes = group_attributes(sens, names.groups)
    fair: Tensor = debiaser.transform(logits.cpu(), sensitive_features=attributes)
    return fair.to(logits)


def blindly_debiased(debiaser: Debiaser, logits: Tensor, group_logits: Tensor) -> Tensor:
    """Correct propagated logits node by node, by the logits of the groups (m×G)."""
    features = blind_features(logits, group_logits, str(debiaser.criterion))
    fair: Tensor = debiaser.transform(logits.cpu(), features=features)
    return fair.to(logits)


def blind_features(logits: Tensor, group_logits: Tensor, criterion: str) -> Tensor:
    """What a blind correction reads of a node, besides its logits.

    The logits of the groups and, for criteria on labels, those of the classes: the group given the
    label depends on both.
    """
    parts = [group_logits] if criterion == PARITY else [group_logits, logits]
    centred = [part.double() - part.double().mean(1, keepdim=True) for part in parts]
    return torch.cat(centred, 1).cpu()


@dataclass(frozen=True)
class RowCorrection:
    """A correction after plain propagation; see :class:`~fairmp.postprocessing.Debiaser`."""

    criterion: str
    target: float
    on: On
    temperature: float
    group_free: bool = False
    confidence: float | None = None


def fit_debiaser(
    nodes: TrainingNodes,
    held_out: Predicted,
    correction: RowCorrection,
    group_logits: Tensor | None = None,
) -> Debiaser:
    """Find the correction of propagated logits on held-out nodes.

    ``group_logits``, one row per held-out node, are for a correction that reads no group.
    """
    data, names = nodes.data, nodes.names

    def fit(
        logits: Tensor,
        sens: Tensor,
        y: Tensor,
        weight: Tensor | None,
        group_logits: Tensor | None,
    ) -> Debiaser:
        from fairmp.postprocessing.debiaser import Debiaser

        debiaser = Debiaser(
            correction.criterion,
            correction.target,
            kind="logits",
            on=correction.on,
            temperature=1.0 if correction.on == "decisions" else correction.temperature,
            class_names=names.classes,
            group_free=correction.group_free,
            confidence=correction.confidence,
        )
        features = None
        if group_logits is not None:
            features = blind_features(logits, group_logits, correction.criterion)
            sens = groups.certain_group(sens)
        return debiaser.fit(
            logits.cpu(),
            y.cpu(),
            sensitive_features=group_attributes(sens, names.groups),
            sample_weight=None if weight is None else weight.cpu(),
            features=features,
        )

    mask, weight = held_out.nodes, nodes.sample_weight
    return nodes.reducer.on_rank_zero(
        fit,
        held_out.logits,
        data.sens[mask],
        data.y[mask],
        None if weight is None else weight[mask],
        group_logits,
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


def asked_numbers(nodes: Nodes, mask: Tensor) -> Tensor | None:
    """The numbers of nodes that were asked for in an order of their own; else ``None``."""
    numbers = None if nodes is None else torch.as_tensor(nodes, device=mask.device)
    return None if numbers is None or numbers.dtype == torch.bool else numbers.long()


def floating_dtype(network: nn.Module) -> torch.dtype:
    """The floating-point type of a network's tensors."""
    # The counter of a batch norm is a whole number, and tensors come in any order.
    return next(t.dtype for t in network.state_dict().values() if t.is_floating_point())
