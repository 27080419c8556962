"""Hyperparameter search: the most accurate classifier within a gap, or the whole front.

    tuned = tune(data, goal=0.02, trials=50)

``fairmp tune`` is the same from the shell.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import optuna
import torch
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS, check, split, with_split
from fairmp.datasets.transforms import as_read
from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.metrics.pareto import front
from fairmp.parallel import WorkerPool
from fairmp.training.classifier import FairClassifier
from fairmp.training.run import Run
from fairmp.tuning.space import SYMBOLS, Criterion, Method, default_space, narrowed
from fairmp.tuning.study import Search, open_study
from fairmp.tuning.trials import TrialResult, end_dead, results, running
from fairmp.tuning.workers import run_trials, train, training_data

BOOTSTRAP = 1000  # resamples of the test nodes


@dataclass(frozen=True)
class Tuned:
    """Result of a search."""

    search: Search  # goal and space
    name: str  # of the graph
    trials: tuple[TrialResult, ...]  # all finished ones; those that failed have the reason
    chosen: TrialResult  # see :func:`choose`
    met: bool  # whether the chosen one is within the limit; always true for a front
    front: tuple[TrialResult, ...]  # not dominated, from the fairest to the most accurate
    checked: dict[int, list[Run]]  # runs of trials evaluated on the test nodes, one per split
    model: FairClassifier  # the chosen one, as trained on the first split
    running: int  # trials that other processes have not finished

    @property
    def symbol(self) -> str:
        """Symbol of the gap, ``"ΔDP"`` or ``"ΔEO"``."""
        return SYMBOLS[self.search.criterion]

    @property
    def done(self) -> list[TrialResult]:
        """Trials that have figures."""
        return [trial for trial in self.trials if trial.failed is None]

    def gap(self, trial: TrialResult) -> float:
        """Gap of a trial on the validation nodes."""
        return trial.figure(self.search.criterion)


def tune(  # noqa: PLR0913
    data: Data,
    *,
    goal: float | Literal["front"] = 0.02,
    criterion: Criterion = "dp",
    method: Method | None = None,
    space: Sequence[str] = (),
    trials: int = 50,
    timeout: float | None = None,
    workers: int = 1,
    splits: int = 1,
    seed: int = 0,
    storage: str | None = None,
    study_name: str = "fairmp",
    exclusive: bool = False,
    device: str = "cpu",
    on_start: Callable[[int, int], None] = lambda done, left: None,
    on_trial: Callable[[TrialResult], None] = lambda trial: None,
) -> Tuned:
    r"""Search for settings, and train the best ones.

    With a limit :math:`t` it solves the constrained problem

    .. math::
        \max_θ \mathrm{accuracy}_{val}(θ) \quad \text{s.t.} \quad Δ_{val}(θ) ≤ t,

    by optuna's constrained tree-structured Parzen estimator; with ``"front"`` accuracy and gap are
    two objectives. Figures are means over ``splits`` splits of the nodes that are not test nodes.
    The test nodes are evaluated once, for the chosen trial: as the best of many, it looks better
    on its validation nodes than it is.

    With a ``storage`` a search is resumable: the same call adds trials until there are ``trials``
    in total. Trials whose process was killed are repeated. With one worker the same seed gives the
    same trials, however often the search was stopped; if it was killed, only if it is
    ``exclusive``.

    Args:
        data: a graph. Its own masks are kept; without them labelled nodes of known group are split
            50/25/25 by ``seed``.
        goal: largest gap accepted on the validation nodes, 0.02 for two points; or ``"front"``.
        criterion: the gap that is limited: ``"dp"``, or ``"eo"``, equal opportunity. FMP's own
            target is always of ``"dp"``.
        method: what all trials share; FMP by default.
        space: changes to the search space: ``"lr=0.01"``, ``"hidden=16,64"``, ``"lambda_s=1..10"``.
        trials: total number of trials.
        timeout: seconds after which no further trial begins.
        workers: number of processes, with one torch thread each; several need a ``storage``.
        splits: number of splits over which a trial's figures are means.
        seed: seed of the splits, the initialisations and the search.
        storage: an SQLite file, or the URL of a database such as
            ``postgresql://user@host/name``; ``None`` keeps the study in memory.
        study_name: name of the study in its storage.
        exclusive: no other process uses the study. Trials that were cut short are repeated at
            once, and not only after their heartbeat has stopped.
        device: device to train on.
        on_start: called once, with the numbers of trials done already and still to do.
        on_trial: called with each new finished trial.

    Raises:
        InputError: If an argument is wrong, the study is of another search, or all trials failed.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=300, average_degree=6)
        >>> short = ["hidden=8", "K=2", "lr=0.02"]
        >>> tuned = tune(data, goal=0.1, method=Method(epochs=3), space=short, trials=3)
        >>> len(tuned.trials), tuned.model.run_.test.n
        (3, 75)
    """
    began = time.time()
    method = method or Method()
    limit = _check_goal(goal, criterion)
    for name, count in (("trials", trials), ("workers", workers), ("splits", splits)):
        check_integer(name, count, "give a whole number, 1 or more")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    if timeout is not None:
        check_number("timeout", timeout, "give seconds, more than 0", low=0, above=True)
    if workers > 1 and storage is None:
        hint = "name a file in {storage}"
        raise InputError("workers", f"{workers} need a storage that they share", hint)
    domains = narrowed(default_space(method, limit, criterion), space, method)
    FairClassifier(device=device)
    data = as_read(data)
    check(data)
    parts = data_splits(data, splits, seed)
    search = Search(
        method=method,
        space=domains,
        limit=limit,
        criterion=criterion,
        trials=trials,
        splits=splits,
        seed=seed,
        device=device,
        storage=storage,
        study_name=study_name,
        graph=fingerprint(parts[0]),
        deadline=None if timeout is None else began + timeout,
    )
    with open_study(search) as study:
        end_dead(study, running(study)) if exclusive else optuna.storages.fail_stale_trials(study)
        seen = {trial.number for trial in results(study)}
        left = max(0, trials - len(seen))
        on_start(len(seen), left)

        def report_new() -> None:
            for trial in results(study):
                if trial.number not in seen:
                    seen.add(trial.number)
                    on_trial(trial)

        workers = max(1, min(workers, left))
        run_trials(study, search, parts, workers, report_new)
        return _choose_and_check(search, results(study), parts, workers, len(running(study)))


def _check_goal(goal: float | str, criterion: str) -> float | None:
    """The largest gap accepted, or None for a front."""
    check_choice("criterion", criterion, SYMBOLS)
    hint = "give the largest gap you accept in [0, 1], 0.02 for two points, or 'front'"
    return None if goal == "front" else check_number("goal", goal, hint, low=0, high=1)


def data_splits(data: Data, splits: int, seed: int) -> list[Data]:
    """One copy of the graph per split: same test nodes, the others split anew."""
    first = data if all(name in data for name in MASKS) else with_split(data, seed=seed)
    check(first, masks=True)
    parts = [first]
    hidden = torch.where(first.train_mask | first.val_mask, first.y, -1)
    for number in range(1, splits):
        # Two of three equal parts to train on, which is the ratio of the first split.
        third, other_third, val = split(
            (hidden, data.sens), seed=seed + number, fractions=[1 / 3] * 3
        )
        part = copy.copy(first)
        part.train_mask, part.val_mask = third | other_third, val
        check(part, masks=True)
        parts.append(part)
    return parts


def fingerprint(data: Data) -> dict[str, Any]:
    """What distinguishes one graph from another, the same on every machine."""
    digest = hashlib.sha256()
    codes = [data[name] for name in ("edge_index", "y", *MASKS)]
    for values in (*codes, groups.most_likely_group(data.sens)):
        digest.update(values.cpu().contiguous().to(torch.int64).numpy().tobytes())
    features = (data.x.coalesce().values() if data.x.is_sparse else data.x).double()
    return {
        "data": str(getattr(data, "name", "graph")),
        "nodes": data.x.size(0),
        "features": data.x.size(1),
        "mean feature": float(features.abs().mean()),
        "spread of features": float(features.std()),
        "graph": digest.hexdigest()[:16],
    }


def _choose_and_check(
    search: Search,
    trials: Sequence[TrialResult],
    splits: Sequence[Data],
    workers: int,
    num_running: int,
) -> Tuned:
    """Choose a trial, train it again, and evaluate it on the test nodes; likewise a whole front."""
    done = [trial for trial in trials if trial.failed is None]
    if not done:
        reason = f"the first failed: {trials[0].failed}" if trials else "the time was up before"
        raise InputError("trials", f"none of {len(trials)} has any figures", reason)
    best = pareto(done, search.criterion)
    chosen, met = choose(done, search.limit, search.criterion)
    models = train(search, chosen.settings, splits, bootstrap=BOOTSTRAP)
    checked = {chosen.number: [model.run_ for model in models]}
    others = [] if search.limit is not None else [trial for trial in best if trial is not chosen]
    runs_of = partial(_runs_of, search=search, splits=[training_data(data) for data in splits])
    with WorkerPool(runs_of, max(1, min(workers, len(others)))) as pool:
        checked |= {trial.number: runs for trial, runs in pool.map(others)}
    return Tuned(
        search=search,
        name=search.graph["data"],
        trials=tuple(trials),
        chosen=chosen,
        met=met,
        front=tuple(best),
        checked=checked,
        model=models[0],
        running=num_running,
    )


def _runs_of(trial: TrialResult, search: Search, splits: Sequence[Data]) -> list[Run]:
    return [model.run_ for model in train(search, trial.settings, splits, bootstrap=BOOTSTRAP)]


def pareto(trials: Sequence[TrialResult], criterion: str) -> list[TrialResult]:
    """Trials on the Pareto front, from the fairest to the most accurate; of equals the first."""
    place = {(t.figure("accuracy"), t.figure(criterion)): t for t in reversed(trials)}
    return [place[point] for point in front(place)]


def choose(
    trials: Sequence[TrialResult], limit: float | None, criterion: str
) -> tuple[TrialResult, bool]:
    """Choose the most accurate trial within a limit, else the fairest; return whether it is met."""
    if limit is not None:
        within = [trial for trial in trials if trial.figure(criterion) <= limit]
        if within:
            return max(within, key=lambda t: (t.figure("accuracy"), -t.figure(criterion))), True
        return min(trials, key=lambda t: (t.figure(criterion), -t.figure("accuracy"))), False
    # For a front, the trial nearest to its ideal corner, both axes scaled.
    best = pareto(trials, criterion)
    points = np.array([[trial.figure("accuracy"), -trial.figure(criterion)] for trial in best])
    corner, spread = points.max(0), np.ptp(points, axis=0)
    # A single point is its own corner, whatever the scale.
    distances = np.hypot(*((corner - points) / np.where(spread == 0, 1, spread)).T)
    return best[int(distances.argmin())], True
