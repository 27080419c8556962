r"""Predictions and evaluations of a fitted classifier, and what they are calibrated with.

**Calibration**: one temperature and a bias per class. The correction moves to the *closest* fair
predictions, which means something only if the predictions are probabilities. The logits X of the
transform become :math:`aX + 1b^\top`, and since plain propagation is linear, what is propagated
becomes :math:`aZ + c b^\top` with Z and c the propagated X and 1. Fitting a and b to labels is a
multinomial logistic regression.

**Criteria on labels** are corrected after plain propagation, by a shift per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

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
from fairmp.nn.fmp import PPR, Temperature
from fairmp.nn.models import Network
from fairmp.postprocessing.predictions import Attribute
from fairmp.training import alignment, model_files
from fairmp.training.loop import LocalReducer, needs_groups

PARITY = "demographic_parity"  # the criterion that is held inside the propagation
SOFT_TEMPERATURE = 0.1  # for decisions that have no thresholds
Mode = Literal["batch", "per-node"]
Nodes: TypeAlias = Tensor | np.ndarray | Sequence[int] | Sequence[bool] | None


class Predictor:
    """Predictions of a network, corrected by group in batches or node by node."""

    propagation: nn.Module | None
    predict_temperature: Temperature
    device: str | torch.device
    network_: Network
    classes_: list[str]
    groups_: list[str]
    features_: list[str]
    group_duals_: Tensor | None  # of the propagation, for "per-node"
    debiaser_: Any  # a Debiaser, for a criterion on labels
    graph_: Graph
    logits_: Tensor  # of all nodes of the graph that was fitted, before a correction
    test_logits_: Tensor

    @property
    def uses_groups(self) -> bool:
        """Whether a prediction uses the group of its node."""
        return needs_groups(self.propagation)

    def predict_proba(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> Tensor:
        """Predict the probability of each class.

        Args:
            data: the graph the network was trained on, or another with the same features and
                groups, which are matched by name if both have names.
            nodes: which nodes to predict: a boolean mask, or their numbers, in any order; all by
                default. In mode ``"batch"`` they are the population whose gap is closed.
            mode: ``"batch"`` or ``"per-node"``; a criterion on labels is always per node.

        Returns:
            One row per predicted node, in the order of the graph, or of the numbers given.
        """
        return self._predict(data, nodes, mode)[2].softmax(1)

    def predict(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> np.ndarray:
        """Predict the names of classes, or their numbers if the training data had no names.

        See :meth:`predict_proba` for the arguments.
        """
        codes: np.ndarray = self.predict_proba(data, nodes=nodes, mode=mode).argmax(1).cpu().numpy()
        return codes if alignment.numbered(self.classes_) else np.array(self.classes_)[codes]

    def evaluate(
        self,
        data: Data,
        *,
        nodes: Nodes = None,
        mode: Mode = "batch",
        bootstrap: int = 1000,
    ) -> Evaluation:
        """Measure accuracy and fairness on some nodes, by default the test nodes if there are any.

        If groups are probabilities, gaps are measured on nodes of certain group, and a note says
        so.
        """
        self._check_fitted()
        if isinstance(data, Data):
            for name, what in (("y", "labels (-1 if unknown)"), ("sens", "groups")):
                if not isinstance(data.get(name), Tensor):
                    raise InputError(f"data.{name}", "missing", f"an evaluation needs {what}")
            if nodes is None and "test_mask" in data and bool(data.test_mask.any()):
                nodes = data.test_mask
        return self._measure(*self._predict(data, nodes, mode), mode, bootstrap)

    def predict_and_evaluate(
        self,
        data: Data,
        *,
        nodes: Nodes = None,
        mode: Mode = "batch",
        bootstrap: int = 1000,
    ) -> tuple[Tensor, Evaluation | None]:
        """Predict probabilities, of all nodes by default, and evaluate them if that is possible.

        Returns:
            Probabilities (n×C), and figures, ``None`` if fewer than two groups are known.
        """
        data, nodes, logits = self._predict(data, nodes, mode)
        measured = None
        if "y" in data and "sens" in data:
            known = groups.certain_group(data.sens)[nodes]
            if len(known[known >= 0].unique()) > 1:
                measured = self._measure(data, nodes, logits, mode, bootstrap)
        return logits.softmax(1), measured

    def score(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> float:
        """Return the accuracy on some nodes, by default the test nodes if there are any."""
        return self.evaluate(data, nodes=nodes, mode=mode, bootstrap=0).accuracy

    def uncorrected(self) -> Tensor:
        """Logits of all nodes of the graph that was fitted, propagated and not corrected (n×C)."""
        layer = self.network_.propagation
        if not needs_groups(layer):
            return self.logits_
        return plainly_propagated(self.logits_, layer, self.graph_.adjacency(self.logits_.dtype))[0]

    @staticmethod
    def _graph(data: Data) -> Graph:
        graph = Graph(data.edge_index, data.x.size(0), data.get("edge_weight"))
        graph.origin = data.get("origin")
        return graph

    def _predict(self, data: Data, nodes: Nodes, mode: Mode) -> tuple[Data, Tensor, Tensor]:
        """Return the aligned graph, the mask or the numbers of nodes, and their logits."""
        data, mask = self._align(data, nodes)
        logits = self._logits(data, self._graph(data), mask, mode, LocalReducer())
        given = mask if nodes is None else torch.as_tensor(nodes, device=mask.device)
        if given.dtype == torch.bool:
            return data, mask, logits
        places = given.long()
        return data, places, logits[(mask.cumsum(0) - 1)[places]]

    def _logits(
        self, data: Data, graph: Graph, nodes: Tensor, mode: Mode, reducer: LocalReducer
    ) -> Tensor:
        check_choice("mode", mode, get_args(Mode))
        if self.uses_groups and not isinstance(data.get("sens"), Tensor):
            hint = "a fair prediction needs the group of each node (-1 if unknown)"
            raise InputError("data.sens", "missing", hint)
        layer, sens = self.network_.propagation, data.get("sens")
        with torch.no_grad():
            if not needs_groups(layer):
                logits = self.network_(data.x, graph, sens)[nodes]
                return logits if sens is None else self._debiased(logits, sens[nodes])
            if mode == "per-node":
                assert self.group_duals_ is not None
                logits = self.network_.logits(data.x, graph)
                adjacency = graph.adjacency(logits.dtype)
                return layer.frozen(logits, adjacency, sens, self.group_duals_)[nodes]
            alignment.check_population(sens, nodes, self.groups_, reducer.total)
            inside = nodes & groups.known_mask(sens)
            operator = reducer.group_operator(sens, inside, len(self.groups_))
            tau = self.predict_temperature
            logits = self.network_(data.x, graph, operator, temperature=tau)[nodes]
            return self._weighted(logits, data, nodes)

    def _weighted(self, logits: Tensor, data: Data, nodes: Tensor) -> Tensor:
        """Close the gap that sample weights measure among some nodes, if there are weights."""
        if "sample_weight" not in data:
            return logits
        from fairmp.postprocessing.solver import debias

        tau, sens = self.predict_temperature, data.sens[nodes]
        if tau == "decisions" and (logits.size(1) > 2 or groups.is_soft(sens)):
            tau = SOFT_TEMPERATURE
        target = getattr(self.network_.propagation, "target", 0.0)
        how: Any = {"kind": "logits", "target": target, "temperature": tau}
        weight = data.sample_weight[nodes].cpu()
        return debias(logits.cpu(), sens.cpu(), sample_weight=weight, **how).to(logits)

    def _measure(
        self,
        data: Data,
        nodes: Tensor,
        logits: Tensor,
        mode: Mode,
        bootstrap: int,
        reducer: LocalReducer | None = None,
    ) -> Evaluation:
        """Evaluate logits of some nodes, on the first process if there are several."""

        def measure(logits: Tensor, y: Tensor, sens: Tensor, *weight: Tensor) -> Evaluation:
            sure = groups.certain_group(sens)
            names: dict[str, Any] = {"class_names": self.classes_, "group_names": self.groups_}
            names["sample_weight"] = next(iter(weight), None)
            found = evaluate(logits, y, sure, bootstrap=bootstrap, **names)
            if groups.is_soft(sens):
                unsure = int((sure < 0).sum())
                note = f"gaps leave out {unsure} of {len(sens)} nodes, whose group is not certain"
                found = replace(found, notes=(*found.notes, note))
            per_node = mode if self.debiaser_ is None else "per-node"
            return replace(found, mode=per_node) if self.uses_groups else found

        reducer = reducer or LocalReducer()
        parts = [data[name][nodes] for name in ("y", "sens", "sample_weight") if name in data]
        return reducer.on_first(measure, logits, *parts)

    def _align(self, data: Data, nodes: Nodes) -> tuple[Data, Tensor]:
        """Return a graph as the network knows it, and the mask of nodes, on the device."""
        self._check_fitted()
        dtype = model_files.float_type(self.network_.state_dict())
        data = alignment.aligned(data, self.features_, self.classes_, self.groups_, dtype)
        mask = alignment.node_mask(nodes, data.x.size(0))
        moved = data if data.x.device == self.device else data.to(str(self.device))
        return moved, mask.to(self.device)

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            hint = "call fit(data) or load(path) first"
            raise InputError("FairClassifier", "not fitted yet", hint)

    def _debiased(self, logits: Tensor, sens: Tensor) -> Tensor:
        """Correct propagated logits for a criterion on labels, if there is one, node by node."""
        if self.debiaser_ is None:
            return logits
        groups = attributes(sens, self.groups_)
        fair: Tensor = self.debiaser_.transform(logits.cpu(), sensitive_features=groups)
        return fair.to(logits)


def plainly_propagated(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> tuple[Tensor, Tensor]:
    """Propagate logits and a column of ones without a correction."""
    rows = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        rows = PPR.forward(propagation, rows, adjacency)
    return rows[:, :-1], rows[:, -1:]


def fit_calibration(z: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Return slope a and biases b (1+C) that calibrate :math:`az_i + c_i b` (m×C)."""
    logits, reach = (part.double().cpu().numpy() for part in (z, c))
    temperature, bias = calibrate(logits, y.cpu().numpy(), reach=reach)
    return torch.cat([torch.tensor([1 / temperature]), torch.from_numpy(bias)]).to(z)


def attributes(sens: Tensor, names: Sequence[str]) -> list[Attribute]:
    """Groups as a Debiaser takes them."""
    return [Attribute("group", tuple(names), sens.cpu())]


def check_certain(data: Data) -> None:
    """Raise if a part of the split has fewer than two certain groups, so that it has no gap."""
    certain = groups.certain_group(data.sens)
    for mask in MASKS:
        found = certain[data[mask]]
        if len(found[found >= 0].unique()) < 2:
            value = f"fewer than two groups are certain (probability 1) in {mask}"
            hint = "gaps are measured on nodes of certain group, give some"
            raise InputError("data.sens", value, hint)


def names_of(data: Data, attribute: str, count: int) -> list[str]:
    """Return the names of features, classes or groups; numbers if the graph gives none."""
    names = data.get(attribute)
    # If columns were removed, it is unknown which names are left.
    stale = attribute == "feature_names" and names is not None and len(names) != count
    if names is None or len(names) < count or stale:
        return [str(i) for i in range(count)]
    return [str(name) for name in names]
