"""Benchmark graphs, your own tables, generated networks, and splits of their nodes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmp.datasets.encoding import Encoding
    from fairmp.datasets.graphs import (
        NBA,
        Bail,
        BailWithoutTime,
        Credit,
        Facebook100,
        German,
        PokecN,
        PokecNGraph,
        PokecProvince,
        PokecZ,
        load,
    )
    from fairmp.datasets.load_report import LoadReport
    from fairmp.datasets.splits import split
    from fairmp.datasets.synthetic import social_network
    from fairmp.datasets.tables import from_tables
    from fairmp.datasets.transforms import SensitiveColumn

__all__ = ["NBA", "Bail", "BailWithoutTime", "Credit", "Encoding", "Facebook100", "German"]
__all__ += ["LoadReport", "PokecN", "PokecNGraph", "PokecProvince", "PokecZ", "from_tables"]
__all__ += ["SensitiveColumn", "load", "social_network", "split"]

_MODULES = {
    "Encoding": "encoding",
    "LoadReport": "load_report",
    "SensitiveColumn": "transforms",
    "from_tables": "tables",
    "social_network": "synthetic",
    "split": "splits",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the benchmark graphs subclass a PyG class, which is slow to import.
    if name not in __all__:
        raise AttributeError(f"module 'fairmp.datasets' has no attribute {name!r}")
    return getattr(import_module(f"fairmp.datasets.{_MODULES.get(name, 'graphs')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
