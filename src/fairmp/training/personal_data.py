"""What a saved model holds of the people it was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairmp.errors import plural
from fairmp.training.blend import Blend

if TYPE_CHECKING:
    from fairmp.nn.models import Network
    from fairmp.training.fitted import FittedModel

GRAPH_CONTENT = "ids, groups, features, edges and scores of everyone (graph.npz)"
NOTHING = "The model folder holds no ids, labels, groups or edges of people in training."


def personal_data(fitted: FittedModel, *, graph: bool = False) -> list[str]:
    """Say what a model's files hold of single people; ``graph`` if its graph is stored too.

    Models that read the neighbourhood need the labels of training nodes, models that read the edges
    learn a number for each of them, and estimates of the groups may need their known groups.
    """
    parts = [*_stored(fitted.network, "labels")]
    if fitted.group_network is not None:
        parts += _stored(fitted.group_network, "groups")
    return [*parts, GRAPH_CONTENT] if graph else parts


def held_sentence(parts: list[str]) -> str:
    """What :func:`personal_data` found, as a sentence."""
    if not parts:
        return NOTHING
    return f"The model folder holds data of people: {'; '.join(parts)}. Keep it as you keep them."


def _stored(network: Network, what: str) -> list[str]:
    """What the buffers and the classifiers of a network hold, one entry each."""
    transform = network.transform
    if not isinstance(transform, Blend):
        return []
    labels = transform.inputs.labels
    parts = []
    if count := int((labels >= 0).sum()):
        parts.append(f"{what} of {plural(count, 'person')} in training (model.safetensors)")
    if "edges" in transform.views:
        parts.append(f"a weight for each of {plural(labels.numel(), 'person')} (model.safetensors)")
    return parts
