"""A search's trials: the loop that adds them to a study, and what becomes of those cut short.

Loads optuna; :mod:`fairmp.search.tune` says so in one line where it is missing.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.search.space import SYMBOLS, Settings, classifier, suggest
from fairmp.search.study import Search

FIGURES = ("accuracy", "dp", "eo", "auc", "f1")
BEAT, SILENCE = 30.0, 600.0
"""Seconds between two signs of life of a trial, and after how many without one it is given up."""


@dataclass(frozen=True)
class TrialResult:
    """One trial: its settings and its figures on the validation nodes, means over splits.

    ``failed`` says why it has none.
    """

    number: int
    settings: Settings
    figures: Mapping[str, float | None]
    per_split: Sequence[Mapping[str, float | None]]
    seconds: float
    failed: str | None = None

    def figure(self, key: str) -> float:
        """One figure, ``nan`` where it could not be estimated."""
        value = self.figures.get(key)
        return math.nan if value is None else value


def work(
    study: Study,
    search: Search,
    parts: Sequence[Data],
    *,
    deadline: float | None = None,
    on_trial: Callable[[], None] = lambda: None,
) -> None:
    """Add trials until the study has all, or the time is up.

    Any number of processes may do this at once. A trial's number is its place in the queue: where
    more were begun than are wanted, the last ones step back.
    """
    while deadline is None or time.time() < deadline:
        release(study)
        if sum(_counts(trial) for trial in _all(study)) >= search.trials:
            return
        trial = study.ask()
        trial.set_user_attr("worker", _me())
        before = [t for t in _all(study) if t.number < trial.number]
        if sum(_counts(t) or t.state == TrialState.WAITING for t in before) >= search.trials:
            study.tell(trial, state=TrialState.FAIL)
            continue
        _try(study, trial, search, parts)
        on_trial()


def release(study: Study) -> int:
    """End the trials whose process is gone, put their settings in the queue, and count them.

    A process of this machine is asked for; another machine's must have been silent for a while.
    Settings whose second try ended like the first are not tried again.
    """
    gone = [t for t in _all(study) if t.state == TrialState.RUNNING and not _alive(t)]
    for trial in gone:
        _give_up(study, trial)
    return len(gone)


def tried(study: Study) -> list[TrialResult]:
    """The trials that came to an end of their own, in order."""
    return [_tried(t) for t in _all(study) if t.state.is_finished() and _counts(t)]


def running(study: Study) -> int:
    """How many trials other processes are at."""
    return sum(t.state == TrialState.RUNNING for t in _all(study))


def measure(search: Search, settings: Settings, parts: Sequence[Data]) -> list[Evaluation]:
    """Train settings on every split, and return what the validation nodes say."""
    found = []
    for data in parts:
        model = classifier(search.method, settings, search.device)
        found.append(model.fit(data, seed=search.seed, bootstrap=0, progress=False).val)
    return found


def means(evaluations: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of each figure over splits, ``None`` where a split has none.

    Example:
        >>> rows = [{"accuracy": 0.5, "dp": None}, {"accuracy": 1.0, "dp": 0.1}]
        >>> means(rows)["accuracy"], means(rows)["dp"]
        (0.75, None)
    """
    found: dict[str, float | None] = {}
    for key in FIGURES:
        known = [value for row in evaluations if (value := row.get(key)) is not None]
        found[key] = math.fsum(known) / len(known) if len(known) == len(evaluations) else None
    return found


def plain(evaluation: Evaluation) -> dict[str, float | None]:
    """An evaluation's figures as what JSON can say."""
    values = {key: float(getattr(evaluation, key)) for key in FIGURES}
    return {key: None if math.isnan(value) else value for key, value in values.items()}


def _try(study: Study, trial: Trial, search: Search, parts: Sequence[Data]) -> None:
    start = time.perf_counter()
    reason = None
    with _beating(trial):
        try:
            settings = suggest(trial, search.space)
            trial.set_user_attr("settings", settings)
            per_split = [plain(evaluation) for evaluation in measure(search, settings, parts)]
            figures = means(per_split)
            gap, accuracy = figures[search.criterion], figures["accuracy"]
            if gap is None or accuracy is None:
                reason = f"{SYMBOLS[search.criterion]} can not be estimated on the validation nodes"
        except Exception as error:  # whatever it was, the other trials go on
            words = " ".join(str(error).split())[:300]
            reason = words if isinstance(error, InputError) else f"{type(error).__name__}: {words}"
        except BaseException:
            _give_up(study, study.get_trials(deepcopy=False)[trial.number])
            raise
    seconds = round(time.perf_counter() - start, 3)
    try:
        trial.set_user_attr("seconds", seconds)
        if reason is not None:
            trial.set_user_attr("failed", reason)
            study.tell(trial, state=TrialState.FAIL)
            return
        assert gap is not None
        assert accuracy is not None
        trial.set_user_attr("figures", figures)
        trial.set_user_attr("per_split", per_split)
        if search.limit is None:
            study.tell(trial, [accuracy, gap])
            return
        trial.set_user_attr("excess", gap - search.limit)
        if hasattr(trial, "set_constraint"):
            trial.set_constraint("excess", gap - search.limit)
        study.tell(trial, accuracy)
    except (ValueError, RuntimeError):
        # Taken for dead, given up and queued again by another process: that one's figures count.
        if study.get_trials(deepcopy=False)[trial.number].state == TrialState.RUNNING:
            raise


@contextmanager
def _beating(trial: Trial) -> Iterator[None]:
    """Let a trial show now and then that it is alive, in a thread beside it."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            try:
                trial.set_user_attr("seen", time.time())
            except Exception:  # a storage that is out of reach is told where it matters
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _alive(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get("worker")
    if worker is not None and os.name == "posix" and worker["host"] == _host():
        try:
            os.kill(worker["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's, and there
        return bool(_born(worker["pid"]) == worker["born"])
    started = trial.datetime_start
    seen = trial.user_attrs.get("seen", started.timestamp() if started is not None else 0.0)
    return time.time() - seen < SILENCE


def _me() -> dict[str, Any]:
    return {"host": _host(), "pid": os.getpid(), "born": _born(os.getpid())}


def _host() -> str:
    """Where numbers of processes mean the same: a machine, or a container on it."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _born(pid: int) -> str | None:
    """When a process started, as the system tells it: numbers of processes are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _give_up(study: Study, trial: FrozenTrial) -> None:
    try:
        study.tell(trial.number, state=TrialState.FAIL)
    except (ValueError, RuntimeError):  # another process was quicker
        return
    if "again" not in trial.user_attrs and trial.params:
        study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial is one of those asked for: one that was killed or stepped back is not."""
    if trial.state == TrialState.FAIL:
        return "failed" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.RUNNING)


def _tried(trial: FrozenTrial) -> TrialResult:
    attrs = trial.user_attrs
    return TrialResult(
        number=trial.number,
        settings=attrs.get("settings", {}),
        figures=attrs.get("figures", {}),
        per_split=attrs.get("per_split", []),
        seconds=attrs.get("seconds", 0.0),
        failed=attrs.get("failed"),
    )


_all = partial(Study.get_trials, deepcopy=False)
