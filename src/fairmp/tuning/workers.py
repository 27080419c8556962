"""Train trials, side by side in several processes, which may be on several machines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import Trial
from torch_geometric.data import Data

from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.parallel import WorkerPool, failure_reason
from fairmp.training.classifier import FairClassifier
from fairmp.tuning import space as spaces
from fairmp.tuning import trials
from fairmp.tuning.space import Settings
from fairmp.tuning.study import Search, open_study

METRICS = ("accuracy", "dp", "eo", "auc", "f1")
POLL_S = 0.5
_NEEDED = ("x", "edge_index", "y", "sens", "edge_weight", "sample_weight", *MASKS)


class SurplusTrial(Exception):
    """A trial that is not needed: other processes have begun enough of them."""


@dataclass
class Objective:
    """Trains a trial's settings on every split; returns what optuna optimises."""

    search: Search
    splits: Sequence[Data]
    number: int | None = None  # of the trial that was trained last

    def __call__(self, trial: Trial) -> float | tuple[float, float]:
        """Return the accuracy, and for a front the gap, on the validation nodes."""
        study, self.number = trial.study, trial.number
        stored = trials.all_trials(study)
        if trials.is_surplus(stored[trial.number], stored, self.search.trials):
            raise SurplusTrial
        start = time.perf_counter()
        try:
            figures = self._train(trial)
        except KeyboardInterrupt:
            trials.repeat(study, trials.all_trials(study)[trial.number])
            raise
        except Exception as error:  # whatever it was, the other trials go on
            trial.set_user_attr(trials.FAILED, failure_reason(error))
            raise
        finally:
            trial.set_user_attr(trials.SECONDS, round(time.perf_counter() - start, 3))
        accuracy, gap = figures["accuracy"], figures[self.search.criterion]
        if self.search.limit is None:
            return accuracy, gap
        trial.set_constraint("excess", gap - self.search.limit)
        return accuracy

    def _train(self, trial: Trial) -> dict[str, float]:
        """Train, store and return the mean figures of a trial."""
        deaths = trial.user_attrs.get(trials.DEATHS, 0)
        if deaths > trials.MAX_DEATHS:
            raise InputError("trial", f"ended {deaths} processes")
        settings = spaces.suggest(trial, self.search.space)
        trial.set_user_attr(trials.SETTINGS, settings)
        models = train(self.search, settings, self.splits)
        per_split = [figures_of(model.run_.val) for model in models]
        figures = means(per_split)
        for metric in ("accuracy", self.search.criterion):
            if figures[metric] is None:
                title = spaces.SYMBOLS.get(metric, metric)
                raise InputError(title, "cannot be estimated on the validation nodes")
        trial.set_user_attr(trials.FIGURES, figures)
        trial.set_user_attr(trials.PER_SPLIT, per_split)
        return {metric: value for metric, value in figures.items() if value is not None}


@dataclass
class AddTrial:
    """Adds a trial to the study of a search, in whichever process it is called."""

    search: Search
    splits: Sequence[Data]
    study: Study | None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open storage in this process."""
        return {**vars(self), "study": None}

    def __call__(self, _: int) -> None:
        """Train a trial, unless time is up or there are enough of them."""
        if self.study is None:
            self.study = ExitStack().enter_context(open_study(self.search))
        study, objective = self.study, Objective(self.search, self.splits)
        counted = sum(map(trials.is_counted, trials.all_trials(study)))
        if self.search.expired or counted >= self.search.trials:
            return
        try:
            study.optimize(objective, n_trials=1, catch=(Exception,))
        except (AssertionError, ValueError):
            # Another process took this one for dead: the figures of the repetition count.
            number = objective.number
            if number is None or not trials.all_trials(study)[number].state.is_finished():
                raise


def run_trials(
    study: Study, search: Search, splits: Sequence[Data], workers: int, on_trial: Callable[[], None]
) -> None:
    """Add trials until the study has all of them, or time is up."""
    give_up_at = None
    add = AddTrial(search, [training_data(data) for data in splits], study)
    with WorkerPool(add, workers) as pool:
        while not search.expired:
            optuna.storages.fail_stale_trials(study)
            missing = search.trials - sum(map(trials.is_counted, trials.all_trials(study)))
            others = trials.running(study)
            if missing > 0:
                give_up_at = None
                for _ in pool.map(range(missing)):
                    on_trial()
            elif not others:
                break
            elif give_up_at is None:
                # Until trials of other processes end, or are known to be dead and repeated.
                give_up_at = time.time() + trials.GRACE_S + trials.HEARTBEAT_S
            elif time.time() < give_up_at:
                time.sleep(POLL_S)
            else:
                # Optuna does not notice a process that died before its first heartbeat.
                never_began = [trial for trial in others if trials.SETTINGS not in trial.user_attrs]
                if not never_began:
                    break
                trials.end_dead(study, never_began)
    on_trial()


def training_data(data: Data) -> Data:
    """What training needs of a graph, for other processes."""
    return Data(**{name: data[name] for name in _NEEDED if name in data})


def train(
    search: Search, settings: Settings, splits: Sequence[Data], bootstrap: int = 0
) -> list[FairClassifier]:
    """Train settings on every split."""
    models = [spaces.classifier(search.method, settings, search.device) for _ in splits]
    for model, data in zip(models, splits, strict=True):
        model.fit(data, seed=search.seed, bootstrap=bootstrap, progress=False)
    return models


def means(evaluations: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each figure over splits, ``None`` where a split has none."""
    columns = {metric: [figures[metric] for figures in evaluations] for metric in METRICS}
    return {metric: _mean(values) for metric, values in columns.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if len(measured) == len(values) else None


def figures_of(evaluation: Evaluation) -> dict[str, float | None]:
    """Return an evaluation's figures as JSON types."""
    record = evaluation.to_dict()
    return {metric: record[metric] for metric in METRICS}
