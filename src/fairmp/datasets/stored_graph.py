"""The training graph beside a model, so that new nodes can use their edges to it.

The file has the encoded features, the groups, the ids and each edge once, compressed; no labels.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.cache import narrow, read_npz, write_npz
from fairmp.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fairmp.datasets.encoding import Encoding, Features

FILE = "graph.npz"
TRAIN_AGAIN = "train again, or leave it out with {graph=False}"


@dataclass(frozen=True)
class StoredGraph:
    """What prediction needs of a training graph."""

    x: Features
    sens: np.ndarray
    ids: np.ndarray
    edges: np.ndarray  # 2×m, each edge once

    @classmethod
    def load(cls, path: Path, encoding: Encoding) -> StoredGraph:
        """Read what :func:`save_graph` wrote for a model with this encoding."""
        import scipy.sparse as sp

        try:
            arrays = read_npz(path).arrays
            x, sens, ids, edges = (arrays[name] for name in ("x", "sens", "ids", "edges"))
            shape = len(ids), len(encoding.feature_names)
            if "places" in arrays:
                x = sp.csr_array((x, tuple(arrays["places"])), shape=shape)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            value = f"{path} cannot be read ({error})"
            raise InputError("graph", value, TRAIN_AGAIN) from None
        if x.shape != shape or len(ids) != len(sens):
            raise InputError("graph", f"{path} is of another model", TRAIN_AGAIN)
        return cls(x, sens, ids, edges)


def save_graph(data: Data, folder: Path) -> Path:
    """Store the training graph, made by :func:`from_tables`, with the model."""
    ids = data.__dict__["ids"].to_numpy(zero_copy_only=False)
    edges = data.edge_index.numpy()
    arrays = {
        "x": (data.x.values() if data.x.is_sparse else data.x).numpy(),
        "sens": narrow(data.sens.numpy()),
        "ids": ids.astype(str) if ids.dtype == object else ids,
        "edges": narrow(edges[:, edges[0] < edges[1]]),
    }
    if data.x.is_sparse:
        arrays["places"] = data.x.indices().numpy().astype(np.int32)
    write_npz(folder / FILE, arrays, {"nodes": len(ids)}, compress=True)
    return folder / FILE


def count_stored(path: Path, ids: Any) -> int:
    """Count the ids (a pyarrow array) that are in a stored graph."""
    import pyarrow as pa

    from fairmp.datasets.ids import comparable, positions

    wanted, stored = comparable(ids, pa.array(read_npz(path).arrays["ids"]))
    return int((positions(stored, wanted) >= 0).sum())
