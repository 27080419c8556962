"""What the file of a correction may hold, checked before anything is built from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fairmp.nn.decisions import On, Ties
from fairmp.schema import conform

MAX_FILE_BYTES = 1 << 26
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
