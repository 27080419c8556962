"""What a fit found, as a record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fairmp.metrics import Evaluation
from fairmp.training.loop import History


@dataclass(frozen=True)
class Run:
    """What a fit found: figures on the three parts, and all it takes to find them again.

    Attributes:
        train: figures on the training nodes, predicted as a batch of their own.
        val: figures on the validation nodes.
        test: figures on the test nodes.
        history: how training went.
        config: the classifier's arguments.
        seed: of the initialisation.
        split_seed: of the split, ``None`` where the data brought its own.
        versions: of what computed it.
    """

    train: Evaluation
    val: Evaluation
    test: Evaluation
    history: History
    config: dict[str, Any]
    seed: int
    split_seed: int | None
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """All of it as what JSON can say."""
        return {
            "config": self.config,
            "seed": self.seed,
            "split_seed": self.split_seed,
            "versions": self.versions,
            "best_epoch": self.history.best.epoch,
            "seconds": self.history.seconds,
            "train": self.train.to_dict(),
            "val": self.val.to_dict(),
            "test": self.test.to_dict(),
        }

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)
