"""Model files: weights and their description in one safetensors file, never pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy
import torch
import torch_geometric
from torch import Tensor, nn

from fairmp import outputs
from fairmp._version import __version__
from fairmp.datasets.encoding import Encoding
from fairmp.errors import InputError
from fairmp.nn.fmp import FMP, PPR
from fairmp.training import blend as blends
from fairmp.training import model_checks as checks
from fairmp.training.loop import needs_groups
from fairmp.training.penalties import Adversary, Lagrangian, Regulariser, Strategy, Vanilla

FORMAT = 2
MODEL = "model.safetensors"
Model = TypeVar("Model")
NAMES = checks.NAMES
OTHER_VERSION = "use the version that saved it"

_PROPAGATIONS = {"FMP": FMP, "PPR": PPR}
_STRATEGIES = {"regulariser": Regulariser, "adversary": Adversary, "lagrangian": Lagrangian}


def versions() -> dict[str, str]:
    """Return the versions of fairmp, torch, PyG and numpy."""
    packages = (torch, torch_geometric, numpy)
    return {"fairmp": __version__, **{p.__name__: str(p.__version__) for p in packages}}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: object) -> None:
    """Write tensors and a description (JSON) to one file; a crash leaves the old one or the new."""
    from safetensors.torch import save

    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(description, ensure_ascii=False)
    # One entry: the order of several is random, and equal models should be equal files.
    metadata = {"fairmp": f"{_digest(tensors, text)} {text}"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with outputs.atomic_file(path) as draft:
        draft.write_bytes(save(tensors, metadata))


def read_tensors(content: bytes) -> tuple[dict[str, Tensor], Any]:
    """Read what :func:`write_tensors` wrote; raise ``ValueError`` if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        digest, _, text = checks.read_metadata(content).partition(" ")
        tensors = load(content)
        if digest != _digest(tensors, text):
            raise ValueError("the checksum does not match")
        return tensors, json.loads(text)
    except (SafetensorError, RecursionError) as error:
        raise ValueError(f"not a file of fairmp's ({error})") from None


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(propagation: nn.Module | None) -> dict[str, object] | None:
    """Return name and arguments of a propagation."""
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
        value = f"{name!r} is not one of fairmp's ({', '.join(_PROPAGATIONS)})"
        hint = "a model with a propagation of your own is yours to save"
        raise InputError("propagation", value, hint)
    return _PROPAGATIONS[name](**arguments)


def save(path: str | Path, model: Any, *, overwrite: bool) -> Path:
    """Write a fitted classifier to a folder."""
    config = model.config()
    rebuild(config["propagation"])  # what cannot be loaded is not saved
    if isinstance(model.backbone, nn.Module):
        value = f"{config['backbone']} is a module of your own"
        raise InputError("backbone", value, "save model.network_.state_dict() with torch.save")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError("path", f"{folder} is a file", "give the name of a folder")
    file = folder / MODEL
    if file.exists() and not overwrite:
        raise InputError("path", f"{file} exists", "give another folder, or overwrite=True")
    tensors = {f"network.{k}": v for k, v in model.network_.state_dict().items()}
    if model.group_duals_ is not None:
        tensors["group_duals"] = model.group_duals_
    description = {
        "format": FORMAT,
        "versions": versions(),
        "config": config,
        **{name: getattr(model, f"{name}_") for name in NAMES},
        "encoding": None if model.encoding_ is None else model.encoding_.to_dict(),
        "correction": None if model.debiaser_ is None else model.debiaser_.to_dict(),
    }
    transform = model.network_.transform
    if isinstance(transform, blends.Blend):
        description["blend"] = transform.describe()
        if transform.estimators:
            blends.save_estimators(folder, transform, description["blend"])
    write_tensors(file, tensors, description)
    return folder


def float_type(state: Mapping[str, Tensor]) -> torch.dtype:
    """Return the floating-point type of a network's tensors."""
    # The counter of a batch norm is a whole number, and tensors come in any order.
    return next(t.dtype for t in state.values() if t.is_floating_point())


