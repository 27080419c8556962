"""Model files: weights and their description in one safetensors file, never pickle.

A file may come from a stranger. Before anything is built from it, the header and the description
are held against tables of what they may contain, and the tensors against a network without memory
(on torch's ``meta`` device). A file that passes can still hold a bad model: the checksum shows
damage, and nothing shows who made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import torch
from torch import Tensor, nn

from fairmp import outputs
from fairmp._version import __version__
from fairmp.errors import InputError, plural
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import BACKBONES, ESTIMATORS, Network
from fairmp.schema import conform
from fairmp.training import blend as blends
from fairmp.training import estimators
from fairmp.training.blend import Blend
from fairmp.training.estimators import Classifier
from fairmp.training.fitted import FittedModel, floating_dtype
from fairmp.training.nodes import Names
from fairmp.training.penalties import Adversary, Regulariser, Strategy
from fairmp.training.run import versions

if TYPE_CHECKING:
    from fairmp.datasets.encoding import Encoding
    from fairmp.postprocessing.debiaser import Debiaser
    from fairmp.training.classifier import FairClassifier

FORMAT = 5
MODEL = "model.safetensors"
CLASSIFIERS = "classifiers"  # of scikit-learn, as bytes
GROUP = "group_"  # what belongs to the network that estimates groups
KEEP_STATE = "save model.network_.state_dict() with torch instead"
GRAPH_CONTENT = "ids, groups, features, edges and scores of everyone (graph.npz)"
NOTHING = "The model folder holds no ids, labels, groups or edges of people in training."
OTHER_VERSION, SAVE_AGAIN = "use the version that saved it", "save the model again"

PROPAGATIONS: dict[str, type[PPR]] = {"FMP": FMP, "PPR": PPR}
STRATEGIES: dict[str, type[Strategy]] = {
    "regulariser": Regulariser,
    "adversary": Adversary,
}
MAX_STEPS = 10_000
MAX_LAYERS = 100  # or as many as there are tensors
MAX_WIDTH = 10_000  # or as many as there are numbers
NAMES = ("classes", "groups", "features")
MEMBER_FIELDS = 4  # of a blend: name, view, fold and kind
SCHEMA: dict[str, Any] = {
    "format": int,
    "versions": dict[str, str],
    "config": dict[str, Any],
    **dict.fromkeys(NAMES, list[str]),
    "encoding": dict[str, Any] | None,
    "correction": dict[str, Any] | None,
    "blend": dict[str, list[list[str | int]]] | None,
    "group_blend": dict[str, list[list[str | int]]] | None,
}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], description: object, *, private: bool = False
) -> None:
    """Write tensors and a description (JSON) to one file; a crash leaves the old one or the new.

    Nobody but its owner may read a ``private`` file.
    """
    from safetensors.torch import save

    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(description, ensure_ascii=False)
    # One entry: the order of several is random, and equal models should be equal files.
    metadata = {"fairmp": f"{_digest(tensors, text)} {text}"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with outputs.atomic_file(path, private=private) as draft:
        draft.write_bytes(save(tensors, metadata))


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def rebuild_propagation(description: Mapping[str, Any] | None) -> nn.Module | None:
    """Make the propagation that was described."""
    if description is None:
        return None
    arguments = dict(description)
    name = arguments.pop("name")
    if name not in PROPAGATIONS:
        value = f"{name!r} is not one of fairmp's ({', '.join(PROPAGATIONS)})"
        raise InputError("propagation", value, "save a model with another propagation yourself")
    return PROPAGATIONS[name](**arguments)


def _check_savable(model: FairClassifier) -> None:
    """Refuse parts that a file cannot describe: a layer, a solver or a penalty of the user's."""
    layer, penalty = model.propagation, model.strategy
    if layer is not None and type(layer) not in PROPAGATIONS.values():
        value = f"{type(layer).__name__} is not one of fairmp's ({', '.join(PROPAGATIONS)})"
        raise InputError("propagation", value, "save a model with another propagation yourself")
    if isinstance(layer, FMP) and callable(layer.solver):
        raise InputError("solver", "a function cannot be saved", KEEP_STATE)
    if penalty is not None and type(penalty) not in STRATEGIES.values():
        value = f"{type(penalty).__name__} is a penalty of yours, which cannot be saved"
        raise InputError("strategy", value, KEEP_STATE)


