"""Model files: weights and their description in one safetensors file, never pickle.

A file may come from a stranger. Before anything is built from it, the header and the description
are held against tables of what they may contain, and the tensors against a network without memory
(on torch's ``meta`` device). A file that passes can still hold a bad model: the checksum shows
damage, and nothing shows who made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import torch
from torch import Tensor, nn

from fairmp import outputs
from fairmp._version import __version__
from fairmp.errors import InputError, conform
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import BACKBONES
from fairmp.training import blend as blends
from fairmp.training.loop import needs_groups, versions
from fairmp.training.penalties import Adversary, Lagrangian, Regulariser, Vanilla

if TYPE_CHECKING:
    from fairmp.datasets.encoding import Encoding

FORMAT = 2
MODEL = "model.safetensors"
Model = TypeVar("Model")
OTHER_VERSION = "use the version that saved it"

_PROPAGATIONS = {"FMP": FMP, "PPR": PPR}
_STRATEGIES = {"regulariser": Regulariser, "adversary": Adversary, "lagrangian": Lagrangian}
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


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
    make: Callable[..., Model],
    path: str | Path,
    *,
    device: str | torch.device,
    trust: bool = False,
    backbone: nn.Module | None = None,
) -> Model:
    """Read a classifier from its folder."""
    tensors, description = read(path)
    try:
        _check_description(description, tensors, cast(type, make))
    except ValueError as error:
        raise InputError("path", f"{path} describes no model: {error}", OTHER_VERSION) from None
    config, blend = description["config"], description.get("blend")
    own = {} if blend is None else blends.load_estimators(Path(path), blend, trust)
    penalty = {"name": "vanilla", **config.get("strategy", {})}
    # A strategy matters in training only: a model with one of the user's own still loads.
    strategy: Any = _STRATEGIES.get(penalty.pop("name"), lambda **_: Vanilla())
    try:
        parts = {"strategy": strategy(**penalty), "propagation": rebuild(config.get("propagation"))}
        model: Any = make(**{**config, **parts, "backbone": "auto"}, device=device)
    except (TypeError, KeyError, AttributeError) as error:
        value = f"{path} describes a model this fairmp ({__version__}) cannot build ({error})"
        raise InputError("path", value, OTHER_VERSION) from None
    model.backbone = own.get(0, _backbone(path, config.get("backbone"), blend, backbone))
    for name in NAMES:
        setattr(model, f"{name}_", description[name])
    encoding, correction = description.get("encoding"), description.get("correction")
    if correction is not None:
        from fairmp.postprocessing.debiaser import Debiaser

        model.debiaser_ = Debiaser.from_dict(correction, str(path))
    try:
        saved = _empty(model, blend, tensors, own)
        _check_tensors(saved, tensors)
    except (ValueError, KeyError) as error:
        value = f"the weights in {path} do not match their description: {error}"
        raise InputError("path", value, "save the model again") from None
    if encoding is not None:
        from fairmp.datasets.encoding import Encoding

        model.encoding_ = Encoding.from_dict(encoding)
        _check_encoding(model.encoding_, model)
    saved.load_state_dict(tensors, assign=True)
    model.network_ = cast(nn.Module, saved.network).to(model.device, float_type(tensors)).eval()
    duals = tensors.get("group_duals")
    model.group_duals_ = None if duals is None else duals.to(model.device)
    return model


def _backbone(path: str | Path, saved: Any, blend: Any, given: nn.Module | None) -> Any:
    """Return the backbone of a saved model: its name, or the module given if it has one."""
    networks = [m[0] for m in blend["members"] if m[-1] == "network"] if blend else [saved]
    if all(name in BACKBONES for name in networks) == (given is None):
        return saved if given is None else given
    if given is None:
        value = f"{path} was trained with a module of your own, {saved}"
        raise InputError("backbone", value, f"FairClassifier.load({str(path)!r}, backbone=…)")
    raise InputError("backbone", f"{path} has a backbone, {saved}", "leave it out")


def _empty(
    model: Any, blend: dict[str, Any] | None, tensors: Mapping[str, Tensor], own: dict[int, Any]
) -> nn.Module:
    """Build the network of a classifier and the buffers saved beside it, without memory."""
    sizes, prefix = (len(model.features_), len(model.classes_)), "network.transform."
    saved, transform = nn.Module(), None
    if blend is not None:
        state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        def build(name: str, columns: int) -> nn.Module:
            module = model.backbone if isinstance(model.backbone, nn.Module) else name
            return cast(nn.Module, model._build(columns, module).transform)

        transform = blends.rebuild(blend, state, *sizes, build, own)
    with torch.device("meta"):
        backbone = model.backbone if transform is None else "mlp"
        saved.network = network = model._build(sizes[0], backbone)
        network.transform = transform or network.transform
        if "network.calibration" in tensors:
            network.calibration = torch.empty(1 + sizes[1])
        if needs_groups(layer := network.propagation):
            shape = layer.K, len(model.groups_), sizes[1]
            saved.register_buffer("group_duals", torch.empty(shape))
    return saved


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the description of a model from its folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    file = Path(path) / MODEL
    if not file.is_file():
        raise InputError("path", f"{path} has no {MODEL}", "give the folder a model was saved to")
    try:
        content = file.read_bytes()
        tensors = load(content)  # checks the header, too
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        digest, _, text = header["__metadata__"]["fairmp"].partition(" ")
        if digest != _digest(tensors, text):
            raise ValueError("the checksum does not match")
        description = json.loads(text)
        found = description["format"]
    except (SafetensorError, RecursionError, ValueError, KeyError, TypeError):
        value = f"{file} is damaged or not a model"
        raise InputError("path", value, "save the model again") from None
    except OSError as error:
        raise InputError("path", f"cannot read {file} ({error.strerror})") from None
    if found != FORMAT:
        value = f"{file} has format {found}, this fairmp ({__version__}) reads {FORMAT}"
        raise InputError("path", value, OTHER_VERSION)
    return tensors, description


def _check_description(description: Any, tensors: Mapping[str, Tensor], kind: type) -> None:
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
    parts = [config.get(name) or {} for name in ("propagation", "strategy")]
    for part in parts:
        conform(conform(part, dict[str, Any], "propagation").get("name"), str | None, "name")
    for name, value in config.items():
        if name in hints and name not in ("propagation", "strategy"):
            conform(value, hints[name], name)
    for name, value in {**config, **parts[0], **parts[1]}.items():
        if name in limits and isinstance(value, int) and value > limits[name]:
            raise ValueError(f"{name} is {value:,}, more than the file has room for")


def _check_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if tensors are not finite, or not those of a network on ``meta``."""
    state = network.state_dict()
    expected, found = ({k: tuple(t.shape) for k, t in part.items()} for part in (state, tensors))
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            has, needs = found.get(name, "nothing"), expected.get(name, "nothing")
            raise ValueError(f"{name!r} is {has}, and {needs} is needed")
        if tensors[name].is_floating_point() != state[name].is_floating_point():
            raise ValueError(f"{name!r} holds {tensors[name].dtype}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{name!r} has values that are not finite")


def _check_encoding(encoding: Encoding, model: Any) -> None:
    """Raise if an encoding makes other features, classes or groups than the model has."""
    sizes = len(encoding.feature_names), len(encoding.label.classes), len(encoding.groups)
    for name, made in zip(("features", "classes", "groups"), sizes, strict=True):
        known = len(getattr(model, f"{name}_"))
        if made != known:
            value = f"it makes {made} {name}, and the model has {known}"
            raise InputError("encoding", value, "save the model again")
