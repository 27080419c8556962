from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from experiments import ROOT, graph_files
from fairmp.datasets import social_network
from fairmp.datasets.by_name import from_files
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


def test_contents_depend_on_every_tensor() -> None:
    data = social_network(n=240, average_degree=6)
    before = graph_files.contents(data)
    for name in ("x", "edge_index", "y", "sens", "train_mask"):
        changed = data.clone()
        changed[name] = data[name].clone()
        first = (0,) * data[name].dim()
        changed[name][first] = 1 - data[name][first].float()
        assert graph_files.contents(changed) != before


@pytest.mark.skipif("FAIRMP_DATA" not in os.environ, reason="needs the data sets' raw files")
@pytest.mark.parametrize("name", graph_files.RECORDED)
def test_records_graphs_are_what_is_read(name: str) -> None:
    recorded = json.loads((ROOT / "benchmarks" / "graphs.json").read_text("utf8"))[name]
    found = graph_files.contents(from_files(name, None))
    for key in ("mean_square", "weighted_features"):
        assert found.pop(key) == pytest.approx(recorded.pop(key), rel=1e-4, abs=1e-3)
    assert found == recorded
