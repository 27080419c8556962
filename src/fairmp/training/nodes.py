"""The nodes a model is trained on: their graph, split and names, in one process or in several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError
from fairmp.graph import Graph
from fairmp.groups import GroupOperator, group_operator
from fairmp.nn.fmp import FMP

Result = TypeVar("Result")


class LocalReducer:
    """Sums over nodes that are all in this process; ``distributed.Ranks`` is for several."""

    rank, size = 0, 1

    def group_operator(self, sens: Tensor, population: Tensor, num_groups: int) -> GroupOperator:
        """Build the group operator of all nodes."""
        return group_operator(sens, population)

    def total(self, part: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        return part

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the processes, in place."""

    def on_rank_zero(self, function: Callable[..., Result], *rows: Tensor | None) -> Result:
        """Call a function on the first process with the rows of all processes."""
        return function(*rows)


@dataclass(frozen=True)
class Names:
    """Names of a model's features, classes and groups; numbers where the data has no names."""

    features: list[str]
    classes: list[str]
    groups: list[str]

    @classmethod
    def of(cls, data: Data) -> Names:
        """Read the names of a graph."""
        is_soft = groups.is_soft(data.sens)
        num_groups = data.sens.size(1) if is_soft else int(data.sens.max()) + 1
        columns = data.get("feature_names")
        # If columns were removed, it is unknown which names are left.
        if columns is not None and len(columns) != data.x.size(1):
            columns = None
        return cls(
            features=_names_or_numbers(columns, data.x.size(1)),
            classes=_names_or_numbers(data.get("class_names"), int(data.y.max()) + 1),
            groups=_names_or_numbers(data.get("group_names"), num_groups),
        )


def _names_or_numbers(names: list[str] | None, count: int) -> list[str]:
    if names is None or len(names) < count:
        return [str(i) for i in range(count)]
    return [str(name) for name in names]


class Groups(NamedTuple):
    """Groups of the nodes, and the population whose gap a propagation closes."""

    sens: Tensor | GroupOperator  # which has its own population
    population: Tensor | None


@dataclass(frozen=True)
class TrainingNodes:
    """A graph with labels, groups and a split, as training and validation use it."""

    data: Data  # features, labels, groups and masks of this process's nodes
    graph: Graph
    names: Names
    reducer: LocalReducer = field(default_factory=LocalReducer)  # sums over all processes
    _operators: dict[str, GroupOperator] = field(default_factory=dict, init=False, repr=False)

    def group_operator(self, mask: str) -> GroupOperator:
        """The group operator of a part of the split, built once."""
        if mask not in self._operators:
            population = self.data[mask] & groups.known_mask(self.data.sens)
            self._operators[mask] = self.group_operator_of(population)
        return self._operators[mask]

    def group_operator_of(self, population: Tensor) -> GroupOperator:
        """The group operator of a population."""
        return self.reducer.group_operator(self.data.sens, population, len(self.names.groups))

    def groups_for(self, propagation: nn.Module | None, mask: str) -> Groups:
        """Groups as a propagation takes them, with a part of the split as the population."""
        if isinstance(propagation, FMP):
            return Groups(self.group_operator(mask), None)
        sens = self.data.sens
        return Groups(sens, self.data[mask] & groups.known_mask(sens))

    def with_features(self, x: Tensor) -> TrainingNodes:
        """The same nodes with other features."""
        data = copy.copy(self.data)
        data.x = x
        view = replace(self, data=data)
        view._operators.update(self._operators)
        return view

    def with_masks(self, train: Tensor, val: Tensor) -> TrainingNodes:
        """The same nodes with other training and validation nodes."""
        data = copy.copy(self.data)
        data.train_mask, data.val_mask = train, val
        return replace(self, data=data)

    @property
    def sample_weight(self) -> Tensor | None:
        """Weights of the nodes (n), if they have any."""
        weight: Tensor | None = self.data.get("sample_weight")
        return weight


def graph_of(data: Data) -> Graph:
    """The edges of a graph, and where the nodes of a model's training graph are in it."""
    graph = Graph(data.edge_index, data.x.size(0), data.get("edge_weight"))
    graph.origin = data.get("origin")
    return graph


def check_certain_groups(data: Data) -> None:
    """Raise if a part of the split has fewer than two certain groups, so that it has no gap."""
    certain = groups.certain_group(data.sens)
    for mask in MASKS:
        codes = certain[data[mask]]
        if len(codes[codes >= 0].unique()) < 2:
            value = f"fewer than two groups are certain (probability 1) in {mask}"
            hint = "gaps are measured on nodes of certain group, give some"
            raise InputError("data.sens", value, hint)


@dataclass(frozen=True)
class Predicted:
    """Logits of some nodes, and the graph they belong to, as the model knows it."""

    data: Data
    nodes: Tensor  # a mask, or numbers in the order they were asked for
    logits: Tensor  # one row per node
