"""Search for the settings of a fair classifier: the best accuracy within a gap, or the front.

    tuned = tune(data, goal=0.02, trials=50)

``fairmp tune`` is the same from the shell.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.checks import MASKS, check
from fairmp.datasets.splits import split
from fairmp.errors import InputError
from fairmp.report.pareto import front
from fairmp.search import space as tune_space
from fairmp.search.space import SYMBOLS, Criterion, Method
from fairmp.training.classifier import FairClassifier, Run

if TYPE_CHECKING:
    from optuna.study import Study

    from fairmp.search.study import Search
    from fairmp.search.trials import TrialResult
    from fairmp.search.workers import WorkerPool


@dataclass(frozen=True)
class Checked:
    """A trial's settings trained again, and looked at on the test nodes.

    Attributes:
        trial: the trial.
        runs: a run a split; the test nodes are the same in all of them.
    """

    trial: TrialResult
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        search: what was looked for.
        name: the graph's name.
        trials: all trials that came to an end, those that failed with their reason.
        chosen: the trial chosen. Within a limit: the most accurate on the validation nodes among
            those whose gap is within it, and the one with the smallest gap where none is. Of a
            front: the one nearest to its ideal corner, both axes scaled to the front.
        met: whether the chosen one is within the limit; always so for a front.
        front: the trials no other one beats, from the fairest to the most accurate.
        checked: what the test nodes say, by the trial's number: of the chosen one, and for a front
            of all on it.
        model: the chosen classifier, as trained on the first split.
        running: trials that other processes were still at.
    """

    search: Search
    name: str
    trials: tuple[TrialResult, ...]
    chosen: TrialResult
    met: bool
    front: tuple[TrialResult, ...]
    checked: dict[int, Checked]
    model: FairClassifier
    running: int

    @property
    def symbol(self) -> str:
        """The gap's name in tables, ``"ΔDP"`` or ``"ΔEO"``."""
        return SYMBOLS[self.search.criterion]

    @property
    def done(self) -> list[TrialResult]:
        """The trials that have figures."""
        return [trial for trial in self.trials if trial.failed is None]

    def gap(self, trial: TrialResult) -> float:
        """The gap the search is about, on the validation nodes."""
        return trial.figure(self.search.criterion)


