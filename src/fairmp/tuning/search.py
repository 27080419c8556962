"""What a search is for: its goal, its space, and what identifies it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from fairmp.tuning.space import Criterion, Method, Space, format_domain


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
