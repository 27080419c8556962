from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from fairmp.comparison.grid import (
    METHODS,
    PENALTIES,
    TARGETS,
    RunSpec,
    Setting,
    classifier,
    parse_names,
    parse_strengths,
    run_specs,
    trainings,
)
from fairmp.errors import InputError
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Regulariser


def test_keys_differ_between_runs() -> None:
    spec = RunSpec("nba", "fmp", "vanilla", 0.02, split=3)
    assert spec.key == replace(spec).key != replace(spec, seed=1).key
    grid = run_specs(["nba", "bail"], strengths="all", splits=2, seeds=2)
    assert len({spec.key for spec in grid}) == len(grid)


def test_default_setting_is_that_of_training() -> None:
    ours, theirs = (vars(model) for model in (classifier(RunSpec("nba", "auto")), FairClassifier()))
    assert str(ours.pop("propagation")) == str(theirs.pop("propagation"))
    assert ours == theirs


def test_key_is_that_of_records_before_newer_settings() -> None:
    old = RunSpec("nba", "fmp", setting=Setting(patience=None))
    assert classifier(old).patience is None
    stored = json.loads(json.dumps(old.to_dict()))
    assert RunSpec.from_dict(stored) == old
    for name, value in (("patience", None), ("calibrate", True)):
        assert stored["setting"].pop(name) is value
    assert stored["setting"]["predict_temperature"] == "decisions"
    assert RunSpec.from_dict(stored) == old
    text = json.dumps(stored, sort_keys=True).encode()
    assert old.key == hashlib.sha256(text).hexdigest()[:20]
    for change in ({"patience": 7}, {"calibrate": False}):
        assert replace(old, setting=replace(old.setting, **change)).key != old.key


def test_grid_has_every_strength() -> None:
    grid = run_specs(["nba"], strengths="all", splits=1)
    penalties = sum(map(len, PENALTIES.values()))
    plain, fair = 1 + penalties + 2 * len(TARGETS), 4 * len(TARGETS) + penalties
    assert len(grid) == 6 * plain + fair + 2 * len(TARGETS)  # auto, in a batch and per node
    default = run_specs(["nba"], splits=1)
    assert len(default) == 7 * 5 + 1 + 2  # and FMP per node, and auto
    assert {c.strength for c in default if c.strategy == "regulariser"} == {5.0}
    papc = run_specs(
        ["nba"], ["fmp"], ["vanilla"], splits=1, targets=[7], setting=Setting(solver="papc")
    )
    assert papc[0].name == "FMP (papc) λ_f=7"
    assert classifier(papc[0]).config()["propagation"]["lambda_f"] == 7.0


def test_classifier_follows_its_spec() -> None:
    fair = classifier(RunSpec("nba", "fmp", "regulariser", 2.0, setting=Setting(target=0.1, K=2)))
    assert fair.strategy == Regulariser(2.0)
    assert fair.config()["propagation"]["target"] == 0.1
    assert fair.config()["propagation"]["K"] == 2
    other = classifier(RunSpec("nba", "gat", "adversary", 3.0))
    assert isinstance(other.strategy, Adversary)
    assert other.strategy.h == 3.0
    assert (other.backbone, other.propagation) == ("gat", None)
    behind = RunSpec("nba", "fmp", "thresholds-val", 0.2, setting=Setting(target=0.05))
    assert classifier(behind).config()["propagation"]["target"] == 0.05


@pytest.mark.parametrize(
    ("changed", "argument", "value"),
    [
        ({"methods": ["mpl"]}, "methods", "'mpl'"),
        ({"strategies": ["none"]}, "strategies", "'none'"),
        ({"splits": 0}, "splits", "0"),
        ({"setting": Setting(epochs=50)}, "epochs", "50"),
        ({"setting": Setting(solver="newton")}, "solver", "'newton'"),
        ({"methods": ["mlp"], "targets": [1.5]}, "targets", "1.5"),
    ],
)
def test_wrong_grid_is_refused_before_training(
    changed: dict[str, Any], argument: str, value: str
) -> None:
    with pytest.raises(InputError) as refused:
        run_specs(["nba"], **changed)
    assert refused.value.argument == argument
    assert value in str(refused.value.value)


def test_names_and_strengths_are_parsed() -> None:
    assert parse_names("methods", "all", METHODS) == list(METHODS)
    assert parse_names("methods", " mlp, fmp", METHODS) == ["mlp", "fmp"]
    assert parse_strengths("strengths", "all") == "all"
    assert parse_strengths("strengths", "1,2") == [1.0, 2.0]
    for text in ("1,x", "-1", "nan", ""):
        with pytest.raises(InputError) as error:
            parse_strengths("strengths", text)
        assert error.value.argument == "strengths"


def test_runs_of_one_network_are_trained_together() -> None:
    strategies = ["vanilla", "thresholds-val", "per-node", "regulariser"]
    jobs = trainings(run_specs(["nba"], ["fmp"], strategies, splits=2))
    assert sorted(len(job) for job in jobs) == [1, 1, 3, 3]
    assert [job[0].split for job in jobs] == [0, 0, 1, 1]
