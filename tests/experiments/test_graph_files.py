from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import graph_files
from fairmp.datasets import social_network
from fairmp.errors import InputError


def test_saved_graph_is_loaded_unchanged(tmp_path: Path) -> None:
    data = social_network(n=240, average_degree=6)
    loaded = graph_files.load(graph_files.save(data, tmp_path / "g.npz"))
    for name in ("x", "edge_index", "y", "sens"):
        assert torch.equal(loaded[name], data[name])
    assert (loaded.name, loaded.group_names) == (data.name, data.group_names)
    assert "train_mask" not in loaded
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="path: "):
        graph_files.load(tmp_path / "bad.npz")
    with pytest.raises(InputError, match="path: "):
        graph_files.from_npz("nba", tmp_path)
