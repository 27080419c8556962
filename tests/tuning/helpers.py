"""Short searches on a small graph."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Data

from fairmp.datasets import social_network
from fairmp.tuning import space
from fairmp.tuning.space import Method
from fairmp.tuning.study import Search
from fairmp.tuning.tune import Tuned, data_splits, fingerprint, tune

SHORT = Method(epochs=3)
SMALL = ["hidden=8", "K=1..3"]


def small(**changes: Any) -> Data:
    return social_network(**({"n": 240, "average_degree": 6} | changes))


def short_search(data: Data | None = None, **changes: Any) -> Tuned:
    options: dict[str, Any] = {"method": SHORT, "space": SMALL, "goal": 0.05, "trials": 6}
    return tune(small() if data is None else data, **(options | changes))


def search(storage: str | None = None, trials: int = 6) -> Search:
    """What :func:`short_search` searches for."""
    return Search(
        method=SHORT,
        space=space.narrowed(space.default_space(SHORT, 0.05), SMALL, SHORT),
        limit=0.05,
        criterion="dp",
        trials=trials,
        splits=1,
        seed=0,
        device="cpu",
        storage=storage,
        study_name="fairmp",
        graph=fingerprint(data_splits(small(), 1, 0)[0]),
    )


def outcomes(tuned: Tuned) -> list[tuple[int, dict[str, Any], Any]]:
    """Everything about trials but the time they took."""
    return [(trial.number, trial.settings, trial.figures) for trial in tuned.trials]
