"""Blends of models that read a node in different ways, and their place in a model's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairmp import outputs
from fairmp.errors import InputError
from fairmp.graph import Graph
from fairmp.nn.models import call_transform
from fairmp.schema import conform
from fairmp.training.estimators import Estimator, Linear, TreeEnsemble
from fairmp.training.graph_features import GraphInputs, Reads, num_columns

ESTIMATORS = "estimators.joblib"  # scikit-learn classifiers that are no tensors
Kind = Literal["network", "linear", "forest", "boosted", "estimator"]


class Blend(nn.Module):
    """Models that read a node in different ways; their logits are averaged, equally by default."""

    takes_graph = True
    weights: Tensor

    def __init__(
        self,
        inputs: GraphInputs,
        members: Sequence[tuple[str, Reads, nn.Module]],
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.names = inputs, [(name, reads) for name, reads, _ in members]
        self.members = nn.ModuleList(model for *_, model in members)
        given = [1 / len(members)] * len(members) if weights is None else weights
        self.register_buffer("weights", torch.tensor(given))

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Return logits (n×C)."""
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for (_, reads), model, weight in zip(self.names, self.members, self.weights, strict=True):
            design = self.inputs(reads, x, graph)
            fitted = hasattr(model, "kind")
            logits = model(design) if fitted else call_transform(model, design, graph)
            total = total + weight.to(x) * logits.to(x)
        return total

    @property
    def estimators(self) -> dict[int, Any]:
        """The classifiers that are no tensors, by their place."""
        members = enumerate(self.members)
        return {k: model.estimator for k, model in members if isinstance(model, Estimator)}

    def describe(self) -> dict[str, Any]:
        """Return name, inputs and kind of the members, as plain JSON values."""
        kinds = [getattr(model, "kind", "network") for model in self.members]
        return {"members": [[*pair, kind] for pair, kind in zip(self.names, kinds, strict=True)]}


def rebuild(
    description: Mapping[str, Any],
    state: Mapping[str, Tensor],
    features: int,
    num_classes: int,
    build: Callable[[str, int], nn.Module],
    estimators: Mapping[int, Any],
) -> Blend:
    """Make the blend that was described; raise ``ValueError`` if the tensors do not match it."""
    labels, place = state["inputs.labels"], state["inputs.trained_on"]
    typed = labels.dtype == place.dtype == torch.int64
    shaped = labels.dim() == 1 and place.shape == (2,)
    if not (typed and shaped and bool(((labels >= -1) & (labels < num_classes)).all())):
        raise ValueError("the labels of the training nodes are no classes")
    around, edges = num_columns(features, num_classes), features + len(labels)
    columns = {"features": features, "neighbourhood": around, "edges": edges}
    members: list[tuple[str, Reads, nn.Module]] = []
    for k, member in enumerate(conform(description.get("members"), list[list[str]], "members")):
        name, reads, kind = (*member, "", "", "")[:3]
        prefix, width = f"members.{k}.", columns[conform(reads, Reads, "reads")]
        own = {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}
        model: nn.Module
        if conform(kind, Kind, "kind") == "network":
            model = build(name, width)
        elif kind == "estimator":
            model = Estimator(estimators[k], num_classes)
        elif kind == "linear":
            model = Linear(torch.empty(num_classes, width), torch.empty(num_classes))
        else:
            feature, integers = own["feature"], (own["feature"], own["left"], own["right"])
            fits = all(t.dtype == torch.int32 and t.shape == feature.shape for t in integers)
            if not (fits and bool(((feature >= 0) & (feature < width)).all())):
                raise ValueError("a tree reads columns that there are not")
            own["threshold"] = torch.empty(feature.shape)
            own["value"] = torch.empty(*feature.shape, num_classes)
            own["baseline"] = torch.empty(num_classes)
            model = TreeEnsemble(**own, averaged=kind == "forest")
        members.append((name, reads, model))
    return Blend(GraphInputs(labels, place, num_classes), members)


def save_estimators(folder: Path, blend: Blend, description: dict[str, Any]) -> None:
    """Write the classifiers that are no tensors, and what recognises their file."""
    import joblib

    folder.mkdir(parents=True, exist_ok=True)
    with outputs.atomic_file(folder / ESTIMATORS) as draft:
        joblib.dump(blend.estimators, draft)
        description["estimators"] = hashlib.sha256(draft.read_bytes()).hexdigest()


def load_estimators(folder: Path, description: Mapping[str, Any], trust: bool) -> dict[int, Any]:
    """Read what :func:`save_estimators` wrote, if it is trusted."""
    if "estimators" not in description:
        return {}
    file = folder / ESTIMATORS
    if not trust:
        value = f"{file} is a pickle, which can run anything when it is loaded"
        raise InputError("path", value, "if you trust its origin, add {trust=True}")
    content = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(content).hexdigest() != description["estimators"]:
        raise InputError("path", f"{file} is missing or another model's", "save the model again")
    import joblib

    found: dict[int, Any] = joblib.load(file)
    return found