def tune(
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
    device: str = "cpu",
    on_start: Callable[[int, int], None] = lambda done, left: None,
    on_trial: Callable[[TrialResult], None] = lambda trial: None,
) -> Tuned:
    r"""Search for settings, and train the best ones.

    With a limit :math:`t` it is the constrained problem

    .. math::
        \max_θ \mathrm{accuracy}_{val}(θ) \quad \text{s.t.} \quad Δ_{val}(θ) ≤ t,

    by optuna's constrained tree-structured Parzen estimator; with ``"front"`` accuracy and gap are
    two objectives. Figures are means over ``splits`` splits of the nodes that are not test nodes
    into training and validation nodes. The test nodes are set aside beforehand and looked at once,
    for what is chosen in the end. The best of many trials looks better on its validation nodes
    than it is: the figures to quote are those on the test nodes.

    A search goes on where it was: with a ``storage``, the same call adds trials until there are
    ``trials`` in all. Trials cut short by a kill are ended and tried once more. With one worker
    the same seed gives the same trials, however often the search was stopped between two of them.

    Args:
        data: a graph. Its own masks are kept; without them labelled nodes of known group are split
            50/25/25 by ``seed``.
        goal: the largest gap accepted on the validation nodes, 0.02 for two points; or
            ``"front"``.
        criterion: the gap meant: ``"dp"``, or ``"eo"``, equal opportunity. FMP's own target is of
            the former, whatever is meant here.
        method: what all trials share; FMP for 300 epochs by default.
        space: changes to what is searched: ``"lr=0.01"``, ``"hidden=16,64"``, ``"lambda_s=1..10"``.
        trials: how many there are to be in all.
        timeout: seconds after which no further trial begins.
        workers: processes, with one torch thread each; more than one need a ``storage``.
        splits: over how many splits a trial's figures are means.
        seed: of the splits, the initialisations and the search.
        storage: an SQLite file, another file for optuna's journal, or any URL of optuna's such as
            ``postgresql://user@host/name``; ``None`` keeps the study in memory.
        study_name: of the study in its storage.
        device: where to compute.
        on_start: called once, with how many trials are done already and how many are to go.
        on_trial: called with each new trial that came to an end.

    Raises:
        InputError: If an argument is wrong, the study was made for something else, or no trial has
            any figures. That no trial is within the limit is no error: ``met`` tells.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=300, average_degree=6)
        >>> short = ["hidden=8", "K=2", "lr=0.02"]
        >>> tuned = tune(data, goal=0.1, method=Method(epochs=3), space=short, trials=3)
        >>> len(tuned.trials), tuned.model.run_.test.n
        (3, 75)
    """
    start = time.time()
    method = method or Method()
    limit = _limit(goal, criterion)
    _check_counts(trials=trials, workers=workers, splits=splits)
    if timeout is not None and not timeout > 0:
        raise InputError("timeout", f"{timeout} is no time", "give seconds, more than 0")
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "give 0 or a positive integer")
    if workers > 1 and storage is None:
        raise InputError("workers", f"{workers} need a storage that they share", "name a file")
    domains = tune_space.narrowed(tune_space.default_space(method, limit, criterion), space)
    tune_space.check(domains, method)
    FairClassifier(device=device)
    check(data)
    parts = _parts(data, splits, seed)
    load_optuna()
    from fairmp.search.study import Search, opened
    from fairmp.search.trials import release
    from fairmp.search.workers import crew

    search = Search(
        method, domains, limit, criterion, trials, splits, seed, device, storage, study_name
    )
    about = search.about() | _fingerprint(parts)
    deadline = None if timeout is None else start + timeout
    with opened(search, about) as study:
        left, tell = _begin(study, search, on_start, on_trial)
        try:
            with crew(search, about, parts, max(1, min(workers, left))) as hands:
                hands.work(study, deadline, tell)
                return _result(study, search, parts, hands)
        finally:
            release(study)


