"""``FairClassifier``: fit, predict, score, save."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import persistence
from fairmp.datasets.checks import MASKS, check
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Evaluation, evaluate
from fairmp.models import Backbone, Graph, Network, build
from fairmp.propagation import FMP
from fairmp.strategies import Strategy, Vanilla
from fairmp.training import History, Select, fit, seeded

Mode = Literal["solve", "frozen"]

DECISION_SHARPNESS = 0.02


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


class FairClassifier:
    """A node classifier whose predictions do not depend on the sensitive group.

    A transform reads each node's features, a propagation reads the graph and, if it is
    :class:`~fairmp.propagation.FMP`, closes the gap between groups. In training the gap is that of
    the training nodes. At prediction there are two ways, and results say which one was used:

    - ``"solve"`` (the default) closes the gap of the nodes being predicted, as a batch;
    - ``"frozen"`` applies the correction found on the validation nodes at the end of ``fit``: a
      node's prediction then does not depend on which others are asked for.

    Either way the group of a node must be known to correct its prediction.

    Args:
        propagation: an :class:`~fairmp.propagation.FMP`, a :class:`~fairmp.propagation.PPR`, or
            ``None`` for the transform alone; ``FMP()`` by default.
        backbone: the transform, ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` or ``"appnp"``; see
            :func:`fairmp.models.build`.
        hidden: width of its hidden layers.
        num_layers: number of its layers.
        dropout: share of hidden units dropped in training.
        norm: normalisation between layers, by PyG's name.
        epochs: most epochs to train.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        select: what the epoch kept is best at on the validation nodes (``"accuracy"``, ties by
            loss; or ``"loss"``), or ``"last"`` for the last epoch.
        patience: stop when that many epochs brought nothing better.
        eval_every: look at the validation nodes every so many epochs.
        strategy: what else the loss asks for, such as
            :class:`~fairmp.strategies.Regulariser` or :class:`~fairmp.strategies.Adversary`.
        predict_sharpness: τ of a fair propagation at prediction; training uses the propagation's
            own. Small, so that the gap closed is that of decisions.
        device: where to compute.

    After ``fit``: ``network_``, ``classes_`` and ``groups_`` (names), ``group_duals_`` (for
    ``"frozen"``), ``run_``.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=400, average_degree=8)
        >>> model = FairClassifier(FMP(lambda_s=3.0, target=0.01), epochs=20, lr=0.01)
        >>> run = model.fit(data, seed=0)
        >>> run.test.mode
        'solve'
        >>> model.predict_proba(data).shape
        torch.Size([400, 2])
    """

    def __init__(
        self,
        propagation: nn.Module | Literal["default"] | None = "default",
        *,
        backbone: Backbone = "mlp",
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.0,
        norm: str | None = None,
        epochs: int = 300,
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        select: Select = "accuracy",
        patience: int | None = None,
        eval_every: int = 1,
        strategy: Strategy | None = None,
        predict_sharpness: float = DECISION_SHARPNESS,
        device: str | torch.device = "cpu",
    ) -> None:
        self.propagation = FMP() if propagation == "default" else propagation
        if not (self.propagation is None or isinstance(self.propagation, nn.Module)):
            raise InputError(
                f"propagation: {propagation!r} is not a propagation; give FMP(…), PPR(…), another "
                "torch.nn.Module called like them, or None"
            )
        if not predict_sharpness > 0:
            raise InputError(
                f"predict_sharpness: {predict_sharpness!r} is not a temperature; "
                "give a number above 0"
            )
        self.backbone = backbone
        self.hidden = hidden
        self.num_layers = num_layers
        self.dropout = dropout
        self.norm = norm
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.select = select
        self.patience = patience
        self.eval_every = eval_every
        self.strategy = strategy
        self.predict_sharpness = predict_sharpness
        self.device = _device(device)

    def fit(
        self,
        data: Data,
        *,
        seed: int = 0,
        split_seed: int | None = None,
        bootstrap: int = 1000,
        progress: bool | None = None,
    ) -> Run:
        """Train, and measure on the three parts.

        Args:
            data: a graph in the shape :mod:`fairmp.datasets` makes. Without masks, or with a
                ``split_seed``, labelled nodes of known group are split 50/25/25.
            seed: of the initialisation and of dropout.
            split_seed: of the split; its own, so that either can be varied alone.
            bootstrap: resamples for the intervals.
            progress: show a bar; by default where standard error is a terminal.
        """
        check(data)
        if split_seed is None and not all(name in data for name in MASKS):
            split_seed = 0
        if split_seed is not None:
            data = with_split(data, seed=split_seed)
        check(data, masks=True)
        data = self._here(data)
        graph = self._graph(data)
        self.classes_ = _names(data, "class_names", int(data.y.max()) + 1)
        self.groups_ = _names(data, "group_names", int(data.sens.max()) + 1)
        self.features_ = _names(data, "feature_names", data.x.size(1))
        with seeded(seed):
            self.network_ = self._build(data.x.size(1), len(self.classes_)).to(data.x.dtype)
        history = fit(
            self.network_,
            data,
            graph,
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            select=self.select,
            patience=self.patience,
            eval_every=self.eval_every,
            sharpness=self.predict_sharpness,
            strategy=self.strategy,
            seed=seed,
            progress=progress,
        )
        self.group_duals_ = self._freeze(data, graph)
        train, val, test = (
            self._evaluate(data, graph, data[name], "solve", bootstrap) for name in MASKS
        )
        self.run_ = Run(
            train, val, test, history, self.config(), seed, split_seed, persistence.versions()
        )
        return self.run_

    def predict_proba(
        self, data: Data, *, nodes: Tensor | None = None, mode: Mode = "solve"
    ) -> Tensor:
        """Predict the probability of each class.

        Args:
            data: the graph the network was trained on, or another with the same features.
            nodes: which nodes to predict (a boolean mask); all by default. With ``"solve"`` they
                are the population whose gap is closed.
            mode: ``"solve"`` or ``"frozen"``.

        Returns:
            A row for each node asked for.
        """
        nodes = self._nodes(data, nodes)
        data = self._here(data)
        return self._logits(data, self._graph(data), nodes, mode).softmax(1)

    def predict(self, data: Data, *, nodes: Tensor | None = None, mode: Mode = "solve") -> Tensor:
        """Predict classes; see :meth:`predict_proba`."""
        return self.predict_proba(data, nodes=nodes, mode=mode).argmax(1)

    def evaluate(
        self,
        data: Data,
        *,
        nodes: Tensor | None = None,
        mode: Mode = "solve",
        bootstrap: int = 1000,
    ) -> Evaluation:
        """Measure accuracy and fairness on some nodes, the test nodes if there are any."""
        check(data)
        if nodes is None and "test_mask" in data and bool(data.test_mask.any()):
            nodes = data.test_mask
        nodes = self._nodes(data, nodes)
        data = self._here(data)
        return self._evaluate(data, self._graph(data), nodes.to(self.device), mode, bootstrap)

    def score(self, data: Data, *, nodes: Tensor | None = None, mode: Mode = "solve") -> float:
        """Return the accuracy on some nodes, by default the test nodes if there are any."""
        return self.evaluate(data, nodes=nodes, mode=mode, bootstrap=0).accuracy

    def config(self) -> dict[str, Any]:
        """The arguments that make an equal classifier, as what JSON can say."""
        return {
            "propagation": persistence.describe(self.propagation),
            "backbone": self.backbone,
            "hidden": self.hidden,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
            "norm": self.norm,
            "epochs": self.epochs,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "select": self.select,
            "patience": self.patience,
            "eval_every": self.eval_every,
            "predict_sharpness": self.predict_sharpness,
            "strategy": (self.strategy or Vanilla()).config(),
        }

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Save to a folder: ``model.safetensors`` (weights) and ``model.json`` (all else)."""
        self._check_fitted()
        tensors = {f"network.{k}": v for k, v in self.network_.state_dict().items()}
        if self.group_duals_ is not None:
            tensors["group_duals"] = self.group_duals_
        description = {
            "config": self.config(),
            "classes": self.classes_,
            "groups": self.groups_,
            "features": self.features_,
        }
        return persistence.save(path, tensors, description, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> FairClassifier:
        """Load what :meth:`save` saved; nothing in it is ever executed."""
        tensors, description = persistence.load(path)
        config = dict(description["config"])
        config["propagation"] = persistence.rebuild(config.pop("propagation"))
        config["strategy"] = persistence.rebuild_strategy(config.pop("strategy"))
        model = cls(**config, device=device)
        model.classes_ = list(description["classes"])
        model.groups_ = list(description["groups"])
        model.features_ = list(description["features"])
        duals = tensors.pop("group_duals", None)
        model.group_duals_ = None if duals is None else duals.to(model.device)
        network = model._build(len(model.features_), len(model.classes_))
        state = {k.removeprefix("network."): v for k, v in tensors.items()}
        persistence.check_state(path, network.state_dict(), state)
        # A batch norm's counter is a whole number, and tensors come in any order.
        network.to(next(t.dtype for t in state.values() if t.is_floating_point()))
        network.load_state_dict(state)
        model.network_ = network.to(model.device).eval()
        return model

    def _build(self, in_channels: int, out_channels: int) -> Network:
        return build(
            self.backbone,
            in_channels=in_channels,
            out_channels=out_channels,
            hidden=self.hidden,
            num_layers=self.num_layers,
            dropout=self.dropout,
            norm=self.norm,
            propagation=self.propagation,
        ).to(self.device)

    def _here(self, data: Data) -> Data:
        # PyG moves a graph in place: the caller's stays where it is.
        return data if data.x.device == self.device else copy.copy(data).to(str(self.device))

    @staticmethod
    def _graph(data: Data) -> Graph:
        return Graph(data.edge_index, data.x.size(0), data.get("edge_weight"))

    def _freeze(self, data: Data, graph: Graph) -> Tensor | None:
        if not isinstance(self.propagation, FMP):
            return None
        with torch.no_grad():
            logits = self.network_.logits(data.x, graph)
            return self.propagation.solve(
                logits,
                graph.adjacency(logits.dtype),
                data.sens,
                data.val_mask & (data.sens >= 0),
                sharpness=self.predict_sharpness,
            ).group_duals

    def _logits(self, data: Data, graph: Graph, nodes: Tensor, mode: Mode) -> Tensor:
        if mode not in get_args(Mode):
            raise InputError(f"mode: {mode!r} is unknown; choose 'solve' or 'frozen'")
        nodes = nodes.to(self.device)
        with torch.no_grad():
            if isinstance(self.propagation, FMP):
                self._check_sens(data)
                if mode == "frozen":
                    logits = self.network_.logits(data.x, graph)
                    assert self.group_duals_ is not None
                    return self.propagation.frozen(
                        logits, graph.adjacency(logits.dtype), data.sens, self.group_duals_
                    )[nodes]
                return self.network_(
                    data.x,
                    graph,
                    data.sens,
                    nodes & (data.sens >= 0),
                    sharpness=self.predict_sharpness,
                )[nodes]
            return self.network_(data.x, graph, data.get("sens"))[nodes]

    def _evaluate(
        self, data: Data, graph: Graph, nodes: Tensor, mode: Mode, bootstrap: int
    ) -> Evaluation:
        logits = self._logits(data, graph, nodes, mode)
        evaluation = evaluate(
            logits,
            data.y[nodes],
            data.sens[nodes],
            class_names=self.classes_,
            group_names=self.groups_,
            bootstrap=bootstrap,
        )
        return replace(evaluation, mode=mode) if isinstance(self.propagation, FMP) else evaluation

    def _nodes(self, data: Data, nodes: Tensor | None) -> Tensor:
        self._check_fitted()
        check(data, labels=False)
        if data.x.size(1) != len(self.features_):
            raise InputError(
                f"data.x: {data.x.size(1)} features, the model was trained on "
                f"{len(self.features_)}; give the same columns in the same order"
            )
        n = data.x.size(0)
        if nodes is None:
            return torch.ones(n, dtype=torch.bool)
        if nodes.dtype != torch.bool or nodes.shape != (n,):
            raise InputError(
                f"nodes: expected a boolean mask of {n} nodes, got {nodes.dtype} of shape "
                f"{tuple(nodes.shape)}"
            )
        return nodes

    def _check_sens(self, data: Data) -> None:
        if not isinstance(data.get("sens"), Tensor):
            raise InputError(
                "data.sens: missing; a fair prediction needs the group of each node "
                "(-1 where unknown)"
            )
        if int(data.sens.max()) >= len(self.groups_):
            raise InputError(
                f"data.sens: group {int(data.sens.max())} was not there in training "
                f"(groups 0…{len(self.groups_) - 1}); mark it unknown (-1), or train again"
            )

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise InputError("FairClassifier: not fitted yet; call fit(data) or load(path) first")

    def __repr__(self) -> str:
        return f"FairClassifier({self.propagation!r}, backbone={self.backbone!r})"


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise InputError(f"device: {device!r} is unknown; choose 'cpu' or 'cuda'") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: {device!r} is not there; torch sees no CUDA device, use 'cpu'")
    return chosen


def _names(data: Data, attribute: str, count: int) -> list[str]:
    names = data.get(attribute)
    if names is None or len(names) < count:
        return [str(i) for i in range(count)]
    return [str(name) for name in names]
