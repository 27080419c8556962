"""Checks of a model file from a stranger, before anything is built from it.

The header of the file and the description are held against tables of what they may contain, and
the tensors against a network without memory (on torch's ``meta`` device). A file that passes can
still hold a bad model: the checksum shows damage, and nothing shows who made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from fairmp.errors import InputError, conform
from fairmp.training.blend import INTEGERS

MAX_STEPS = 10_000
MAX_LAYERS = 100  # or as many as there are tensors
MAX_WIDTH = 10_000  # or as many as there are numbers
NAMES = ("classes", "groups", "features")
SCHEMA: dict[str, Any] = {
    "format": int,
    "versions": dict[str, str],
    "config": dict[str, Any],
    **dict.fromkeys(NAMES, list[str]),
    "encoding": dict[str, Any] | None,
    "correction": dict[str, Any] | None,
    "blend": dict[str, Any] | None,
}


def read_metadata(content: bytes) -> str:
    """Read the description in a safetensors file; raise ``ValueError`` if there is none."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > len(content) - 8:
        raise ValueError("the file is cut short")
    header = json.loads(content[8 : 8 + length])
    metadata = conform(header, dict[str, dict[str, Any]], "header").get("__metadata__", {})
    return str(conform(metadata.get("fairmp"), str, "description"))


def check_description(description: Any, tensors: Mapping[str, Tensor], kind: type) -> None:
    """Raise ``ValueError`` if a description is not one of a classifier of this kind and size."""
    conform(description, dict[str, Any], "description")
    for name, expected in SCHEMA.items():
        conform(description.get(name), expected, name)
    for name in NAMES:
        if not description[name]:
            raise ValueError(f"{name} is empty")
    config, hints = description["config"], get_type_hints(kind)
    limits = {
        "num_layers": max(MAX_LAYERS, len(tensors)),
        "hidden": max(MAX_WIDTH, sum(tensor.numel() for tensor in tensors.values())),
        "K": MAX_STEPS,
    }
    parts = config.get("propagation"), config.get("strategy")
    for part in parts:
        name = conform(part, dict[str, Any] | None, "propagation") and part.get("name")
        conform(name, str | None, "name")
    for name, value in config.items():
        if name in hints and name not in ("propagation", "strategy"):
            conform(value, hints[name], name)
    for name, value in {**config, **(parts[0] or {}), **(parts[1] or {})}.items():
        if name in limits and isinstance(value, int) and value > limits[name]:
            raise ValueError(f"{name} is {value:,}, more than the file has room for")


def check_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if tensors are not finite, or not those of a network on ``meta``."""
    expected = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            has, needs = found.get(name, "nothing"), expected.get(name, "nothing")
            raise ValueError(f"{name!r} is {has}, and {needs} is needed")
        integer = name.endswith(("num_batches_tracked", *INTEGERS))
        if not tensors[name].is_floating_point() and not integer:
            raise ValueError(f"{name!r} holds {tensors[name].dtype}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{name!r} has values that are not finite")


def check_encoding(encoding: Any, model: Any) -> None:
    """Raise if an encoding makes other features, classes or groups than the model has."""
    sizes = (
        ("features", len(encoding.feature_names), len(model.features_)),
        ("classes", len(encoding.label.classes), len(model.classes_)),
        ("groups", len(encoding.groups), len(model.groups_)),
    )
    for name, made, known in sizes:
        if made != known:
            value = f"it makes {made} {name}, and the model has {known}"
            raise InputError("encoding", value, "save the model again")
