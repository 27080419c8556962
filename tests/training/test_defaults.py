"""One set of defaults, in the library and in every command; the paper's beside it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
import typer

from fairmp import FMP, PPR, FairClassifier, debias
from fairmp.cli import program
from fairmp.comparison.grid import METHODS, RunSpec, Setting, classifier
from fairmp.postprocessing.debias_table import TableSpec
from fairmp.postprocessing.solver import Settings
from fairmp.training import defaults
from fairmp.training.classifier import build_classifier
from fairmp.training.penalties import Adversary, Regulariser
from fairmp.training.trainer import NetworkSettings, TrainingSettings
from fairmp.tuning.space import HYPERPARAMETERS, Method

TRAINING = {
    name.lower(): getattr(defaults, name)
    for name in ("HIDDEN", "NUM_LAYERS", "DROPOUT", "EPOCHS", "PATIENCE", "EVAL_EVERY", "LR")
} | {"weight_decay": defaults.WEIGHT_DECAY}
PROPAGATION = {"K": defaults.K, "lambda_s": defaults.LAMBDA_S, "lambda_f": defaults.LAMBDA_F}
EVERY = TRAINING | PROPAGATION | {"h": defaults.H, "pretrain": defaults.PRETRAIN}
OPTIONS = {"num_layers": "layers", "K": "k"}


def field_defaults(cls: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(cls)}


def parameter_defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: parameter.default for name, parameter in parameters.items()}


def search_defaults() -> dict[str, Any]:
    return {name: setting.default for name, setting in HYPERPARAMETERS.items()}


def command_parameters(command: str) -> list[Any]:
    return typer.main.get_command(program(command)).commands[command].params


def option_defaults(command: str) -> dict[str, Any]:
    """Defaults of a command's options, under the names of the library."""
    shown = {parameter.name: parameter.default for parameter in command_parameters(command)}
    return {name: shown.get(OPTIONS.get(name, name)) for name in EVERY}


@pytest.mark.parametrize(
    ("used", "names"),
    [
        (field_defaults(FairClassifier), TRAINING),
        (field_defaults(TrainingSettings) | field_defaults(NetworkSettings), TRAINING),
        (parameter_defaults(build_classifier), (*PROPAGATION, "h", "pretrain")),
        (field_defaults(Setting), (*TRAINING, *PROPAGATION, "pretrain")),
        (field_defaults(Method) | search_defaults(), EVERY),
        (parameter_defaults(FMP), ("K", "lambda_f")),
        (parameter_defaults(PPR), ("K",)),
        (vars(Adversary()) | {"pretrain": Adversary().pretrain_classifier}, ("h", "pretrain")),
        (vars(Regulariser()), ("h",)),
        (option_defaults("train"), (*TRAINING, "K", "lambda_f", "pretrain")),
        (option_defaults("compare"), (*TRAINING, "K", "lambda_f", "pretrain")),
        (option_defaults("tune"), ("epochs", "patience", "eval_every", "num_layers", "pretrain")),
    ],
    ids=[
        *("FairClassifier", "Trainer", "build_classifier", "compare", "tune", "FMP", "PPR"),
        *("Adversary", "Regulariser", "fairmp train", "fairmp compare", "fairmp tune"),
    ],
)  # fmt: skip
def test_defaults_are_one_set(used: dict[str, Any], names: Iterable[str]) -> None:
    assert {name: used[name] for name in names} == {name: EVERY[name] for name in names}


def test_default_classifier_is_that_of_the_defaults() -> None:
    model = FairClassifier()
    assert model.propagation.lambda_s == defaults.LAMBDA_S
    assert model.training_settings == TrainingSettings()
    assert model.network_settings == NetworkSettings(model.propagation)
    assert model.time_budget == defaults.TIME_BUDGET
    assert repr(build_classifier()) == repr(model)


def test_comparison_trains_the_default_classifier() -> None:
    assert "auto" in METHODS
    model = classifier(RunSpec("embedded", "auto", "vanilla", None, 0, 0))
    assert repr(model) == repr(FairClassifier())


@pytest.mark.parametrize("function", [debias, Settings, TableSpec])
def test_debias_smooths_over_a_graph_as_ppr_does(function: Any) -> None:
    layer, used = parameter_defaults(PPR), parameter_defaults(function)
    assert (used.get("K", used.get("k")), used["lambda_s"]) == (layer["K"], layer["lambda_s"])
    options = {p.name: p.default for p in command_parameters("debias")}
    assert (options["k"], options["lambda_s"]) == (layer["K"], layer["lambda_s"])


def test_paper_has_its_published_settings() -> None:
    names = ("hidden", "num_layers", "lr", "weight_decay", "epochs")
    assert [defaults.PAPER[name] for name in names] == [64, 2, 1e-3, 1e-5, 300]
    settings = {name: value for name, value in defaults.PAPER.items() if name != "lambda_s"}
    model = FairClassifier(FMP(lambda_s=defaults.PAPER["lambda_s"]), **settings)
    assert (model.patience, model.calibrate) == (None, False)
