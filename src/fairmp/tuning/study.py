"""What a search is for, and the optuna study behind it: its storage, identity and sampler."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import Study
from optuna.trial import FrozenTrial

from fairmp.errors import InputError
from fairmp.secrets import without_password
from fairmp.tuning import trials
from fairmp.tuning.space import Criterion, Method, Settings, Space, first_settings, format_domain

IDENTITY = "fairmp"  # user attribute of the study that holds what all its trials share
SQLITE_WAIT_S = 60  # several processes write to one file: one may wait for the others


@dataclass(frozen=True)
class Search:
    """Goal, space and storage of a search; see :func:`fairmp.tuning.tune.tune`."""

    method: Method
    space: Space
    limit: float | None  # largest gap accepted on the validation nodes, None for the whole front
    criterion: Criterion
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
        method = asdict(self.method)
        return {
            "criterion": self.criterion,
            "splits": self.splits,
            "seed": self.seed,
            "goal": "front" if self.limit is None else self.limit,
            "method": method.pop("name"),
            **{name: value for name, value in method.items() if value is not None},
            **{f"space of {name}": format_domain(domain) for name, domain in self.space.items()},
            **self.graph,
        }


@contextmanager
def open_study(search: Search) -> Iterator[Study]:
    """Open or create the study of a search; refuse one that was created for another search."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = _open_storage(search.storage)
            study = _create_study(search, storage)
            _check_identity(search, study)
            yield study
    except optuna.exceptions.StorageInternalError as error:
        raise _unusable(search.storage, error) from None
    finally:
        optuna.logging.set_verbosity(level)
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def display_name(storage: str | None) -> str:
    """Return the place of a storage for display, without its password."""
    return "memory" if storage is None else without_password(storage)


class PerTrialSampler(TPESampler):
    """A TPE sampler with a seed per trial and setting, so that any process may ask.

    The trials in the first places have the settings of ``first``. These are not queued: the
    repetition of a trial that was cut short would come after them, and what is sampled depends on
    the order of the trials.
    """

    def __init__(self, seed: int, first: Sequence[Settings] = (), **options: Any) -> None:
        self._search_seed, self._first, self._options = seed, first, options
        super().__init__(seed=seed, **options)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Seed the sampler for a trial."""
        self._place = trials.place(trial, study.get_trials(deepcopy=False))
        self._given = self._first[self._place] if self._place < len(self._first) else {}
        self._reseed(self._place)
        super().before_trial(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample settings jointly, unless some are given."""
        return {} if self._given else super().sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, name: str, domain: BaseDistribution
    ) -> Any:
        """Sample a setting that the joint model does not cover, with a seed of its own."""
        if name in self._given:
            return self._given[name]
        self._reseed(self._place, *name.encode())
        return super().sample_independent(study, trial, name, domain)

    def _reseed(self, *key: int) -> None:
        sequence = np.random.SeedSequence([self._search_seed, *key])
        super().__init__(seed=int(sequence.generate_state(1)[0]), **self._options)


def _open_storage(place: str | None) -> BaseStorage:
    if place is None:
        return InMemoryStorage()
    url = place if "://" in place else _sqlite_url(Path(place).expanduser().absolute())
    wait = {"connect_args": {"timeout": SQLITE_WAIT_S}} if url.startswith("sqlite") else {}
    try:
        return RDBStorage(
            url,
            engine_kwargs=wait,
            heartbeat_interval=trials.HEARTBEAT_S,
            grace_period=trials.GRACE_S,
            heartbeat_stale_trial_callback=trials.repeat_dead,
        )
    except Exception as error:  # whatever a database or its driver raises
        raise _unusable(place, error) from None


def _sqlite_url(path: Path) -> str:
    """The URL of an SQLite file; a file of something else is refused."""
    if "?" in str(path):  # where the options of a URL would begin
        raise InputError("storage", f"{path} has a '?' in its name", "give another name")
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(15) != b"SQLite format 3":
                raise InputError("storage", f"{path} is not an SQLite file", "give another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}".replace("{", "{{").replace("}", "}}")


def _unusable(place: str | None, error: Exception) -> InputError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    value = f"{display_name(place)} cannot be used: {reason[0].rstrip('.')}"
    hint = "give a file, or the URL of a database such as postgresql://user@host/name"
    return InputError("storage", value, hint)


def _create_study(search: Search, storage: BaseStorage) -> Study:
    constrained = search.limit is not None
    first = first_settings(search.space, search.limit if search.criterion == "dp" else None)
    sampler = PerTrialSampler(search.seed, first, constant_liar=True, multivariate=constrained)
    try:
        return optuna.create_study(
            storage=storage,
            sampler=sampler,
            study_name=search.study_name,
            directions=["maximize"] if constrained else ["maximize", "minimize"],
            load_if_exists=True,
        )
    except Exception as error:  # whatever a database raises, or an existing study of another kind
        raise _unusable(search.storage, error) from None


def _check_identity(search: Search, study: Study) -> None:
    """Refuse a study that was made for another search."""
    name = f"{search.study_name!r} in {display_name(search.storage)}"
    identity, stored = search.identity(), study.user_attrs.get(IDENTITY)
    if stored is None:
        if study.get_trials(deepcopy=False):
            hint = "give another {study_name} or {storage}"
            raise InputError("study_name", f"{name} was not made by fairmp", hint)
        study.set_user_attr(IDENTITY, identity)
        return
    for key in dict.fromkeys([*identity, *stored]):
        before, now = stored.get(key, "unset"), identity.get(key, "unset")
        if not _agree(before, now):
            value = f"{name} was made with {key} = {before}, this run has {now}"
            hint = "give the same, or another {study_name}, {storage} or {folder}"
            raise InputError("study_name", value, hint)


def _agree(before: object, now: object) -> bool:
    """Whether values are equal; statistics of features may round differently elsewhere."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-4, abs_tol=1e-6)
    return before == now
