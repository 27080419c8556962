"""Graphs in ``.npz`` files, for machines without pandas and the raw data.

``python -m experiments.graph_files FOLDER`` writes the seven graphs of the documentation.
``python -m experiments.graph_files --contents benchmarks/graphs.json`` writes what the records'
graphs contain. A test compares it with what is read, so code that reads files decides no record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from experiments.committed import TITLES
from fairmp.datasets.by_name import from_files, with_protocol
from fairmp.datasets.cache import read_npz, write_npz
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError

TENSORS = ("x", "edge_index", "y", "sens", "edge_weight")
RECORDED = (*TITLES, "nba+fairgnn", "german+nifty", "bail+nifty", "credit+nifty")
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
        hint = "write it with python -m experiments.graph_files"
        raise InputError("path", f"there is no {path}", hint) from None
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


@lru_cache(maxsize=2)
def read_graph(name: str, npz: Path | None, data_dir: Path | None) -> Data:
    """Read a graph from a folder of ``.npz`` files, or from its own files."""
    return from_files(name, data_dir) if npz is None else from_npz(name, npz)


def contents(data: Data) -> dict[str, Any]:
    """Checksums of edges, labels, groups and masks, and sums of features, by entry.

    Features are scaled, so their last digits may depend on the processor.
    """
    n, columns = data.x.shape
    x = data.x.to_dense().double()
    weights = torch.arange(n).double().cos() @ x @ torch.arange(columns).double().cos()
    whole = [name for name in ("edge_index", "y", "sens", *MASKS) if name in data]
    return {
        "nodes": n,
        "features": columns,
        **{name: hashlib.sha256(data[name].numpy().tobytes()).hexdigest()[:16] for name in whole},
        "mean_square": float(f"{float(x.square().mean()):.6g}"),
        "weighted_features": float(f"{float(weights):.6g}"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Write graphs to a folder, or what they contain."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("graphs", nargs="*", default=list(TITLES))
    parser.add_argument("--contents", type=Path, help="file for what the graphs contain")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args(arguments)
    if options.contents:
        found = {name: contents(from_files(name, options.data_dir)) for name in RECORDED}
        options.contents.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.folder is None:
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.graphs:
        print(save(from_files(name, options.data_dir), options.folder / f"{name}.npz"))


if __name__ == "__main__":
    main()
