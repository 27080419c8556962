from __future__ import annotations

import itertools
from typing import Any

import optuna
import pytest

from fairmp import FMP, FairClassifier
from fairmp.errors import InputError
from fairmp.nn.fmp import PPR
from fairmp.training import defaults
from fairmp.training.penalties import Adversary, Regulariser
from fairmp.tuning import space
from fairmp.tuning.space import METHODS, STRATEGIES, Method


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "rnn"}, "method: 'rnn'"),
        ({"strategy": "hope"}, "strategy: 'hope'"),
        ({"epochs": 0}, "epochs: 0"),
        ({"patience": 0}, "patience: 0"),
        ({"strategy": "adversary", "epochs": 60}, "epochs: 60 end before the strategy"),
    ],
)
def test_wrong_methods_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Method(**arguments)


@pytest.mark.parametrize(("name", "strategy"), list(itertools.product(METHODS, STRATEGIES)))
def test_settings_of_every_method_make_a_classifier(name: str, strategy: str) -> None:
    method = Method(name, strategy, patience=7)
    domains = space.default_space(method, 0.02)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for first in space.first_settings(domains, 0.02):
        study.enqueue_trial(first)
    names = {"FMP": FMP, "PPR": PPR, "Regulariser": Regulariser, "Adversary": Adversary}
    solvers = set()
    for number in range(8):
        settings = space.suggest(study.ask(), domains)
        model = space.classifier(method, settings)
        config = model.config()
        written = eval(space.python_code(model), {"FairClassifier": FairClassifier, **names})
        assert written.config() == config
        assert config["lr"] == settings["lr"]
        assert config["strategy"]["name"] == strategy
        if name == "fmp":
            solvers.add(settings["solver"])
            assert ("target" in settings) == (settings["solver"] == "projection")
            assert ("lambda_f" in settings) == (settings["solver"] == "papc")
            assert config["propagation"]["K"] == settings["K"]
            if number < 2:
                assert settings["target"] == (0.0, 0.02)[number]
    assert name != "fmp" or solvers == {"projection", "papc"}


@pytest.mark.parametrize("name", METHODS)
def test_first_trial_has_the_default_settings(name: str) -> None:
    method = Method(name)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    domains = space.default_space(method, None)
    study.enqueue_trial(space.first_settings(domains, None)[0])
    settings = space.suggest(study.ask(), domains)
    propagation = {"fmp": FMP(lambda_s=defaults.LAMBDA_S), "ppr": PPR(lambda_s=defaults.LAMBDA_S)}
    usual = FairClassifier(propagation.get(name), backbone=method.backbone)
    assert space.classifier(method, settings).config() == usual.config()


def test_narrowed_domains_are_printed_as_typed() -> None:
    method = Method()
    changes = ["hidden=8,16", "lr=0.001..0.1", "K=1..3", "lambda_s=learned,2"]
    domains = space.narrowed(space.default_space(method, None), changes, method)
    for change in changes:
        name, _, text = change.partition("=")
        assert space.format_domain(domains[name]) == text
