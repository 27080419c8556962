"""The optuna study behind a search: storage, identity and sampler, and its trials."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat, get_heartbeat_thread
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from torch_geometric.data import Data

from fairmp.datasets.databases import without_password
from fairmp.datasets.splits import MASKS
from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.parallel import WorkerPool
from fairmp.search import space as spaces
from fairmp.search.space import Method, Settings, Space
from fairmp.training.classifier import FairClassifier, Run

FIGURES = ("accuracy", "dp", "eo", "auc", "f1")
POLL_S = 0.5
_NEEDED = ("x", "edge_index", "y", "sens", "edge_weight", "sample_weight", *MASKS)
HEARTBEAT_S, GRACE_S = 10, 30
"""Seconds between two heartbeats of a trial, and without one until its process counts as dead."""
MAX_RETRIES, MAX_RESTARTS = 1, 3


@dataclass(frozen=True)
class Search:
    """Goal, space and storage of a search; see :func:`fairmp.search.tune.tune`."""

    method: Method
    space: Space
    limit: float | None  # largest gap accepted on the validation nodes, None for the whole front
    criterion: str
    trials: int
    splits: int
    seed: int
    device: str
    storage: str | None
    study_name: str
    graph: dict[str, Any]  # fingerprint of the data
    deadline: float | None = None  # time after which no trial begins

    @property
    def expired(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.time() >= self.deadline

    def identity(self) -> dict[str, Any]:
        """Everything that all trials of one study must have in common, as JSON types."""
        found = {name: getattr(self, name) for name in ("criterion", "splits", "seed")}
        found["goal"] = "front" if self.limit is None else self.limit
        found |= {name: value for name, value in vars(self.method).items() if value is not None}
        for name, domain in self.space.items():
            found[f"space of {name}"] = spaces.format_domain(domain)
        return found | self.graph


@contextmanager
def open_study(search: Search) -> Iterator[Study]:
    """Open or create the study of a search; refuse one that was created for another search."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage")  # add_trial records it
            storage = _storage(search.storage)
            yield _study(search, storage)
    except optuna.exceptions.StorageInternalError as error:
        raise _unusable(search.storage, error) from None
    finally:
        optuna.logging.set_verbosity(level)
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def shown(storage: str | None) -> str:
    """Return the place of a storage for display, without its password."""
    return "memory" if storage is None else without_password(storage)


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
    """A TPE sampler with a seed per trial and setting: it does not matter which process asks."""

    def __init__(self, seed: int, **options: Any) -> None:
        self._search_seed, self._options = seed, options
        super().__init__(seed=seed, **options)

    def _reseed(self, *key: int) -> None:
        sequence = np.random.SeedSequence([self._search_seed, *key])
        super().__init__(seed=int(sequence.generate_state(1)[0]), **self._options)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._reseed(trial.number)
        super().before_trial(study, trial)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, domain: Any) -> Any:
        self._reseed(trial.number, *name.encode())
        return super().sample_independent(study, trial, name, domain)


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
    value = f"{shown(place)} cannot be used: {reason[0].rstrip('.')}"
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
    identity, constrained = search.identity(), search.limit is not None
    sampler = _PerTrialSampler(search.seed, constant_liar=True, multivariate=constrained)
    try:
        study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            study_name=search.study_name,
            directions=["maximize", "minimize"][: 1 if constrained else 2],
            load_if_exists=True,
        )
        known = study.user_attrs.get("fairmp")
    except Exception as error:
        raise _unusable(search.storage, error) from None
    name = f"{search.study_name!r} in {shown(search.storage)}"
    if known is None:
        if _all(study):
            hint = "give another study name or storage"
            raise InputError("study", f"{name} was not made by fairmp tune", hint)
        study.set_user_attr("fairmp", identity)
        known = identity
    for key in dict.fromkeys([*identity, *known]):
        before, now = known.get(key, "unset"), identity.get(key, "unset")
        # Statistics of features may round differently on another machine.
        floats = isinstance(before, float) and isinstance(now, float)
        if before != now and not (floats and math.isclose(before, now, rel_tol=1e-4, abs_tol=1e-6)):
            value = f"{name} was made with {key} = {before}, this run has {now}"
            raise InputError(
                "study", value, "give the same, or another study name, storage or folder"
            )
    limit = search.limit if search.criterion == "dp" else None
    for settings in spaces.first_settings(search.space, limit)[len(_all(study)) :]:
        study.enqueue_trial(settings)
    return study


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


