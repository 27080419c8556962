"""Blends of models that see a node in different ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fairmp.graph import Graph
from fairmp.nn.models import call_transform, reads_graph
from fairmp.schema import conform
from fairmp.training.estimators import Classifier, Estimator
from fairmp.training.graph_features import FeatureView, GraphInputs, num_columns

Kind = Literal["network", "estimator"]


@dataclass(frozen=True)
class Member:
    """A model of a blend."""

    name: str
    view: FeatureView
    model: nn.Module
    fold: int = 0  # whose labels it has not seen


class Blend(nn.Module):
    """Models that see a node in different ways; their logits are averaged, equally by default."""

    takes_graph = True
    weights: Tensor

    def __init__(
        self,
        inputs: GraphInputs,
        members: Sequence[Member],
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.names = [member.name for member in members]
        self.views = [member.view for member in members]
        self.folds = [member.fold for member in members]
        self.members = nn.ModuleList(member.model for member in members)
        weights = [1 / len(members)] * len(members) if weights is None else weights
        self.register_buffer("weights", torch.tensor(weights))

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits (n×C)."""
        return self.average(lambda view, fold: self.inputs(view, x, graph, fold), x, graph)

    def average(
        self,
        rows_of: Callable[[FeatureView, int], Tensor | sp.csr_array],
        x: Tensor,
        graph: Graph,
        models: Iterable[nn.Module] | None = None,
    ) -> Tensor:
        """Average the logits of the members, in the type of x.

        Args:
            rows_of: what a member reads, by its view and its fold.
            x: features of the nodes.
            graph: for members that read edges.
            models: in place of the members, if these have a faster form.
        """
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        members = zip(self.views, self.folds, models or self.members, self.weights, strict=True)
        for view, fold, model, weight in members:
            logits = member_logits(model, rows_of(view, fold), graph)
            total = total + weight.to(x) * logits.to(x)
        return total

    @property
    def reads_graph(self) -> bool:
        """Whether a member reads the edges itself, instead of columns made from them."""
        return any(
            not isinstance(model, Estimator) and reads_graph(model) for model in self.members
        )

    @property
    def classifiers(self) -> dict[int, Classifier]:
        """The scikit-learn classifiers, by their place among the members."""
        members = enumerate(self.members)
        return {k: model.classifier for k, model in members if isinstance(model, Estimator)}

    def describe(self) -> dict[str, Any]:
        """Return name, view, fold and kind of the members, as plain JSON values."""
        kinds = [
            "estimator" if k in self.classifiers else "network" for k in range(len(self.names))
        ]
        members = zip(self.names, self.views, self.folds, kinds, strict=True)
        return {"members": [list(member) for member in members]}


def member_logits(model: nn.Module, rows: Tensor | sp.csr_array, graph: Graph) -> Tensor:
    """Logits of one model (n×C)."""
    if isinstance(model, Estimator):
        logits: Tensor = model(rows)
        return logits
    return call_transform(model, rows, graph)


def rebuild(
    description: Mapping[str, Any],
    state: Mapping[str, Tensor],
    features: int,
    num_classes: int,
    build: Callable[[str, int], nn.Module],
    classifiers: Mapping[int, Classifier],
) -> Blend:
    """Make the blend that was described; raise ``ValueError`` if it does not match the tensors.

    ``build`` makes a network from its name and its number of columns.
    """
    labels, folds, trained_on = (
        state[f"inputs.{name}"] for name in ("labels", "folds", "trained_on")
    )
    is_integer = labels.dtype == folds.dtype == trained_on.dtype == torch.int64
    has_shape = labels.dim() == 1 and folds.shape == labels.shape and trained_on.shape == (2,)
    if not (is_integer and has_shape and bool(((labels >= -1) & (labels < num_classes)).all())):
        raise ValueError("the labels of the training nodes are not classes")
    columns = {
        "features": features,
        "neighbourhood": num_columns(features, num_classes),
        "edges": features + len(labels),
    }
    members = []
    for k, (name, view, fold, kind) in enumerate(description["members"]):
        width = columns[conform(view, FeatureView, "view")]
        if conform(kind, Kind, "kind") == "network":
            model = build(name, width)
        else:
            model = Estimator(_checked(classifiers[k], width, num_classes), num_classes)
        members.append(Member(name, view, model, conform(fold, int, "fold")))
    return Blend(GraphInputs(labels, trained_on, num_classes, folds), members)


def _checked(classifier: Classifier, width: int, num_classes: int) -> Classifier:
    """Raise ``ValueError`` if a classifier has another number of columns, or other classes."""
    columns = getattr(classifier, "n_features_in_", width)
    if columns != width:
        raise ValueError(f"a classifier reads {columns} columns, and there are {width}")
    if not np.isin(classifier.classes_, range(num_classes)).all():
        raise ValueError("a classifier predicts other classes than the model")
    return classifier
