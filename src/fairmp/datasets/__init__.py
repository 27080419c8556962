"""Graphs to learn from: benchmarks, your own tables, the embedded network, and splits of any."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmp.datasets.edges import LoadReport
    from fairmp.datasets.encoding import Encoding
    from fairmp.datasets.graphs import (
        NBA,
        Bail,
        Credit,
        German,
        PokecN,
        PokecNGraph,
        PokecProvince,
        PokecZ,
        load,
    )
    from fairmp.datasets.splits import split
    from fairmp.datasets.synthetic import social_network
    from fairmp.datasets.tables import from_tables

__all__ = [
    "NBA",
    "Bail",
    "Credit",
    "Encoding",
    "German",
    "LoadReport",
    "PokecN",
    "PokecNGraph",
    "PokecProvince",
    "PokecZ",
    "from_tables",
    "load",
    "social_network",
    "split",
]

_HOME = {
    **dict.fromkeys(("NBA", "Bail", "Credit", "German", "load"), "graphs"),
    **dict.fromkeys(("PokecN", "PokecNGraph", "PokecProvince", "PokecZ"), "graphs"),
    "Encoding": "encoding",
    "LoadReport": "edges",
    "from_tables": "tables",
    "social_network": "synthetic",
    "split": "splits",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairmp.datasets' has no attribute {name!r}")
    return getattr(import_module(f"fairmp.datasets.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