def load_optuna() -> None:
    """Raise one clear line if optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise InputError(
            "optuna", "not installed, and tuning needs it", "pip install 'fairmp[tune]'"
        ) from None


def _limit(goal: object, criterion: str) -> float | None:
    if criterion not in SYMBOLS:
        raise InputError("criterion", f"{criterion!r} is unknown", "choose 'dp' or 'eo'")
    if goal == "front":
        return None
    if isinstance(goal, bool) or not isinstance(goal, (int, float)) or not 0 <= goal <= 1:
        raise InputError(
            "goal",
            f"{goal!r} is neither a gap in [0, 1] nor 'front'",
            "give the largest gap you accept, 0.02 for two points",
        )
    return float(goal)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(name, f"{count} is too few", "give a whole number, 1 or more")


def _parts(data: Data, splits: int, seed: int) -> list[Data]:
    """The graph once a split: the test nodes stay, the others are dealt out anew."""
    sens = groups.likeliest(data.sens)
    first = copy.copy(data)
    if not all(name in data for name in MASKS):
        first.train_mask, first.val_mask, first.test_mask = split((data.y, sens), seed=seed)
    check(first, masks=True)
    parts = [first]
    hidden = torch.where(first.train_mask | first.val_mask, first.y, -1)
    for number in range(1, splits):
        # Thirds, since a split has three parts: two of them to train on, as in the first split.
        one, other, val = split((hidden, sens), seed=seed + number, fractions=[1 / 3] * 3)
        part = copy.copy(first)
        part.train_mask, part.val_mask = one | other, val
        check(part, masks=True)
        parts.append(part)
    return parts


def _fingerprint(parts: Sequence[Data]) -> dict[str, Any]:
    """What tells one graph from another, the same on every machine."""
    data = parts[0]
    digest = hashlib.sha256()
    codes = {name: data[name] for name in ("edge_index", "y", *MASKS)}
    for values in (*codes.values(), groups.likeliest(data.sens)):
        digest.update(values.cpu().contiguous().to(torch.int64).numpy().tobytes())
    return {
        "data": str(getattr(data, "name", "graph")),
        "nodes": data.x.size(0),
        "features": data.x.size(1),
        "mean feature": float(data.x.double().abs().mean()),
        "spread of features": float(data.x.double().std()),
        "graph": digest.hexdigest()[:16],
    }


def _begin(
    study: Study,
    search: Search,
    on_start: Callable[[int, int], None],
    on_trial: Callable[[TrialResult], None],
) -> tuple[int, Callable[[], None]]:
    """Say how many trials there are; return how many are to go, and what tells of them."""
    from fairmp.search.trials import release, tried

    release(study)
    seen = {trial.number for trial in tried(study)}
    left = max(0, search.trials - len(seen))
    on_start(len(seen), left)

    def tell() -> None:
        for trial in tried(study):
            if trial.number not in seen:
                seen.add(trial.number)
                on_trial(trial)

    return left, tell


def _result(study: Study, search: Search, parts: Sequence[Data], crew: WorkerPool) -> Tuned:
    from fairmp.search.trials import running, tried
    from fairmp.search.workers import final

    found = tried(study)
    done = [trial for trial in found if trial.failed is None]
    if not done:
        reason = f"the first failed: {found[0].failed}" if found else "the time was up before"
        raise InputError("trials", f"none of {len(found)} has any figures", f"{reason}")
    best = pareto(done, search.criterion)
    chosen, met = choose(done, search.limit, search.criterion)
    others = [] if search.limit is not None else [t for t in best if t is not chosen]
    trained = crew.train([trial.settings for trial in others])
    runs, model = final(search, chosen.settings, parts)
    checked = {chosen.number: Checked(chosen, tuple(runs))}
    for trial, its in zip(others, trained, strict=True):
        checked[trial.number] = Checked(trial, tuple(its))
    name = str(getattr(parts[0], "name", "graph"))
    return Tuned(
        search, name, tuple(found), chosen, met, tuple(best), checked, model, running(study)
    )


def pareto(trials: Sequence[TrialResult], criterion: str) -> list[TrialResult]:
    """The trials no other one beats, from the fairest to the most accurate; of equals the first."""
    place = {}
    for trial in reversed(trials):
        place[trial.figure("accuracy"), trial.figure(criterion)] = trial
    return [place[point] for point in front(place)]


def choose(
    trials: Sequence[TrialResult], limit: float | None, criterion: str
) -> tuple[TrialResult, bool]:
    """Choose among trials that have figures, and tell whether the limit is met."""
    if limit is None:
        return _nearest(pareto(trials, criterion), criterion), True
    within = [trial for trial in trials if trial.figure(criterion) <= limit]
    if within:
        return max(within, key=lambda t: (t.figure("accuracy"), -t.figure(criterion))), True
    return min(trials, key=lambda t: (t.figure(criterion), -t.figure("accuracy"))), False


def _nearest(best: Sequence[TrialResult], criterion: str) -> TrialResult:
    accuracies = [trial.figure("accuracy") for trial in best]
    gaps = [trial.figure(criterion) for trial in best]
    # One point is its own corner, whatever the scale.
    height = max(accuracies) - min(accuracies) or 1.0
    width = max(gaps) - min(gaps) or 1.0
    distances = [
        math.hypot((max(accuracies) - accuracy) / height, (gap - min(gaps)) / width)
        for accuracy, gap in zip(accuracies, gaps, strict=True)
    ]
    return best[distances.index(min(distances))]
