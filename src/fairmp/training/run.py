"""The record of a fit: figures, history, what was tried, and the versions that computed it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy
import torch
import torch_geometric

from fairmp._version import __version__
from fairmp.display import Displayed
from fairmp.metrics import Evaluation

if TYPE_CHECKING:
    from fairmp.postprocessing.confidence import Promise
    from fairmp.training.graph_features import FeatureView


@dataclass(frozen=True)
class Epoch:
    """Figures of one evaluated epoch."""

    epoch: int
    loss: float
    val_accuracy: float
    val_loss: float


@dataclass(frozen=True)
class History:
    """The evaluated epochs, the one whose weights were kept, and the time training took."""

    epochs: tuple[Epoch, ...]
    best: Epoch
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A candidate backbone, measured on the validation nodes after the correction."""

    model: str  # its name
    reads: FeatureView  # what it sees of a node
    accuracy: float | None = None  # None if it was not tried
    loss: float | None = None  # log loss of the same predictions
    gamma: tuple[float, ...] = ()  # skip weights of the propagation that suit it best
    seconds: float = 0.0  # time to fit it
    weight: float = 0.0  # its share in the model that was chosen
    note: str = ""  # why it was not tried

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "gamma": list(self.gamma)}


@dataclass(frozen=True, repr=False)
class Run(Displayed, renderer="fairmp.report.runs", summary=("test", "seed", "split_seed")):
    """Result of a fit: figures on the three parts of the split, and all it takes to repeat it.

    ``print`` shows the test nodes and what the correction changed; ``plot`` draws gaps and rates by
    group before and after.

    Example:
        >>> from fairmp import FMP, FairClassifier
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=800, average_degree=8, base_rate_gap=0.3)
        >>> model = FairClassifier(FMP(target=0.02), backbone="mlp", epochs=20, lr=0.02)
        >>> run = model.fit(data, seed=0, bootstrap=0).run_
        >>> run
        Run(test=Evaluation(n=200, mode='batch', accuracy=0.6..., dp=0.01, eo=0...),
            seed=0, split_seed=None)
        >>> print(f"ΔDP {100 * run.uncorrected.dp:.0f} → {100 * run.test.dp:.0f} points")
        ΔDP 14 → 1 points
    """

    train: Evaluation  # each part is predicted as a batch of its own
    val: Evaluation
    test: Evaluation
    history: History
    config: dict[str, Any]  # the classifier's arguments
    seed: int  # of the initialisation
    split_seed: int | None  # None if the data came with a split
    versions: dict[str, str]  # of the packages that computed it
    tried: tuple[Trial, ...] = ()  # the candidates a backbone was chosen from
    group_tried: tuple[Trial, ...] = ()  # those of the group estimate of a group-free model
    promise: Promise | None = None  # about new people, if a confidence was asked for
    uncorrected: Evaluation | None = None  # test nodes without the correction, if there is one

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **{name: getattr(self, name) for name in ("config", "seed", "split_seed", "versions")},
            "best_epoch": self.history.best.epoch,
            "seconds": self.history.seconds,
            **({"tried": [trial.to_dict() for trial in self.tried]} if self.tried else {}),
            **({"promise": self.promise.to_dict()} if self.promise else {}),
            **{name: getattr(self, name).to_dict() for name in ("train", "val", "test")},
            **({"uncorrected": self.uncorrected.to_dict()} if self.uncorrected else {}),
        }

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def versions() -> dict[str, str]:
    """Return the versions of fairmp, torch, PyG and numpy."""
    packages = (torch, torch_geometric, numpy)
    return {"fairmp": __version__, **{p.__name__: str(p.__version__) for p in packages}}
