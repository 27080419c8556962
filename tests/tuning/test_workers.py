from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.tuning import study, trials, workers
from fairmp.tuning.space import Settings
from fairmp.tuning.study import Search, open_study
from fairmp.tuning.trials import TrialResult
from fairmp.tuning.tune import data_splits
from tests.tuning.helpers import SMALL, outcomes, search, short_search, small

# The third trial is the first that the search draws.
KILLED = """
import os, signal, sys
from fairmp.tuning import workers
from tests.tuning.helpers import short_search
calls, train = [], workers.train
def dying(*arguments):
    calls.append(1)
    if len(calls) == 3:
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return train(*arguments)
workers.train = dying
short_search(storage=sys.argv[1])
"""


@pytest.fixture(scope="module")
def killed_study(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A storage whose third trial was killed."""
    path = tmp_path_factory.mktemp("killed") / "study.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "killed\n"), done.stderr
    return path.read_bytes()


@pytest.fixture
def killed(killed_study: bytes, tmp_path: Path) -> str:
    (tmp_path / "study.db").write_bytes(killed_study)
    return str(tmp_path / "study.db")


@pytest.fixture
def short_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead trial is noticed in two seconds instead of half a minute."""
    monkeypatch.setattr(trials, "HEARTBEAT_S", 1)
    monkeypatch.setattr(trials, "GRACE_S", 1)


def stored_trials(storage: str) -> list[FrozenTrial]:
    with open_study(search(storage)) as study:
        return study.trials


def test_killed_search_ends_with_the_same_trials(killed: str) -> None:
    states = [trial.state.name for trial in stored_trials(killed)]
    assert states == ["COMPLETE", "COMPLETE", "RUNNING"]
    assert outcomes(short_search(storage=killed, exclusive=True)) == outcomes(short_search())


class Killed(BaseException):
    """Stands for the end of a process."""


class MortalStorage(InMemoryStorage):
    """A storage whose process dies before one of its writes, and writes nothing from then on."""

    writes, dies_before = 0, math.inf

    def _write(self) -> None:
        if self.writes >= self.dies_before:
            raise Killed
        self.writes += 1

    def create_new_trial(self, *args: Any, **options: Any) -> int:
        self._write()
        return super().create_new_trial(*args, **options)

    def set_trial_param(self, *args: Any, **options: Any) -> None:
        self._write()
        super().set_trial_param(*args, **options)

    def set_trial_state_values(self, *args: Any, **options: Any) -> bool:
        self._write()
        return super().set_trial_state_values(*args, **options)

    def set_trial_user_attr(self, *args: Any, **options: Any) -> None:
        self._write()
        super().set_trial_user_attr(*args, **options)

    def set_trial_system_attr(self, *args: Any, **options: Any) -> None:
        self._write()
        super().set_trial_system_attr(*args, **options)


def pretend_to_train(_: Search, settings: Settings, splits: Sequence[Data]) -> list[Any]:
    """Figures drawn from the settings, many of them equal; some settings fail."""
    # With this salt the order of the first two trials changes what is sampled after ten.
    digest = hashlib.sha256(b"1" + json.dumps(settings, sort_keys=True).encode()).digest()
    if digest[2] % 5 == 0:
        raise ValueError("these settings fail")
    figures = {"accuracy": digest[0] % 3 / 2, "dp": digest[1] % 4 / 40}
    val = SimpleNamespace(to_dict=lambda: dict.fromkeys(workers.METRICS, 0.5) | figures)
    return [SimpleNamespace(run_=SimpleNamespace(val=val)) for _ in splits]


def test_search_killed_before_any_write_ends_with_the_same_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "train", pretend_to_train)
    options = search(trials=14)  # more than the ten that are drawn at random
    splits = data_splits(small(), 1, 0)

    def finished(storage: MortalStorage) -> list[TrialResult]:
        monkeypatch.setattr(study, "_open_storage", lambda place: storage)
        with open_study(options) as opened:
            trials.end_dead(opened, trials.running(opened))
            workers.run_trials(opened, options, splits, 1, lambda: None)
            return [replace(result, seconds=0.0) for result in trials.results(opened)]

    undisturbed = MortalStorage()
    expected = finished(undisturbed)
    assert {result.failed is None for result in expected} == {True, False}
    for write in range(undisturbed.writes):
        storage = MortalStorage()
        storage.dies_before = write
        with pytest.raises((Killed, UnboundLocalError)):  # the latter where optuna ends a trial
            finished(storage)
        storage.dies_before = math.inf
        assert finished(storage) == expected, write