def rebuild_strategy(description: Mapping[str, Any]) -> Strategy | None:
    """Make the strategy that was described, if there was one."""
    arguments = dict(description)
    strategy = STRATEGIES.get(arguments.pop("name", ""))
    return None if strategy is None else strategy(**arguments)


def save(path: str | Path, model: FairClassifier, *, overwrite: bool) -> Path:
    """Write a fitted classifier to a folder."""
    config, fitted = model.config(), model.fitted_
    _check_savable(model)
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError("path", f"{folder} is a file", "give the name of a folder")
    file = folder / MODEL
    if file.exists() and not overwrite:
        raise InputError("path", f"{file} exists", "give another folder, or add {overwrite=True}")
    tensors = {f"network.{name}": t for name, t in fitted.network.state_dict().items()}
    if fitted.group_duals is not None:
        tensors["group_duals"] = fitted.group_duals
    description = {
        "format": FORMAT,
        "versions": versions(),
        "config": config,
        **{name: getattr(fitted.names, name) for name in NAMES},
        "encoding": None if model.encoding_ is None else model.encoding_.to_dict(),
        "correction": None if fitted.debiaser is None else fitted.debiaser.to_dict(),
    }
    _describe_blend(fitted.network, tensors, description)
    if fitted.group_network is not None:
        state = fitted.group_network.state_dict()
        tensors |= {f"{GROUP}network.{name}": t for name, t in state.items()}
        _describe_blend(fitted.group_network, tensors, description, GROUP)
    write_tensors(file, tensors, description, private=bool(personal_data(fitted)))
    return folder


def _describe_blend(
    network: Network,
    tensors: dict[str, Tensor],
    description: dict[str, Any],
    prefix: str = "",
) -> None:
    """Add the members of a blend to a file, and its scikit-learn classifiers."""
    transform = network.transform
    if isinstance(transform, Blend):
        description[f"{prefix}blend"] = transform.describe()
        if transform.classifiers:
            tensors[f"{prefix}{CLASSIFIERS}"] = estimators.to_bytes(transform.classifiers)


