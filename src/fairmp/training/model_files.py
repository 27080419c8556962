"""Models on disk: weights as safetensors, all else as JSON, never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fairmp._version import __version__
from fairmp.errors import InputError
from fairmp.nn.fmp import FMP, PPR
from fairmp.training.penalties import Adversary, Regulariser, Strategy, Vanilla

FORMAT = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"

_PROPAGATIONS = {"FMP": FMP, "PPR": PPR}


def versions() -> dict[str, str]:
    """What computes: fairmp, torch, PyG, numpy."""
    found = {"fairmp": __version__}
    for package in ("torch", "torch_geometric", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def describe(propagation: nn.Module | None) -> dict[str, object] | None:
    """Say what a propagation is, as what JSON can say."""
    if propagation is None:
        return None
    config = propagation.config() if isinstance(propagation, PPR) else {}
    return {"name": type(propagation).__name__, **config}


def rebuild(description: Mapping[str, Any] | None) -> nn.Module | None:
    """Make the propagation that was described."""
    if description is None:
        return None
    arguments = dict(description)
    name = arguments.pop("name")
    if name not in _PROPAGATIONS:
        raise InputError(
            "propagation",
            f"{name!r} is not one of fairmp's ({', '.join(_PROPAGATIONS)})",
            "a model with a propagation of your own is yours to save",
        )
    return _PROPAGATIONS[name](**arguments)


def rebuild_strategy(description: Mapping[str, Any]) -> Strategy:
    """Make the strategy that was described."""
    arguments = dict(description)
    match arguments.pop("name"):
        case "regulariser":
            return Regulariser(**arguments)
        case "adversary":
            return Adversary(**arguments)
        case _:  # a strategy is of training: a model saved with one of the user's own still loads
            return Vanilla()


def save(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> Path:
    """Write a model's folder; it is there whole, or as it was before."""
    from safetensors.torch import save as to_bytes

    rebuild(description["config"]["propagation"])
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError("path", f"{folder} is a file", "give the name of a folder")
    taken = [name for name in (WEIGHTS, DESCRIPTION) if (folder / name).exists()]
    if taken and not overwrite:
        raise InputError(
            "path", f"{folder / taken[0]} exists", "give another folder, or overwrite=True"
        )
    weights = to_bytes({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    text = json.dumps(
        {
            "format": FORMAT,
            "versions": versions(),
            "sha256": hashlib.sha256(weights).hexdigest(),
            **description,
        },
        ensure_ascii=False,
        indent=2,
    )
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        (staging / WEIGHTS).write_bytes(weights)
        (staging / DESCRIPTION).write_text(text + "\n", encoding="utf-8")
        for name in (WEIGHTS, DESCRIPTION):
            os.replace(staging / name, folder / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a model's folder, and refuse one whose parts do not belong together."""
    from safetensors.torch import load as from_bytes

    folder = Path(path)
    for name in (DESCRIPTION, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(
                "path", f"{folder} has no {name}", "give the folder a model was saved to"
            )
    damaged = InputError(
        "path", f"{folder / DESCRIPTION} is damaged or not a model's description", "save it again"
    )
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        known = description["format"]
    except (ValueError, KeyError, TypeError):
        raise damaged from None
    if known != FORMAT:
        raise InputError(
            "path",
            f"{folder} has format {known}, this fairmp ({__version__}) reads {FORMAT}",
            "use the version that saved it",
        )
    lists = [description.get(name) for name in ("classes", "groups", "features")]
    whole = isinstance(description.get("config"), dict) and all(
        isinstance(names, list) and names for names in lists
    )
    if not whole:
        raise damaged
    weights = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != description.get("sha256"):
        raise InputError(
            "path",
            f"{folder / WEIGHTS} is damaged, or belongs to another {DESCRIPTION}",
            "save the model again",
        )
    return from_bytes(weights), description


def arguments(
    path: str | Path, config: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """Turn a classifier's description back into its arguments.

    Args:
        path: the model's folder, for messages.
        config: what :meth:`FairClassifier.config` said.
        known: the names of a classifier's arguments.
    """
    strange = sorted(set(config) - set(known))
    if strange:
        raise InputError(
            "path",
            f"{path} sets {strange[0]!r}, which this fairmp ({__version__}) does not know",
            "use the version that saved it (its model.json says which)",
        )
    try:
        return {
            **config,
            "propagation": rebuild(config["propagation"]),
            "strategy": rebuild_strategy(config["strategy"]),
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(
            "path",
            f"{path} describes a model this fairmp ({__version__}) can not make ({error})",
            "use the version that saved it",
        ) from None


def check_state(
    path: str | Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> None:
    """Refuse weights that do not fit the network described beside them."""
    for name in [*expected, *found]:
        shapes = [
            tuple(state[name].shape) if name in state else "nothing" for state in (expected, found)
        ]
        if shapes[0] != shapes[1]:
            raise InputError(
                "path",
                f"{path} describes a network whose {name} has shape {shapes[0]} and holds "
                f"{shapes[1]}",
                "its two files do not match",
            )


def check_duals(
    path: str | Path, duals: Tensor | None, propagation: nn.Module | None, groups: int
) -> None:
    """Refuse frozen duals that are missing or of other groups."""
    fair = isinstance(propagation, FMP)
    found = None if duals is None else duals.size(1) if duals.dim() > 1 else 0
    if found != (groups if fair else None):
        raise InputError(
            "path",
            f"{path} describes {groups} groups and holds duals of {found or 'none'}",
            "its two files do not match",
        )