def test_stale_trial_is_repeated(killed: str, short_heartbeat: None) -> None:
    dead = stored_trials(killed)[2]
    tuned = short_search(storage=killed)
    after = stored_trials(killed)
    assert [trial.state.name for trial in after].count("COMPLETE") == 6
    assert not [trial for trial in after if trial.state in (TrialState.RUNNING, TrialState.WAITING)]
    (again,) = (trial for trial in after if trial.user_attrs.get(trials.REPEATS) == 2)
    assert again.params == dead.params
    assert [trial.number for trial in tuned.trials] == list(range(6))


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # ask begins a trial and dies
def test_trial_that_ends_every_process_is_given_up(killed: str) -> None:
    with open_study(search(killed)) as study:
        for _ in range(trials.MAX_DEATHS):
            trials.end_dead(study, trials.running(study))
            assert study.ask().user_attrs[trials.PLACE] == 2
    tuned = short_search(storage=killed, exclusive=True)
    assert [bool(trial.failed) for trial in tuned.trials] == [False] * 2 + [True] + [False] * 3
    assert "4 processes" in str(tuned.trials[2].failed)


def test_interrupted_trial_is_repeated_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, train = str(tmp_path / "study.db"), workers.train
    calls = []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) in (1, 4):
            raise KeyboardInterrupt
        return train(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "train", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                short_search(storage=storage)
    assert outcomes(short_search(storage=storage)) == outcomes(short_search())


def test_live_trials_of_other_machines_are_left_alone(
    tmp_path: Path, short_heartbeat: None
) -> None:
    storage = str(tmp_path / "study.db")
    short_search(storage=storage, trials=1)
    began, stop = threading.Event(), threading.Event()

    def other_machine() -> None:
        def objective(trial: optuna.Trial) -> float:
            trial.set_user_attr(trials.SETTINGS, {})
            began.set()
            stop.wait(60)
            raise InputError("trial", "stopped")

        with open_study(search(storage)) as study:
            study.optimize(objective, n_trials=1, catch=(Exception,))

    machine = threading.Thread(target=other_machine)
    machine.start()
    began.wait(60)
    try:
        tuned = short_search(storage=storage, trials=3)
    finally:
        stop.set()
        machine.join()
    assert (len(tuned.trials), tuned.running) == (2, 1)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # ask begins a trial and dies
def test_process_that_died_before_its_first_heartbeat_is_noticed(
    tmp_path: Path, short_heartbeat: None
) -> None:
    storage = str(tmp_path / "study.db")
    with open_study(search(storage)) as study:
        study.ask()
    tuned = short_search(storage=storage, trials=3)
    assert [trial.number for trial in tuned.trials] == [0, 1, 2]
    assert tuned.running == 0


def test_two_workers_add_the_trials_asked_for(tmp_path: Path) -> None:
    seen: list[int] = []
    tuned = short_search(
        goal="front",
        storage=str(tmp_path / "study.db"),
        workers=2,
        trials=5,
        on_trial=lambda trial: seen.append(trial.number),
    )
    assert sorted(seen) == [trial.number for trial in tuned.trials] == list(range(5))
    assert tuned.running == 0
    assert len({str(trial.settings) for trial in tuned.trials}) == 5
    assert set(tuned.checked) == {trial.number for trial in tuned.front}
    # Whichever process trained it, the chosen trial has the figures of this process.
    run = tuned.checked[tuned.chosen.number][0]
    assert run.val.accuracy == tuned.chosen.figures["accuracy"]


def test_failed_trials_keep_their_reason() -> None:
    with pytest.raises(InputError, match="the first failed: "):
        short_search(space=[*SMALL, "lr=1e30", "solver=projection"], trials=2)
    tuned = short_search(space=[*SMALL, "lr=1e30,0.02"], trials=6)
    failed = [trial for trial in tuned.trials if trial.failed is not None]
    assert 0 < len(failed) < 6
    assert {trial.settings["lr"] for trial in failed} == {1e30}
    assert tuned.chosen.settings["lr"] == 0.02


def test_trial_that_another_process_took_for_dead_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = workers.train
    with open_study(search(str(tmp_path / "study.db"))) as study:

        def slow(*arguments: Any) -> Any:
            trials.end_dead(study, trials.running(study))
            return train(*arguments)

        add = workers.AddTrial(search(), data_splits(small(), 1, 0), study)
        with monkeypatch.context() as patch:
            patch.setattr(workers, "train", slow)
            add(0)
        assert trials.results(study) == []
        for _ in range(2):  # the repetition, and another
            add(0)
        assert [result.number for result in trials.results(study)] == [0, 1]


def test_means_over_splits() -> None:
    metrics = dict.fromkeys(workers.METRICS, 0.5)
    means = workers.means([metrics, {**metrics, "dp": 0.1, "auc": None}])
    assert means["dp"] == pytest.approx(0.3)
    assert means["auc"] is None
    assert math.isclose(means["accuracy"] or 0.0, 0.5)
