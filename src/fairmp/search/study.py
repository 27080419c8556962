"""The study behind a search: where it is kept, whose it is, and what draws its trials.

Loads optuna; :mod:`fairmp.search.tune` says so in one line where it is missing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from fairmp.errors import InputError
from fairmp.search.space import Method, Space, guesses


@dataclass(frozen=True)
class Search:
    """What is looked for, among what, and where its trials are kept.

    Attributes:
        method: what all trials share.
        space: what they choose from.
        limit: the largest gap accepted on the validation nodes; ``None`` for the whole front.
        criterion: the gap meant, ``"dp"`` or ``"eo"``.
        trials: how many to make in all.
        splits: over how many splits a trial's figures are means.
        seed: of the splits, the initialisations and the search.
        device: where to compute.
        storage: see :func:`opened`.
        study_name: of the study in its storage.
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

    def about(self) -> dict[str, Any]:
        """Everything that trials of one study must agree in, as what JSON can say."""
        goal = "front" if self.limit is None else self.limit
        shared = {name: value for name, value in vars(self.method).items() if value is not None}
        space = {name: str(domain) for name, domain in self.space.items()}
        return {
            "goal": goal,
            "criterion": self.criterion,
            "splits": self.splits,
            "seed": self.seed,
            **shared,
            **{f"space of {name}": text for name, text in space.items()},
        }


@contextmanager
def opened(search: Search, about: Mapping[str, Any]) -> Iterator[Study]:
    """Open a search's study, or make it; refuse one that was made for something else.

    A storage is ``None`` (kept in memory), an SQLite file, another file (optuna's journal, for
    machines that share a folder), or any URL of optuna's.
    """
    with _quiet():
        storage = _storage(search.storage)
        try:
            yield _study(search, about, storage)
        except optuna.exceptions.StorageInternalError as error:
            raise _unusable(search.storage, error) from None
        finally:
            if isinstance(storage, optuna.storages.RDBStorage):
                storage.remove_session()
                storage.engine.dispose()


def shown_place(storage: str | None) -> str:
    """A storage's place, fit to be shown."""
    if storage is None:
        return "memory"
    if "://" not in storage or "@" not in storage:
        return storage
    scheme, rest = storage.split("://", 1)
    user, host = rest.rsplit("@", 1)
    return f"{scheme}://{user.split(':', 1)[0]}:***@{host}" if ":" in user else storage


class _PerTrial(BaseSampler):
    """A sampler that draws each trial from a seed of its own.

    What a trial chooses then depends on its number and on the trials before it, and neither on
    which process asks nor on how often the search was stopped in between.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed
        self._current: tuple[int, BaseSampler] | None = None

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if self._current is None or self._current[0] != trial.number:
            sequence = np.random.SeedSequence([self._seed, trial.number])
            self._current = (trial.number, self._make(int(sequence.generate_state(1)[0])))
        return self._current[1]

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._of(trial).before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        self._of(trial).after_trial(study, trial, state, values)


def _sampler(search: Search) -> BaseSampler:
    options: dict[str, Any] = {"constant_liar": True, "multivariate": search.limit is not None}
    if search.limit is not None and not hasattr(Trial, "set_constraint"):
        options["constraints_func"] = lambda trial: [trial.user_attrs["excess"]]  # optuna 4
    return _PerTrial(lambda seed: TPESampler(seed=seed, **options), search.seed)


def _storage(place: str | None) -> BaseStorage:
    if place is None:
        return optuna.storages.InMemoryStorage()
    try:
        if "://" not in place:
            path = Path(place).expanduser().absolute()
            if "?" in str(path):  # where a URL's options would begin
                raise InputError("storage", f"{path} has a '?' in its name", "give another")
            path.parent.mkdir(parents=True, exist_ok=True)
            if not _is_sqlite(path):
                from optuna.storages.journal import JournalFileBackend

                _check_journal(path)
                return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            place = f"sqlite:///{path}".replace("{", "{{").replace("}", "}}")
        if place.startswith("redis"):
            from optuna.storages.journal import JournalRedisBackend

            return optuna.storages.JournalStorage(JournalRedisBackend(place))
        # Several processes write to one SQLite file: one may wait for the others.
        wait = {"connect_args": {"timeout": 60}} if place.startswith("sqlite") else {}
        return optuna.storages.RDBStorage(place, engine_kwargs=wait)
    except InputError:
        raise
    except Exception as error:  # whatever a database or its driver raises
        raise _unusable(place, error) from None


def _unusable(place: str | None, error: Exception) -> InputError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return InputError(
        "storage",
        f"{shown_place(place)} can not be used: {reason[0].rstrip('.')}",
        "give an SQLite file, a journal file, or a URL of optuna's such as "
        "postgresql://user@host/name",
    )


def _is_sqlite(path: Path) -> bool:
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    return path.suffix in (".db", ".sqlite", ".sqlite3")


def _check_journal(path: Path) -> None:
    """Refuse a file of something else: optuna would write to its end before it looks."""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if not file.read(10).startswith(b'{"op_code"'):
                raise InputError(
                    "storage",
                    f"{path} is neither an SQLite file nor a journal of optuna's",
                    "give another name",
                )


def _study(search: Search, about: Mapping[str, Any], storage: BaseStorage) -> Study:
    more, less = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE
    try:
        study = optuna.create_study(
            storage=storage,
            sampler=_sampler(search),
            study_name=search.study_name,
            directions=[more] if search.limit is not None else [more, less],
            load_if_exists=True,
        )
        known = study.user_attrs.get("fairmp")
    except Exception as error:
        raise _unusable(search.storage, error) from None
    where = f"study: {search.study_name!r} in {shown_place(search.storage)}"
    if known is None and study.get_trials(deepcopy=False):
        raise InputError.parse(
            f"{where} was not made by fairmp tune; give another study name or storage"
        )
    if known is None:
        study.set_user_attr("fairmp", dict(about))
        for settings in guesses(search.space, search.limit if search.criterion == "dp" else None):
            study.enqueue_trial(settings)
        return study
    for name in dict.fromkeys([*about, *known]):
        before, now = known.get(name), about.get(name)
        if not _same(before, now):
            raise InputError.parse(
                f"{where} was made with {name} = {before}, this run has {now}; give the same, or "
                "another study name, storage or folder"
            )
    return study


def _same(before: Any, now: Any) -> bool:
    # What is computed of features may round differently on another machine.
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-4, abs_tol=1e-6)
    return bool(before == now)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna speaks up for errors alone, until the end of this."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
