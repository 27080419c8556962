"""The same layer over torch.distributed: exact training on a graph that one machine cannot hold.

FMP touches other nodes in two places: the product Ã·F and the gap Δ·P. So nodes are sharded, rows
of F that other ranks need are exchanged (``loading``), and the sums behind the gap are added over
ranks (``ranks``). Everything else is the code of one machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmp.distributed.loading import Shard, load_shard
    from fairmp.distributed.ranks import RankLostError, Ranks, SharedError
    from fairmp.distributed.shard_format import Manifest
    from fairmp.distributed.training import (
        FileCheckpoints,
        evaluate_shard,
        fit_shard,
        predict_shard,
    )
    from fairmp.distributed.writer import shard, shard_tables

__all__ = [
    "FileCheckpoints",
    "Manifest",
    "RankLostError",
    "Ranks",
    "Shard",
    "SharedError",
    "evaluate_shard",
    "fit_shard",
    "load_shard",
    "predict_shard",
    "shard",
    "shard_tables",
]

_MODULES = {
    "shard_format": ("Manifest",),
    "ranks": ("RankLostError", "Ranks", "SharedError"),
    "loading": ("Shard", "load_shard"),
    "training": ("FileCheckpoints", "evaluate_shard", "fit_shard", "predict_shard"),
    "writer": ("shard", "shard_tables"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"fairmp.distributed.{module}"), name)
    raise AttributeError(f"module 'fairmp.distributed' has no attribute {name!r}")
