from __future__ import annotations

import json

import pytest

from fairmp import FairClassifier
from fairmp.datasets import social_network
from fairmp.training.run import Run, Trial, versions


@pytest.fixture(scope="module")
def run() -> Run:
    data = social_network(n=200, average_degree=6)
    return FairClassifier(None, backbone="logistic").fit(data, bootstrap=10).run_


def test_run_to_dict_has_everything_to_repeat_it(run: Run) -> None:
    record = json.loads(run.to_json())
    assert set(record["versions"]) == {"fairmp", "torch", "torch_geometric", "numpy"}
    assert record["versions"] == versions()
    assert (record["seed"], record["split_seed"]) == (0, None)
    assert record["config"]["backbone"] == "logistic"
    assert record["test"]["accuracy"] == run.test.accuracy
    assert record["tried"] == [run.tried[0].to_dict()]


def test_trial_to_dict_is_plain_json() -> None:
    trial = Trial("mlp", "features", gamma=(0.5, 1.0))
    assert json.loads(json.dumps(trial.to_dict()))["gamma"] == [0.5, 1.0]
