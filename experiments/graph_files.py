"""Graphs in ``.npz`` files, for machines without pandas and the raw data.

``python -m benchmarks.defaults --save FOLDER`` writes them.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch_geometric.data import Data

from fairmp.datasets.by_name import with_protocol
from fairmp.datasets.cache import read_npz, write_npz
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError

TENSORS = ("x", "edge_index", "y", "sens", "edge_weight")
NAMES = ("name", "protocol", "feature_names", "class_names", "group_names")


def save(data: Data, path: str | Path) -> Path:
    """Write a graph, with its masks if they are a protocol's."""
    path = Path(path)
    tensors = (*TENSORS, *MASKS) if "protocol" in data else TENSORS
    names = {name: data[name] for name in NAMES if name in data}
    arrays = {name: data[name].cpu().numpy() for name in tensors if name in data}
    write_npz(path, arrays, {"name": path.stem, **names}, compress=True)
    return path


def load(path: str | Path) -> Data:
    """Read a graph written by :func:`save`."""
    try:
        arrays, names = read_npz(Path(path))
    except FileNotFoundError:
        raise InputError("path", f"there is no {path}", "write it with defaults.py") from None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise InputError("path", f"{path} is not a graph ({error})", "write it again") from None
    return Data(**{name: torch.from_numpy(array) for name, array in arrays.items()}, **names)


def from_npz(name: str, folder: str | Path) -> Data:
    """Read the graph ``name`` from a folder, and apply the name's protocol."""
    path = Path(folder) / f"{name}.npz"
    base, _, protocol = name.partition("+")
    if protocol == "fairgnn" and not path.exists():
        return with_protocol(load(path.with_name(f"{base}.npz")), protocol)
    return load(path)
