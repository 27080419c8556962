"""The optuna study behind a search: its storage, its identity, and its sampler."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fairmp.errors import InputError
from fairmp.search.space import Method, Space, first_settings, format_domain

HEARTBEAT_S, GRACE_S = 10, 30
"""Seconds between two heartbeats of a trial, and without one until its process counts as dead."""
MAX_RETRIES = 1


@dataclass(frozen=True)
class Search:
    """Goal, space and storage of a search; see :func:`fairmp.search.tune.tune`.

    ``limit`` is the largest gap accepted on the validation nodes, ``None`` for the whole front;
    ``graph`` is the fingerprint of the data, ``deadline`` the time after which no trial begins.
    """

    method: Method
    space: Space
    limit: float | None
    criterion: str
    trials: int
    splits: int
    seed: int
    device: str
    storage: str | None
    study_name: str
    graph: Mapping[str, Any]
    deadline: float | None = None

    @property
    def expired(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def identity(self) -> dict[str, Any]:
        """Everything that all trials of one study must have in common, as JSON types."""
        return {
            "goal": "front" if self.limit is None else self.limit,
            "criterion": self.criterion,
            "splits": self.splits,
            "seed": self.seed,
            **{name: value for name, value in vars(self.method).items() if value is not None},
            **{f"space of {name}": format_domain(domain) for name, domain in self.space.items()},
            **self.graph,
        }


@contextmanager
def open_study(search: Search) -> Iterator[Study]:
    """Open or create the study of a search; refuse one that was created for another search."""
    with _quiet():
        storage = _storage(search.storage)
        try:
            yield _study(search, storage)
        except optuna.exceptions.StorageInternalError as error:
            raise _unusable(search.storage, error) from None
        finally:
            if isinstance(storage, RDBStorage):
                storage.remove_session()
                storage.engine.dispose()


def without_password(storage: str | None) -> str:
    """Return the place of a storage for display."""
    return "memory" if storage is None else re.sub(r"(://[^:@/]*):.*@", r"\1:***@", storage)


def retry(study: Study, trial: FrozenTrial) -> None:
    """Queue the settings of a trial that was cut short, once."""
    optuna.storages.RetryHeartbeatStaleTrialCallback(MAX_RETRIES)(study, trial)


class _HeartbeatJournal(JournalStorage, BaseHeartbeat):
    """A journal with heartbeats, which optuna itself has for databases only."""

    def record_heartbeat(self, trial_id: int) -> None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self.set_trial_user_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        def silent_s(trial: FrozenTrial) -> float:
            start = 0.0 if trial.datetime_start is None else trial.datetime_start.timestamp()
            return time.time() - max(start, trial.user_attrs.get("heartbeat", 0.0))

        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        return [trial._trial_id for trial in running if silent_s(trial) > GRACE_S]

    def get_heartbeat_interval(self) -> int:
        return HEARTBEAT_S

    def get_heartbeat_stale_trial_callback(self) -> Callable[[Study, FrozenTrial], None]:
        return retry


class _PerTrialSampler(TPESampler):
    """A TPE sampler with a seed per trial, which optuna's samplers do not have.

    What a trial samples then depends on its number and on the trials before it, not on which
    process asks or on how often the search was stopped.
    """

    def __init__(self, seed: int, **options: Any) -> None:
        self._search_seed, self._options = seed, options
        super().__init__(seed=seed, **options)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        sequence = np.random.SeedSequence([self._search_seed, trial.number])
        super().__init__(seed=int(sequence.generate_state(1)[0]), **self._options)
        super().before_trial(study, trial)


def _storage(place: str | None) -> BaseStorage:
    if place is None:
        return optuna.storages.InMemoryStorage()
    try:
        if "://" not in place:
            path = Path(place).expanduser().absolute()
            if "?" in str(path):  # where the options of a URL would begin
                raise InputError("storage", f"{path} has a '?' in its name", "give another name")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _is_sqlite(path):
                return _HeartbeatJournal(JournalFileBackend(str(path)))
            place = f"sqlite:///{path}".replace("{", "{{").replace("}", "}}")
        if place.startswith("redis"):
            return _HeartbeatJournal(JournalRedisBackend(place))
        # Several processes write to one SQLite file: one may wait for the others.
        wait = {"connect_args": {"timeout": 60}} if place.startswith("sqlite") else {}
        return RDBStorage(
            place,
            engine_kwargs=wait,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=retry,
        )
    except InputError:
        raise
    except Exception as error:  # whatever a database or its driver raises
        raise _unusable(place, error) from None


def _unusable(place: str | None, error: Exception) -> InputError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    value = f"{without_password(place)} cannot be used: {reason[0].rstrip('.')}"
    hint = "give a file, or a URL of optuna's such as postgresql://user@host/name"
    return InputError("storage", value, hint)


def _is_sqlite(path: Path) -> bool:
    """Tell SQLite from a journal; refuse another file, which optuna would append to."""
    if not path.is_file() or not path.stat().st_size:
        return path.suffix in (".db", ".sqlite", ".sqlite3")
    with path.open("rb") as file:
        start = file.read(15)
    if start != b"SQLite format 3" and not start.startswith(b'{"op_code"'):
        reason = f"{path} is neither an SQLite file nor a journal of optuna's"
        raise InputError("storage", reason, "give another name")
    return not start.startswith(b"{")


def _study(search: Search, storage: BaseStorage) -> Study:
    identity = search.identity()
    constrained = search.limit is not None
    directions = [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE][: 1 if constrained else 2]
    sampler = _PerTrialSampler(search.seed, constant_liar=True, multivariate=constrained)
    try:
        study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            study_name=search.study_name,
            directions=directions,
            load_if_exists=True,
        )
        known = study.user_attrs.get("fairmp")
    except Exception as error:
        raise _unusable(search.storage, error) from None
    name = f"{search.study_name!r} in {without_password(search.storage)}"
    if known is None:
        if study.get_trials(deepcopy=False):
            hint = "give another study name or storage"
            raise InputError("study", f"{name} was not made by fairmp tune", hint)
        study.set_user_attr("fairmp", identity)
        limit = search.limit if search.criterion == "dp" else None
        for settings in first_settings(search.space, limit):
            study.enqueue_trial(settings)
        return study
    for key in dict.fromkeys([*identity, *known]):
        before, now = known.get(key), identity.get(key)
        # Statistics of features may round differently on another machine.
        floats = isinstance(before, float) and isinstance(now, float)
        if before != now and not (floats and math.isclose(before, now, rel_tol=1e-4, abs_tol=1e-6)):
            raise InputError(
                "study",
                f"{name} was made with {key} = {before}, this run has {now}",
                "give the same, or another study name, storage or folder",
            )
    return study


@contextmanager
def _quiet() -> Iterator[None]:
    """Let optuna log errors only."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
