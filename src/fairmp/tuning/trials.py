"""Trials of a study: which count, which are repeated, and their results.

A trial that was cut short is repeated: its settings are queued again, and the repetition takes its
place. So a search that was stopped, or whose processes were killed, ends with the same trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fairmp.tuning.space import Settings

HEARTBEAT_S, GRACE_S = 10, 30
"""Seconds between two heartbeats of a trial, and without one until its process counts as dead."""
MAX_DEATHS = 3  # processes that may die in a trial before it counts as failed

# User attributes: of a queued trial its settings; of a repetition the trial it repeats, the place
# it takes, and how many processes died in it.
QUEUED, REPEATS, PLACE, DEATHS = "queued", "repeats", "place", "deaths"
# User attributes of a trial that has begun, and of one that failed or is done.
SETTINGS, FAILED, FIGURES, PER_SPLIT, SECONDS = (
    *("settings", "failed", "figures", "per_split", "seconds"),
)


@dataclass(frozen=True)
class TrialResult:
    """A trial's settings and its figures on the validation nodes, means over splits."""

    number: int
    settings: Settings = field(default_factory=dict)
    figures: Mapping[str, float | None] = field(default_factory=dict)
    per_split: Sequence[Mapping[str, float | None]] = ()
    seconds: float = 0.0
    failed: str | None = None  # the reason why it has no figures

    def figure(self, key: str) -> float:
        """One figure, ``nan`` where it could not be estimated."""
        value = self.figures.get(key)
        return math.nan if value is None else value


def all_trials(study: Study) -> list[FrozenTrial]:
    """All trials of a study, in the order of their numbers."""
    return study.get_trials(deepcopy=False)


def running(study: Study) -> list[FrozenTrial]:
    """Trials that have begun and not ended."""
    return [trial for trial in all_trials(study) if trial.state == TrialState.RUNNING]


def is_counted(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those wanted; one that was cut short or is too many is not."""
    if trial.state == TrialState.FAIL:
        return FAILED in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.RUNNING)


def is_surplus(trial: FrozenTrial, trials: Sequence[FrozenTrial], wanted: int) -> bool:
    """Whether there are enough trials before this one: several processes may begin one at once."""
    before = [other for other in trials if other.number < trial.number]
    return sum(is_counted(t) or t.state == TrialState.WAITING for t in before) >= wanted


def place(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The number a trial would have if no trial had been cut short.

    Args:
        trial: a trial.
        trials: all trials of its study.
    """
    if PLACE in trial.user_attrs:
        return int(trial.user_attrs[PLACE])
    return trial.number - sum(PLACE in other.user_attrs for other in trials[: trial.number])


def enqueue(study: Study, settings: Settings, **attributes: int) -> None:
    """Queue settings for the next trial."""
    study.enqueue_trial(settings, user_attrs={QUEUED: settings, **attributes})


def repeat(study: Study, trial: FrozenTrial, *, deaths: int = 0) -> None:
    """Queue the settings of a trial that was cut short, in its place, unless that was done.

    A trial that had failed before is not repeated: its result is known.
    """
    trials = all_trials(study)
    is_repeated = any(other.user_attrs.get(REPEATS) == trial.number for other in trials)
    if is_repeated or FAILED in trial.user_attrs:
        return
    enqueue(
        study,
        {**trial.user_attrs.get(QUEUED, {}), **trial.params},
        **{
            REPEATS: trial.number,
            PLACE: place(trial, trials),
            DEATHS: trial.user_attrs.get(DEATHS, 0) + deaths,
        },
    )


def repeat_dead(study: Study, trial: FrozenTrial) -> None:
    """Repeat a trial whose process died."""
    repeat(study, trial, deaths=1)


def end_dead(study: Study, trials: Sequence[FrozenTrial]) -> None:
    """Mark running trials whose processes died as failed, and repeat them."""
    for trial in trials:
        # In this order: a process killed in between leaves a trial that is still running.
        repeat_dead(study, trial)
        study.tell(trial.number, state=TrialState.FAIL)


def results(study: Study) -> list[TrialResult]:
    """Results of the finished trials that count, in order."""
    trials = all_trials(study)
    finished = [trial for trial in trials if trial.state.is_finished() and is_counted(trial)]
    return sorted((_result(trial, trials) for trial in finished), key=lambda result: result.number)


def _result(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> TrialResult:
    attributes = trial.user_attrs
    has_failed = trial.state == TrialState.FAIL
    return TrialResult(
        number=place(trial, trials),
        settings=attributes.get(SETTINGS, {}),
        figures={} if has_failed else attributes[FIGURES],
        per_split=() if has_failed else attributes[PER_SPLIT],
        seconds=attributes.get(SECONDS, 0.0),
        failed=attributes[FAILED] if has_failed else None,
    )
