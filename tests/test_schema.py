from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest

from fairmp.schema import conform


@dataclass(frozen=True)
class Part:
    name: str
    size: int
    weight: float | None = None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    kind: Literal["a", "b"]
    extra: dict[str, Any]


def test_dataclass_survives_json() -> None:
    whole = Whole((Part("x", 1), Part("y", 2, 0.5)), "b", {"any": [1, None]})
    assert conform(json.loads(json.dumps(asdict(whole))), Whole, "whole") == whole


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        (2**63, int),
        (1.0, int),
        (10**400, float),
        (float("nan"), float),
        (True, float),
        ("1", float | None),
        ("c", Literal["a", "b"]),
        ([1, "2"], list[int]),
        ({"a": "b"}, dict[str, int]),
        ("abc", tuple[str, ...]),
        (["name"], Part),
        ({"name": "x"}, Part),
        ({"name": 1, "size": 1}, Part),
    ],
)
def test_other_values_are_refused(value: object, hint: Any) -> None:
    with pytest.raises(ValueError, match=r"^\w+ is .+, not "):
        conform(value, hint, "field")


def test_error_names_the_innermost_field() -> None:
    with pytest.raises(ValueError, match=r"^size is 'big', not int"):
        conform({"parts": [{"name": "x", "size": "big"}]}, Whole, "whole")
