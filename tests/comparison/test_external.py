"""Methods of others in a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from fairmp.comparison import compare
from fairmp.comparison.external import load_method
from fairmp.comparison.grid import METHODS, RunSpec, Setting, run_specs
from fairmp.comparison.summary import compared
from fairmp.datasets import social_network
from fairmp.errors import InputError

HERE = "tests.comparison.test_external"


class Majority:
    """Decides by the majority of the group's training labels."""

    def fit(self, data: Data) -> Majority:
        assert bool((data.y[data.test_mask] == -1).all())
        train = data.train_mask
        self.rates = [float(data.y[train & (data.sens == g)].double().mean()) for g in (0, 1)]
        return self

    def predict_proba(self, data: Data) -> np.ndarray:
        return np.array(self.rates)[data.sens.numpy()]


class TooFewRows(Majority):
    def predict_proba(self, data: Data) -> torch.Tensor:
        return torch.rand(3, requires_grad=True)


def graph(name: str) -> Data:
    return social_network(n=300, seed=0)


def test_external_method_is_compared_with_ours(tmp_path: Path) -> None:
    methods = ["mlp", f"{HERE}:Majority", f"{HERE}:TooFewRows"]
    setting = Setting(epochs=2, hidden=4)
    specs = run_specs(["embedded"], methods, ["vanilla", "per-node"], splits=2, setting=setting)
    assert [spec.family for spec in specs[::2]] == ["MLP", "Majority", "TooFewRows"]
    assert RunSpec.from_dict(specs[2].to_dict()) == specs[2]
    records = compare.run(specs, graph, tmp_path / "records.jsonl")
    failed = {record["name"] for record in records if "failed" in record}
    assert failed == {"TooFewRows"}
    first, second = (record for record in records if record["name"] == "Majority")
    data = graph("")
    assert first["run"]["test"]["n"] == second["run"]["test"]["n"] > 0
    assert 0.3 < first["run"]["test"]["accuracy"] < 1
    assert data.num_nodes == 300
    assert any(line.name == "Majority" for line in compared(records).lines["embedded network"])
    assert compare.missing(specs, records) == []


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("nowhere.at_all:Name", "cannot be imported"),
        (f"{HERE}:Nothing", "cannot be imported"),
        (f"{HERE}:HERE", "has no fit"),
        (f"{HERE}:graph", "has no fit"),
        (":Name", "is not package.module:Name"),
        ("json:", "is not package.module:Name"),
    ],
)
def test_wrong_method_is_refused_before_anything_is_trained(method: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_method(method)
    with pytest.raises(InputError, match=words):
        run_specs(["embedded"], [method], ["vanilla"], splits=1)


def test_unknown_names_are_still_refused() -> None:
    with pytest.raises(InputError, match="methods"):
        run_specs(["embedded"], ["mpl"], ["vanilla"], splits=1)
    assert "auto" in METHODS
