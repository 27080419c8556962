"""Trials of a search: the objective, the worker that evaluates it, and the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from torch_geometric.data import Data

from fairmp.datasets.checks import MASKS
from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.parallel import WorkerPool
from fairmp.search.space import SYMBOLS, Settings, classifier, suggest
from fairmp.search.study import GRACE_S, HEARTBEAT_S, Search, open_study, retry
from fairmp.training.classifier import FairClassifier, Run

FIGURES = ("accuracy", "dp", "eo", "auc", "f1")
POLL_S = 0.5
_NEEDED = ("x", "edge_index", "y", "sens", "edge_weight", *MASKS)


@dataclass(frozen=True)
class TrialResult:
    """A trial's settings and its figures on the validation nodes, means over splits.

    ``failed`` is the reason why it has none.
    """

    number: int
    settings: Settings = field(default_factory=dict)
    figures: Mapping[str, float | None] = field(default_factory=dict)
    per_split: Sequence[Mapping[str, float | None]] = ()
    seconds: float = 0.0
    failed: str | None = None

    def figure(self, key: str) -> float:
        """One figure, ``nan`` where it could not be estimated."""
        value = self.figures.get(key)
        return math.nan if value is None else value


class TrialWorker:
    """What each process of a search does with a job: add a trial, or train a chosen one."""

    def __init__(self, search: Search, parts: Sequence[Data], study: Study | None) -> None:
        self.search, self.parts, self.study = search, parts, study

    def __getstate__(self) -> dict[str, Any]:
        # Only what training needs, and no open storage, goes to another process.
        parts = [Data(**{k: part[k] for k in _NEEDED if k in part}) for part in self.parts]
        return {"search": self.search, "parts": parts, "study": None}

    def __call__(self, trial: TrialResult | None) -> list[Run]:
        """Add a trial, or return the runs of the one given."""
        if trial is not None:
            models = train(self.search, trial.settings, self.parts, bootstrap=1000)
            return [model.run_ for model in models]
        if self.study is None:
            self.study = ExitStack().enter_context(open_study(self.search))
        if not self.search.expired:
            add_trial(self.study, self.search, self.parts)
        return []


def run_trials(
    study: Study,
    search: Search,
    pool: WorkerPool[TrialResult | None, list[Run]],
    on_trial: Callable[[], None],
) -> None:
    """Add trials until the study has all of them, or time is up.

    Trials that other processes have begun are waited for as long as it takes to know that they
    are dead, so that those of a killed process are repeated.
    """
    idle_since = None
    while not search.expired:
        optuna.storages.fail_stale_trials(study)
        missing = search.trials - sum(map(_counts, _all(study)))
        if missing > 0:
            idle_since = None
            for _ in pool.map([None] * missing):
                on_trial()
            continue
        idle_since = idle_since or time.time()
        if not running(study) or time.time() - idle_since > GRACE_S + HEARTBEAT_S:
            return
        time.sleep(POLL_S)
    on_trial()


def add_trial(study: Study, search: Search, parts: Sequence[Data]) -> None:
    """Add one trial to a study, unless it has all of them.

    Any number of processes may do this at once. Where more trials were begun than wanted, those
    with the largest numbers step back.
    """
    if sum(map(_counts, _all(study))) >= search.trials:
        return
    begun: list[int] = []

    def objective(trial: Trial) -> float | tuple[float, float]:
        begun.append(trial.number)
        before = [t for t in _all(study) if t.number < trial.number]
        if sum(_counts(t) or t.state == TrialState.WAITING for t in before) >= search.trials:
            raise RuntimeError("enough trials have been begun")
        return _evaluate(study, trial, search, parts)

    try:
        study.optimize(objective, n_trials=1, catch=(Exception,))
    except (ValueError, RuntimeError):
        # Taken for dead and queued again by another process: that one's figures count.
        if not begun or not _all(study)[begun[0]].state.is_finished():
            raise


def results(study: Study) -> list[TrialResult]:
    """Results of the finished trials, in order; trials that were cut short have none."""
    names = {own.name for own in fields(TrialResult)}
    return [
        TrialResult(t.number, **{k: v for k, v in t.user_attrs.items() if k in names})
        for t in _all(study)
        if t.state.is_finished() and _counts(t)
    ]


def running(study: Study) -> int:
    """Number of trials that have begun and not ended."""
    return sum(t.state == TrialState.RUNNING for t in _all(study))


def train(
    search: Search, settings: Settings, parts: Sequence[Data], bootstrap: int = 0
) -> list[FairClassifier]:
    """Train settings on every split."""
    models = [classifier(search.method, settings, search.device) for _ in parts]
    for model, data in zip(models, parts, strict=True):
        model.fit(data, seed=search.seed, bootstrap=bootstrap, progress=False)
    return models


def means(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Mean of each figure over splits, ``None`` where a split has none."""
    columns = {key: [row[key] for row in evaluations] for key in FIGURES}
    return {k: None if None in v else math.fsum(v) / len(v) for k, v in columns.items()}


def plain(evaluation: Evaluation) -> dict[str, float | None]:
    """Return an evaluation's figures as JSON types."""
    values = {key: float(getattr(evaluation, key)) for key in FIGURES}
    return {key: None if math.isnan(value) else value for key, value in values.items()}


def _evaluate(
    study: Study, trial: Trial, search: Search, parts: Sequence[Data]
) -> float | tuple[float, float]:
    start = time.perf_counter()
    try:
        settings = suggest(trial, search.space)
        trial.set_user_attr("settings", settings)
        per_split = [plain(model.run_.val) for model in train(search, settings, parts)]
        figures = means(per_split)
        gap, accuracy = figures[search.criterion], figures["accuracy"]
        if gap is None or accuracy is None:
            missing = "cannot be estimated on the validation nodes"
            raise InputError(SYMBOLS[search.criterion], missing)
    except KeyboardInterrupt:
        retry(study, _all(study)[trial.number])
        raise
    except Exception as error:  # whatever it was, the other trials go on
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, InputError):
            reason = f"{type(error).__name__}: {reason}"
        trial.set_user_attr("failed", reason)
        raise
    finally:
        trial.set_user_attr("seconds", round(time.perf_counter() - start, 3))
    trial.set_user_attr("figures", figures)
    trial.set_user_attr("per_split", per_split)
    if search.limit is None:
        return accuracy, gap
    trial.set_constraint("excess", gap - search.limit)
    return accuracy


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those wanted; one that was cut short or stepped back is not."""
    if trial.state == TrialState.FAIL:
        return "failed" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.RUNNING)


def _all(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False)
