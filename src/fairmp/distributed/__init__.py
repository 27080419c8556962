"""The same layer over torch.distributed: a graph that does not fit one machine, trained exactly.

FMP touches other nodes in two places: the product Ã·F, whose rows are C numbers wide, and the gap
Δ·P, which is G'×C numbers in all. So nodes are sharded, the rows of F that other ranks need are
exchanged (:mod:`~fairmp.distributed.halo`), and what the gap adds up to is summed over ranks
(:mod:`~fairmp.distributed.groups`). Everything else is the code of one machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmp.distributed.checkpoints import FileCheckpoints
    from fairmp.distributed.loading import Shard, load_shard
    from fairmp.distributed.ranks import LostTouch, Ranks, SharedError
    from fairmp.distributed.shard_format import Manifest
    from fairmp.distributed.training import evaluate_shard, fit_shard, predict_shard
    from fairmp.distributed.writer import shard, shard_tables

__all__ = [
    "FileCheckpoints",
    "LostTouch",
    "Manifest",
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

_HOME = {
    "FileCheckpoints": "checkpoints",
    "Manifest": "shard_format",
    **dict.fromkeys(("LostTouch", "Ranks", "SharedError"), "ranks"),
    **dict.fromkeys(("Shard", "load_shard"), "loading"),
    **dict.fromkeys(("evaluate_shard", "fit_shard", "predict_shard"), "training"),
    **dict.fromkeys(("shard", "shard_tables"), "writer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairmp.distributed' has no attribute {name!r}")
    return getattr(import_module(f"fairmp.distributed.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
