"""Predictions of people who were not in the training graph, as tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.new_nodes import NewNodes, NodeIndex, read_new_nodes
from fairmp.datasets.plain_rows import MAX_EDGES, MAX_PEOPLE, NotPlainError, read_plain_rows
from fairmp.datasets.stored_graph import FILE, StoredGraph
from fairmp.datasets.values import free_names
from fairmp.errors import InputError, plural
from fairmp.frames import is_pandas, like, read_frame
from fairmp.postprocessing.corrections import ThresholdMixture, Thresholds
from fairmp.training.correction import debiased
from fairmp.training.explanation import Explanation, Stages, explanations
from fairmp.training.fitted import FittedModel, floating_dtype
from fairmp.training.known_graph import KnownNetwork, KnownNodes
from fairmp.training.new_inputs import KnownNeighbourhoods, NewRows, as_tensor
from fairmp.training.nodes import Names, graph_of

if TYPE_CHECKING:
    from fairmp.datasets.encoding import Encoding
    from fairmp.datasets.targets import UnknownGroups
    from fairmp.postprocessing.debiaser import Debiaser


@dataclass(frozen=True)
class PredictionColumns:
    """Names of the columns of predictions, none of which the tables have."""

    probabilities: tuple[str, ...]
    decision: str
    renamed: tuple[str, ...]  # usual names that the tables have

    @classmethod
    def of(
        cls, classes: list[str], encoding: Encoding | None, id: str | None = None
    ) -> PredictionColumns:
        """Name the columns for the classes of a model; ``id`` is the column with the ids."""
        taken = set() if encoding is None else set(encoding.column_names)
        taken |= set() if id is None else {id}
        usual = [f"p({name})" for name in classes]
        probabilities = free_names(usual, taken)
        [decision] = free_names(["decision"], {*taken, *probabilities})
        names = zip([*usual, "decision"], [*probabilities, decision], strict=True)
        renamed = tuple(old for old, new in names if old != new)
        return cls(tuple(probabilities), decision, renamed)


class NewPeople:
    """Predicts people with a fitted model and the graph it was trained on.

    Args:
        fitted: the model.
        encoding: how the columns of a table become features.
        graph: the training graph with the ids of its nodes; without it people have no edges.
        logits: of its nodes before propagation, if they are at hand (n×C).
    """

    def __init__(
        self,
        fitted: FittedModel,
        encoding: Encoding,
        graph: Data | None = None,
        logits: Tensor | None = None,
    ) -> None:
        self.fitted, self.encoding = fitted.on_cpu(), encoding
        dtype = floating_dtype(fitted.network)
        training_nodes = KnownNodes.none(len(fitted.names.features), dtype)
        self.index: NodeIndex | None = None
        if graph is not None:
            graph = graph.to("cpu")
            training_nodes = KnownNodes(graph.x.to(dtype), graph_of(graph), graph.sens)
            self.index = NodeIndex(graph.__dict__["ids"])
        neighbourhoods = KnownNeighbourhoods(training_nodes.x, training_nodes.graph)
        logits = None if logits is None else logits.to("cpu", dtype)
        self._network = KnownNetwork(self.fitted.network, training_nodes, neighbourhoods, logits)
        self._group_network: KnownNetwork | None = None
        if self.fitted.group_network is not None:
            self._group_network = KnownNetwork(
                self.fitted.group_network, training_nodes, neighbourhoods
            )
        with torch.no_grad():
            self._network.prepare(self.fitted.group_duals)
            if self._group_network is not None:
                self._group_network.prepare()
        self.columns = PredictionColumns.of(fitted.names.classes, encoding)

    @classmethod
    def stored(cls, fitted: FittedModel, encoding: Encoding, folder: Path) -> NewPeople:
        """Read the graph that was saved with a model, if it was."""
        if not (folder / FILE).exists():
            return cls(fitted, encoding)
        stored = StoredGraph.load(folder / FILE, encoding)
        logits = None if stored.logits is None else torch.from_numpy(stored.logits)
        return cls(fitted, encoding, stored.to_data(), logits)

    def read(self, people: Any, edges: Any, unknown_groups: UnknownGroups = "refuse") -> NewNodes:
        """Encode people and find their neighbours."""
        reads_groups = self.fitted.uses_groups
        with suppress(NotPlainError):
            return read_plain_rows(
                _plain_rows(people, MAX_PEOPLE),
                None if edges is None else _plain_rows(edges, MAX_EDGES),
                self.index,
                encoding=self.encoding,
                reads_groups=reads_groups,
            )
        return read_new_nodes(
            read_frame(people, "people"),
            None if edges is None or _is_empty(edges) else read_frame(edges, "edges"),
            self.index,
            encoding=self.encoding,
            report=LoadReport(),
            unknown_groups=unknown_groups if reads_groups else "ignore",
        )

    def predict(self, people: Any, edges: Any, unknown_groups: UnknownGroups = "refuse") -> Any:
        """One row per person: id, probabilities and decision, in the library of ``people``."""
        nodes = self.read(people, edges, unknown_groups)
        columns = self.prediction(nodes, self.logits(nodes))
        if isinstance(people, list):  # pandas takes longer than the prediction
            rows = zip(*columns.values(), strict=True)
            return [dict(zip(columns, row, strict=True)) for row in rows]
        return like(pd.DataFrame(columns), people)

    def explain(self, person: Any, edges: Any, unknown_groups: UnknownGroups) -> Explanation:
        """Explain the prediction of one person, a dict or a table of one row."""
        nodes = self.read([person] if isinstance(person, dict) else person, edges, unknown_groups)
        if len(nodes.table.ids) != 1:
            value = plural(len(nodes.table.ids), "row")
            raise InputError("person", value, "give one; predict_new() takes many")
        return explanations(self.stages(nodes), self.fitted.names.classes)[0]

    def prediction(self, nodes: NewNodes, logits: Tensor) -> dict[str, list[Any]]:
        """Ids, probabilities and decisions, by the names of their columns."""
        [title] = free_names([self.encoding.id or "node"], self.columns.probabilities)
        proba = logits.double().softmax(1).numpy()
        columns: dict[str, list[Any]] = {title: nodes.table.ids.to_pylist()}
        columns |= dict(zip(self.columns.probabilities, proba.T.tolist(), strict=True))
        classes = self.fitted.names.classes
        return columns | {self.columns.decision: [classes[code] for code in proba.argmax(1)]}

    @torch.no_grad()
    def logits(self, nodes: NewNodes) -> Tensor:
        """Corrected logits, one row per person (m×C)."""
        rows, sens = self._rows(nodes), torch.from_numpy(nodes.table.arrays.sens)
        logits = self._network.logits(rows)
        logits = self._network.propagate(rows, logits, sens, self.fitted.group_duals)
        debiaser, group_network = self.fitted.debiaser, self._group_network
        if debiaser is None:
            return logits
        if group_network is None:
            return _debiased_alone(debiaser, logits, sens, self.fitted.names)
        group_logits = group_network.propagate(rows, group_network.logits(rows))
        return debiased(debiaser, logits, None, self.fitted.names, group_logits)

    @torch.no_grad()
    def stages(self, nodes: NewNodes) -> Stages:
        """Logits at each stage."""
        alone, rows = self._rows(nodes.without_edges()), self._rows(nodes)
        network = self._network
        return Stages(
            own=network.propagate(alone, network.logits(alone)),
            neighbours=network.propagate(rows, network.logits(rows)),
            corrected=self.logits(nodes),
        )

    def _rows(self, nodes: NewNodes) -> NewRows:
        x = sp.csr_array(nodes.x) if self._network.known.x.is_sparse else nodes.x
        return NewRows(as_tensor(x, floating_dtype(self.fitted.network)), nodes.edges)


def _debiased_alone(debiaser: Debiaser, logits: Tensor, sens: Tensor, names: Names) -> Tensor:
    """Correct logits, where a tie is decided without looking at the others.

    A share of the rows at a threshold is drawn, or of rows of equal scores; here each of them is
    drawn alone.
    """
    fair, correction = debiased(debiaser, logits, sens, names), debiaser.correction_
    margin = logits.double()[:, 1] - logits.double()[:, 0]
    if isinstance(correction, Thresholds) and correction.tie_rates.any():
        tied = margin == torch.from_numpy(correction.thresholds)[sens]
    elif isinstance(correction, ThresholdMixture):
        _, score, counts = margin.float().unique(return_inverse=True, return_counts=True)
        tied = counts[score] > 1
    else:
        return fair
    for row in (tied & (sens >= 0)).nonzero()[:, 0]:
        alone = row.view(1)
        fair[alone] = debiased(debiaser, logits[alone], sens[alone], names)
    return fair


def _plain_rows(table: Any, most: int) -> list[dict[str, Any]]:
    """A small table as a list of dicts."""
    if not hasattr(table, "__len__") or len(table) > most:
        raise NotPlainError
    if isinstance(table, list):
        if not all(isinstance(row, dict) for row in table):
            raise NotPlainError
        return table
    for method in ("to_dicts", "to_pylist"):  # of polars and Arrow
        if hasattr(table, method):
            return getattr(table, method)()
    if not is_pandas(table):
        raise NotPlainError
    columns = {str(name): table[name].tolist() for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _is_empty(table: Any) -> bool:
    return isinstance(table, list) and not table
