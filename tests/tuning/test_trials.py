from __future__ import annotations

import optuna
import pytest
from optuna.study import Study
from optuna.trial import TrialState

from fairmp.tuning import trials
from fairmp.tuning.trials import TrialResult


@pytest.fixture
def study() -> Study:
    """Two queued trials, of which the first is done and the second is running."""
    study = optuna.create_study()
    trials.enqueue(study, {"x": 0.1})
    trials.enqueue(study, {"x": 0.2})
    first = study.ask()
    first.set_user_attr(trials.SETTINGS, {"x": first.suggest_float("x", 0, 1)})
    first.set_user_attr(trials.FIGURES, {"accuracy": 0.5})
    first.set_user_attr(trials.PER_SPLIT, [{"accuracy": 0.5}])
    study.tell(first, 0.5)
    study.ask()
    return study


def places(study: Study) -> list[int]:
    stored = trials.all_trials(study)
    return [trials.place(trial, stored) for trial in stored]


def test_dead_trial_is_repeated_in_its_place(study: Study) -> None:
    trials.end_dead(study, trials.running(study))
    assert [trial.state for trial in study.trials[1:]] == [TrialState.FAIL, TrialState.WAITING]
    again = study.ask()
    assert again.suggest_float("x", 0, 1) == 0.2  # though it died before it had drawn any
    assert again.user_attrs[trials.DEATHS] == 1
    later = study.ask()
    assert (again.number, later.number) == (2, 3)
    assert places(study) == [0, 1, 1, 2]


def test_repetition_is_queued_once(study: Study) -> None:
    (dead,) = trials.running(study)
    for _ in range(3):
        trials.repeat_dead(study, dead)
    assert len(study.trials) == 3


def test_deaths_are_counted_and_interruptions_are_not(study: Study) -> None:
    for deaths in (1, 2):
        trials.end_dead(study, trials.running(study))
        assert study.ask().user_attrs[trials.DEATHS] == deaths
    (interrupted,) = trials.running(study)
    trials.repeat(study, interrupted)
    assert study.trials[-1].user_attrs[trials.DEATHS] == 2
    assert study.trials[-1].user_attrs[trials.PLACE] == 1


def test_results_are_those_of_finished_trials_in_order(study: Study) -> None:
    assert trials.results(study) == [
        TrialResult(0, {"x": 0.1}, {"accuracy": 0.5}, [{"accuracy": 0.5}])
    ]
    failed = study.ask()
    failed.set_user_attr(trials.FAILED, "why")
    study.tell(failed, state=TrialState.FAIL)
    trials.end_dead(study, trials.running(study))  # the second, now behind the failed one
    again = study.ask()
    again.set_user_attr(trials.FIGURES, {"accuracy": 0.7})
    again.set_user_attr(trials.PER_SPLIT, [])
    study.tell(again, 0.7)
    assert [result.number for result in trials.results(study)] == [0, 1, 2]
    assert [result.failed for result in trials.results(study)] == [None, None, "why"]


def test_trials_beyond_those_wanted_are_surplus(study: Study) -> None:
    late = study.ask()
    stored = trials.all_trials(study)
    assert trials.is_surplus(stored[late.number], stored, wanted=2)
    assert not trials.is_surplus(stored[late.number], stored, wanted=3)
    study.tell(late, state=TrialState.FAIL)
    assert not trials.is_counted(trials.all_trials(study)[late.number])