@dataclass
class TrialWorker:
    """What each process of a search does with a job: add a trial, or train a chosen one."""

    search: Search
    parts: Sequence[Data]
    study: Study | None

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


TrialPool: TypeAlias = WorkerPool[TrialResult | None, list[Run]]


def run_trials(study: Study, search: Search, pool: TrialPool, on_trial: Callable[[], None]) -> None:
    """Add trials until the study has all of them, or time is up."""
    idle_since = None
    while not search.expired:
        optuna.storages.fail_stale_trials(study)
        missing = search.trials - sum(map(_counts, _all(study)))
        if missing > 0:
            idle_since = None
            for _ in pool.map([None] * missing):
                on_trial()
            continue
        # Trials of other processes are waited for until they are known to be dead, and repeated.
        idle_since = idle_since or time.time()
        if not running(study) or time.time() - idle_since > GRACE_S + HEARTBEAT_S:
            return
        time.sleep(POLL_S)
    on_trial()


def add_trial(study: Study, search: Search, parts: Sequence[Data]) -> None:
    """Add one trial to a study, unless it has all of them; several processes may at once."""
    if sum(map(_counts, _all(study))) >= search.trials:
        return
    optuna.storages.fail_stale_trials(study)
    trial = study.ask()
    if isinstance(study._storage, BaseHeartbeat):  # a process may die before the thread's first one
        study._storage.record_heartbeat(trial._trial_id)
    try:
        with get_heartbeat_thread(trial._trial_id, study._storage):
            # Where more were begun than wanted, those with the largest numbers step back.
            before = [t for t in _all(study) if t.number < trial.number]
            enough = sum(_counts(t) or t.state == TrialState.WAITING for t in before)
            found = None if enough >= search.trials else _evaluate(trial, search, parts)
        study.tell(trial, found, TrialState.FAIL if found is None else None)
    except KeyboardInterrupt:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        raise
    except (ValueError, RuntimeError):
        # Taken for dead and queued again by another process: that one's figures count.
        if not _all(study)[trial.number].state.is_finished():
            raise


def restart(study: Study) -> None:
    """Queue trials that were cut short again, in their places, where no other process runs any."""
    for trial in _all(study):
        if trial.state == TrialState.RUNNING:
            count = trial.user_attrs.get("restarts", 0) + 1
            again = count <= MAX_RESTARTS
            attribute = ("restarts", count) if again else ("failed", f"ended {count} processes")
            study._storage.set_trial_user_attr(trial._trial_id, *attribute)
            state = TrialState.WAITING if again else TrialState.FAIL
            study._storage.set_trial_state_values(trial._trial_id, state)


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
    models = [spaces.classifier(search.method, settings, search.device) for _ in parts]
    for model, data in zip(models, parts, strict=True):
        model.fit(data, seed=search.seed, bootstrap=bootstrap, progress=False)
    return models


def means(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Mean of each figure over splits, ``None`` where a split has none."""
    columns = {key: [row[key] for row in evaluations] for key in FIGURES}
    return {k: None if None in v else math.fsum(v) / len(v) for k, v in columns.items()}


def plain(evaluation: Evaluation) -> dict[str, float | None]:
    """Return an evaluation's figures as JSON types."""
    found = evaluation.to_dict()
    return {key: found[key] for key in FIGURES}


def _evaluate(
    trial: Trial, search: Search, parts: Sequence[Data]
) -> float | tuple[float, float] | None:
    """Train the settings of a trial; its values, or ``None`` if that failed."""
    start = time.perf_counter()
    try:
        settings = spaces.suggest(trial, search.space)
        trial.set_user_attr("settings", settings)
        per_split = [plain(model.run_.val) for model in train(search, settings, parts)]
        figures = means(per_split)
        gap, accuracy = figures[search.criterion], figures["accuracy"]
        if gap is None or accuracy is None:
            missing = "cannot be estimated on the validation nodes"
            raise InputError(spaces.SYMBOLS[search.criterion], missing)
    except Exception as error:  # whatever it was, the other trials go on
        reason = " ".join(str(error).split())[:300]
        if not isinstance(error, InputError):
            reason = f"{type(error).__name__}: {reason}"
        trial.set_user_attr("failed", reason)
        return None
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
