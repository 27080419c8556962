"""Corrections as files: JSON, whose content is checked before anything is built from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairmp._version import __version__
from fairmp.errors import InputError, check_choice, check_integer, shorten
from fairmp.nn.decisions import On, Ties
from fairmp.outputs import atomic_file
from fairmp.postprocessing import corrections
from fairmp.postprocessing.confidence import Promise
from fairmp.postprocessing.criteria import read_criteria
from fairmp.postprocessing.group_free import GroupFree
from fairmp.postprocessing.solver import Settings
from fairmp.schema import conform

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

Fitted = TypeVar("Fitted", bound="Debiaser")

FORMAT = "fairmp correction 2"
MAX_REASON = 200  # characters of an error
WRITTEN_BY = "write it with Debiaser.save(), or fairmp debias with {save}"
MAX_FILE_BYTES = 1 << 26
# What building a correction from a damaged record may raise; OverflowError from 10**400.
DAMAGE = (
    *(LookupError, ArithmeticError, TypeError, ValueError, AttributeError),
    RecursionError,
)
RECORD: dict[str, Any] = {
    "format": str,
    "params": dict[str, Any],
    "kind": str,
    "classes": list[str],
    "attributes": list[dict[str, Any]],
    "correction": dict[str, Any],
}
PARAMS: dict[str, Any] = {
    "criterion": str | list[str],
    "target": float | list[float] | dict[str, float],
    "on": On,
    "kind": str,
    "ties": Ties,
    "seed": int,
    "temperature": float,
    "calibrate": bool,
    "class_names": list[str] | None,
    "group_free": bool,
    "confidence": float | None,
}


def save(debiaser: Debiaser, path: str | os.PathLike[str]) -> None:
    """Write a correction and its effect on the fitting table.

    Nobody but its owner may read a file with people's features and groups.
    """
    result = debiaser.result_
    record = {**to_record(debiaser), "result": None if result is None else result.to_dict()}
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    correction = debiaser.correction_
    holds_people = isinstance(correction, GroupFree) and correction.people is not None
    with atomic_file(Path(path), private=holds_people) as draft:
        draft.write_text(text, encoding="utf-8")


def to_record(debiaser: Debiaser) -> dict[str, Any]:
    """A correction as plain JSON values."""
    correction, promise = debiaser.correction_, debiaser.promise_
    return {
        "format": FORMAT,
        "fairmp": __version__,
        "params": debiaser.get_params(),
        "kind": debiaser.kind_,
        "classes": list(debiaser.classes_),
        "attributes": [{"name": name, "groups": list(groups)} for name, groups in debiaser.groups_],
        "correction": correction.to_dict()
        if isinstance(correction, GroupFree)
        else corrections.to_dict(correction),
        "promise": None if promise is None else promise.to_dict(),
    }


def load(kind: type[Fitted], path: str | os.PathLike[str]) -> Fitted:
    """Read what :func:`save` wrote; raise if it is damaged."""
    try:
        return from_record(kind, read_record(path))
    except OSError as error:
        raise InputError("path", f"{path} cannot be read ({error.strerror})") from None
    except InputError as error:
        raise InputError("path", f"{path}: {error.value}", error.hint) from None
    except ValueError as error:
        value = f"{path}: not a correction ({shorten(str(error), MAX_REASON)})"
        raise InputError("path", value, WRITTEN_BY) from None


def from_record(kind: type[Fitted], record: Mapping[str, Any]) -> Fitted:
    """Rebuild what :func:`to_record` described."""
    try:
        check_record(record)
        check_choice("format", record["format"], [FORMAT])
        debiaser = kind(**record["params"])
        read_criteria(debiaser.criterion, debiaser.target)
        Settings(debiaser.on, debiaser.temperature, debiaser.ties)
        check_integer("seed", debiaser.seed, "give a whole number", low=0)
        debiaser.kind_ = check_choice("kind", record["kind"], ("logits", "probabilities"))
        debiaser.classes_ = tuple(record["classes"])
        debiaser.groups_ = [
            (attribute["name"], tuple(attribute["groups"])) for attribute in record["attributes"]
        ]
        count = sum(len(groups) for _, groups in debiaser.groups_)
        from_dict = GroupFree.from_dict if debiaser.group_free else corrections.from_dict
        debiaser.correction_ = from_dict(record["correction"], count, len(debiaser.classes_))
        promise = record.get("promise")
        debiaser.promise_ = None if promise is None else Promise.from_dict(promise)
    except DAMAGE as error:
        value = f"not a correction ({shorten(str(error), MAX_REASON)})"
        raise InputError("correction", value, WRITTEN_BY) from None
    debiaser.result_ = None
    return debiaser


def read_record(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; raise ``ValueError`` if it is damaged, too large or too deep."""
    size = os.stat(path).st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"it has {size:,} bytes")
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_record(record: Any) -> None:
    """Raise ``ValueError`` if a record has other types than a correction's, or repeated names."""
    content = conform(record, dict[str, Any], "the file")
    for name, expected in RECORD.items():
        conform(content.get(name), expected, name)
    for name, value in content["params"].items():
        conform(value, PARAMS.get(name, Any), name)
    names = [content["classes"]]
    for attribute in content["attributes"]:
        conform(attribute.get("name"), str, "name")
        names.append(conform(attribute.get("groups"), list[str], "groups"))
    if any(len(set(part)) < max(len(part), 2) for part in names):
        raise ValueError("a class or group is named twice, or there is only one")