def load(
    kind: type[FairClassifier],
    path: str | Path,
    *,
    device: str | torch.device,
    trust: bool = False,
    backbone: nn.Module | None = None,
) -> FairClassifier:
    """Read a classifier from its folder."""
    tensors, description = read(path)
    contents = {prefix: tensors.pop(f"{prefix}{CLASSIFIERS}", None) for prefix in ("", GROUP)}
    try:
        _check_description(description, tensors, kind)
    except ValueError as error:
        raise InputError("path", f"{path} describes no model: {error}", OTHER_VERSION) from None
    config, blend = description["config"], description.get("blend")
    model = _unfitted(kind, path, config, device)
    classifiers = {
        prefix: {} if content is None else estimators.from_bytes(content, str(path), trust=trust)
        for prefix, content in contents.items()
    }
    model.backbone = _backbone(path, config.get("backbone"), blend, classifiers[""], backbone)
    names = Names(**{name: description[name] for name in NAMES})
    try:
        saved = nn.Module()
        saved.network = _empty(model, names, names.classes, blend, tensors, classifiers[""])
        if isinstance(layer := model.network_settings.propagation, FMP):
            shape = layer.K, len(names.groups), len(names.classes)
            saved.register_buffer("group_duals", torch.empty(shape, device="meta"))
        if model.group_free:
            group_blend = description[f"{GROUP}blend"]
            saved.group_network = _empty(
                model, names, names.groups, group_blend, tensors, classifiers[GROUP], GROUP
            )
        _check_tensors(saved, tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        value = f"the weights in {path} do not match their description: {error}"
        raise InputError("path", value, SAVE_AGAIN) from None
    saved.load_state_dict(tensors, assign=True)
    saved = saved.to(model.device, floating_dtype(saved)).eval()
    duals, correction = tensors.get("group_duals"), description.get("correction")
    if model.corrects_rows and correction is None:
        raise InputError("path", f"{path} has no correction", SAVE_AGAIN)
    fitted = FittedModel(
        cast(Network, saved.network),
        names,
        model.on,
        torch.device(model.device),
        None if duals is None else duals.to(model.device),
        None if correction is None else _debiaser(correction, path),
        cast(Network, saved.group_network) if model.group_free else None,
    )
    model.adopt(fitted)
    model.encoding_ = _encoding(description.get("encoding"), names)
    return model


def _unfitted(
    kind: type[FairClassifier],
    path: str | Path,
    config: Mapping[str, Any],
    device: str | torch.device,
) -> FairClassifier:
    """Make the classifier with the arguments that were described, except for its backbone."""
    try:
        arguments = {
            **config,
            "propagation": rebuild_propagation(config.get("propagation")),
            "strategy": rebuild_strategy(config.get("strategy", {})),
            "backbone": "auto",
        }
        return kind(**arguments, device=device)
    except (TypeError, KeyError, AttributeError) as error:
        value = f"{path} describes a model this fairmp ({__version__}) cannot build ({error})"
        raise InputError("path", value, OTHER_VERSION) from None


def _backbone(
    path: str | Path,
    name: str,
    blend: Mapping[str, Any] | None,
    classifiers: Mapping[int, Classifier],
    module: nn.Module | None,
) -> str | nn.Module | Classifier:
    """Return the backbone of a saved model: its name, the user's module, or the classifier."""
    networks = [name]
    if blend is not None:
        networks = [member[0] for member in blend["members"] if member[-1] == "network"]
    needs_module = not all(network in BACKBONES for network in networks)
    if needs_module and module is None:
        value = f"{path} was trained with a module of your own, {name}"
        raise InputError("backbone", value, f"FairClassifier.load({str(path)!r}, backbone=…)")
    if module is not None and not needs_module:
        raise InputError("backbone", f"{path} has a backbone, {name}", "leave it out")
    if module is not None:
        return module
    return name if name in ("auto", *BACKBONES, *ESTIMATORS) else classifiers.get(0, name)


def _empty(
    model: FairClassifier,
    names: Names,
    classes: Sequence[str],
    blend: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    classifiers: Mapping[int, Classifier],
    prefix: str = "",
) -> Network:
    """Build a network of a classifier without memory: that of the labels, or of the groups."""
    settings, module = model.network_settings, model.backbone
    num_features, num_classes = len(names.features), len(classes)

    def transform_of(name: str, columns: int) -> nn.Module:
        backbone = module if isinstance(module, nn.Module) else name
        with torch.device("meta"):
            return settings.build(backbone, columns, num_classes).transform

    with torch.device("meta"):
        backbone = "mlp" if blend is not None else module
        network = settings.build(backbone, num_features, num_classes)  # type: ignore[arg-type]
        if f"{prefix}network.calibration" in tensors:
            network.calibration = torch.empty(1 + num_classes)
    if blend is not None:
        start = f"{prefix}network.transform."
        state = {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
        network.transform = blends.rebuild(
            blend, state, num_features, num_classes, transform_of, classifiers
        )
    return network


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
        file_format = description["format"]
    except (SafetensorError, RecursionError, ValueError, KeyError, TypeError):
        value = f"{file} is damaged or not a model"
        raise InputError("path", value, SAVE_AGAIN) from None
    except OSError as error:
        raise InputError("path", f"cannot read {file} ({error.strerror})") from None
    if file_format != FORMAT:
        value = f"{file} has format {file_format}, this fairmp ({__version__}) reads {FORMAT}"
        raise InputError("path", value, OTHER_VERSION)
    return tensors, description


def _check_description(
    description: object, tensors: Mapping[str, Tensor], kind: type[FairClassifier]
) -> None:
    """Raise ``ValueError`` if a description is not one of a classifier of this kind and size."""
    content = conform(description, dict[str, Any], "description")
    for name, expected in SCHEMA.items():
        conform(content.get(name), expected, name)
    for name in NAMES:
        if not content[name]:
            raise ValueError(f"{name} is empty")
    for blend in filter(None, (content.get("blend"), content.get(f"{GROUP}blend"))):
        members = blend.get("members", [])
        if not members or any(len(member) != MEMBER_FIELDS for member in members):
            raise ValueError("blend has no members, or one without name, view, fold and kind")
    config, hints = content["config"], get_type_hints(kind) | {"backbone": str}
    settings = dict(config)
    for name in ("propagation", "strategy"):
        part = conform(settings.pop(name, None) or {}, dict[str, Any], name)
        conform(part.get("name"), str | None, "name")
        _check_sizes(part, tensors)
    for name, value in settings.items():
        if name in hints:
            conform(value, hints[name], name)
    _check_sizes(settings, tensors)


def _check_sizes(arguments: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if a layer is larger than the file has room for."""
    limits = {
        "num_layers": max(MAX_LAYERS, len(tensors)),
        "hidden": max(MAX_WIDTH, sum(tensor.numel() for tensor in tensors.values())),
        "K": MAX_STEPS,
    }
    for name, limit in limits.items():
        value = arguments.get(name)
        if isinstance(value, int) and value > limit:
            raise ValueError(f"{name} is {value:,}, more than the file has room for")


def _check_tensors(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if tensors are not finite, or not those of a network on ``meta``."""
    state = network.state_dict()
    needed, saved = ({k: tuple(t.shape) for k, t in part.items()} for part in (state, tensors))
    for name in sorted({*needed, *saved}):
        if needed.get(name) != saved.get(name):
            has, needs = saved.get(name, "nothing"), needed.get(name, "nothing")
            raise ValueError(f"{name!r} is {has}, and {needs} is needed")
        if tensors[name].is_floating_point() != state[name].is_floating_point():
            raise ValueError(f"{name!r} holds {tensors[name].dtype}")
        if not bool(torch.isfinite(tensors[name]).all()):
            raise ValueError(f"{name!r} has values that are not finite")


def _debiaser(description: dict[str, Any], path: str | Path) -> Debiaser:
    """Make the correction that was described."""
    from fairmp.postprocessing.debiaser import Debiaser

    try:
        return Debiaser.from_dict(description)
    except InputError as error:
        raise InputError("path", f"{path}: {error.value}", "save the model again") from None


def _encoding(description: dict[str, Any] | None, names: Names) -> Encoding | None:
    """Make the encoding that was described; raise if it makes another number of anything."""
    if description is None:
        return None
    from fairmp.datasets.encoding import Encoding

    encoding = Encoding.from_dict(description)
    sizes = {
        "features": len(encoding.feature_names),
        "classes": len(encoding.label.classes),
        "groups": len(encoding.groups),
    }
    for name, size in sizes.items():
        if size != len(getattr(names, name)):
            value = f"it makes {size} {name}, and the model has {len(getattr(names, name))}"
            raise InputError("encoding", value, SAVE_AGAIN)
    return encoding


def personal_data(fitted: FittedModel, *, graph: bool = False) -> list[str]:
    """Say what a model's files hold of single people; ``graph`` if its graph is stored too.

    Models that read the neighbourhood need the labels of training nodes, models that read the edges
    learn a number for each of them, and estimates of the groups may need their known groups.
    """
    parts = [*_stored_people(fitted.network, "labels")]
    if fitted.group_network is not None:
        parts += _stored_people(fitted.group_network, "groups")
    return [*parts, GRAPH_CONTENT] if graph else parts


def held_sentence(parts: list[str]) -> str:
    """What :func:`personal_data` found, as a sentence."""
    if not parts:
        return NOTHING
    return f"The model folder holds data of people: {'; '.join(parts)}. Keep it as you keep them."


def _stored_people(network: Network, what: str) -> list[str]:
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