def load(
    make: Callable[..., Model], path: str | Path, *, device: str | torch.device, trust: bool = False
) -> Model:
    """Read a classifier from its folder."""
    tensors, description = read(path)
    try:
        checks.check_description(description, tensors, cast(type, make))
    except ValueError as error:
        raise InputError("path", f"{path} describes no model: {error}", OTHER_VERSION) from None
    config, blend = description["config"], description.get("blend")
    own = {} if blend is None else blends.load_estimators(Path(path), blend, trust)
    model: Any = _construct(make, path, {**config, "backbone": "auto"}, device=device)
    model.backbone = own.get(0, config.get("backbone"))
    for name in NAMES:
        setattr(model, f"{name}_", [str(value) for value in description[name]])
    encoding, correction = description.get("encoding"), description.get("correction")
    if correction is not None:
        from fairmp.postprocessing.debiaser import Debiaser

        model.debiaser_ = Debiaser.from_dict(correction, str(path))
    transform = None
    try:
        if blend is not None:
            transform = _blend(model, blend, tensors, own)
        calibrated = "network.calibration" in tensors
        checks.check_tensors(_empty(model, "meta", calibrated, transform), tensors)
    except (ValueError, KeyError) as error:
        value = f"the weights in {path} do not match their description: {error}"
        raise InputError("path", value, "save the model again") from None
    if encoding is not None:
        model.encoding_ = Encoding.from_dict(encoding)
        checks.check_encoding(model.encoding_, model)
    duals = tensors.pop("group_duals", None)
    state = {k.removeprefix("network."): v for k, v in tensors.items()}
    network = cast(nn.Module, _empty(model, "cpu", "calibration" in state, transform).network)
    network.to(float_type(state))
    network.load_state_dict(state)
    model.group_duals_ = None if duals is None else duals.to(model.device)
    model.network_ = network.to(model.device).eval()
    return model


def _blend(
    model: Any, description: Mapping[str, Any], tensors: Mapping[str, Tensor], own: dict[int, Any]
) -> blends.Blend:
    """Build the blend of a classifier."""
    sizes, prefix = (len(model.features_), len(model.classes_)), "network.transform."
    state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    build = lambda name, columns: model._build(columns, sizes[1], name).transform  # noqa: E731
    return blends.rebuild(description, state, *sizes, build, own)


def _empty(
    model: Any, device: str, calibrated: bool, transform: nn.Module | None = None
) -> nn.Module:
    """Build the network of a classifier and the buffers saved beside it, with any numbers."""
    with torch.device(device):
        whole = nn.Module()
        sizes = len(model.features_), len(model.classes_)
        whole.network = network = model._build(*sizes, None if transform is None else "mlp")
        network.transform = network.transform if transform is None else transform
        if calibrated:
            network.calibration = torch.empty(1 + len(model.classes_))
        if needs_groups(layer := network.propagation):
            shape = layer.K, len(model.groups_), len(model.classes_)
            whole.register_buffer("group_duals", torch.empty(shape))
    return whole


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the description of a model from its folder."""
    file = Path(path) / MODEL
    if not file.is_file():
        raise InputError("path", f"{path} has no {MODEL}", "give the folder a model was saved to")
    damaged = InputError("path", f"{file} is damaged or not a model", "save the model again")
    try:
        tensors, description = read_tensors(file.read_bytes())
        found = description["format"]
    except (ValueError, KeyError, TypeError):
        raise damaged from None
    except OSError as error:
        raise InputError("path", f"cannot read {file} ({error.strerror})") from None
    if found != FORMAT:
        value = f"{file} has format {found}, this fairmp ({__version__}) reads {FORMAT}"
        raise InputError("path", value, OTHER_VERSION)
    return tensors, description


def _construct(
    make: Callable[..., Any], path: str | Path, config: Mapping[str, Any], **more: Any
) -> Any:
    """Call the constructor of a classifier with a config."""
    try:
        penalty = dict(config.get("strategy", {"name": "vanilla"}))
        # A strategy matters in training only: a model with one of the user's own still loads.
        strategy: Strategy = _STRATEGIES.get(penalty.pop("name"), lambda **_: Vanilla())(**penalty)
        propagation = rebuild(config.get("propagation"))
        return make(**{**config, "propagation": propagation, "strategy": strategy}, **more)
    except (TypeError, KeyError, AttributeError) as error:
        value = f"{path} describes a model this fairmp ({__version__}) cannot build ({error})"
        raise InputError("path", value, OTHER_VERSION) from None
