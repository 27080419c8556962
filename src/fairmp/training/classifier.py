"""``FairClassifier``: fit, predict, score, save."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.checks import MASKS, check
from fairmp.datasets.encoding import Encoding
from fairmp.datasets.splits import split
from fairmp.errors import InputError
from fairmp.graph import compute_dtype
from fairmp.metrics import Evaluation, evaluate
from fairmp.nn.fmp import FMP
from fairmp.nn.models import Backbone, Graph, Network, build
from fairmp.training import alignment as serving
from fairmp.training import model_files as persistence
from fairmp.training.loop import Select, fit, seeded
from fairmp.training.penalties import Strategy, Vanilla
from fairmp.training.run import Run as Run

Mode = Literal["solve", "frozen"]


class FairClassifier:
    """A node classifier whose predictions do not depend on the sensitive group.

    A transform reads each node's features, a propagation reads the graph and, if it is
    :class:`~fairmp.nn.fmp.FMP`, closes the gap between groups. In training the gap is that of
    the training nodes. At prediction there are two ways, and results say which one was used:

    - ``"solve"`` (the default) closes the gap of the nodes being predicted, as a batch;
    - ``"frozen"`` applies the correction found on the validation nodes at the end of ``fit``: a
      node's prediction then does not depend on which others are asked for.

    Either way the group of a node must be known to correct its prediction.

    Args:
        propagation: an :class:`~fairmp.nn.fmp.FMP`, a :class:`~fairmp.nn.fmp.PPR`, or
            ``None`` for the transform alone; ``FMP()`` by default.
        backbone: the transform, ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` or ``"appnp"``; see
            :func:`fairmp.nn.models.build`.
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
            :class:`~fairmp.training.penalties.Regulariser` or ``Adversary``.
        predict_temperature: τ of a fair propagation at prediction; training uses the propagation's
            own. ``"decisions"`` takes the largest at which the decisions' gap keeps the target on
            the nodes being predicted (:func:`fairmp.nn.decisions.close_decision_gap`).
        device: where to compute.

    Groups may be given as probabilities (n×G): the propagation then closes the gap they imply.

    After ``fit``: ``network_``, ``classes_``, ``groups_`` and ``features_`` (names),
    ``group_duals_`` (for ``"frozen"``), ``encoding_`` (how tables became the graph, where they
    did) and ``run_``.

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

    encoding_: Encoding | None = None

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
        predict_temperature: float | Literal["decisions"] = "decisions",
        device: str | torch.device = "cpu",
    ) -> None:
        self.propagation = FMP() if propagation == "default" else propagation
        if not (self.propagation is None or isinstance(self.propagation, nn.Module)):
            raise InputError(
                "propagation",
                f"{propagation!r} is not a propagation",
                "give FMP(…), PPR(…), another torch.nn.Module called like them, or None",
            )
        if predict_temperature != "decisions" and not (
            isinstance(predict_temperature, (int, float)) and predict_temperature > 0
        ):
            raise InputError(
                "predict_temperature",
                f"{predict_temperature!r} is not a temperature",
                "give a number above 0, or 'decisions'",
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
        self.predict_temperature = predict_temperature
        self.device = serving.device_of(device)

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
        data = copy.copy(data)
        if split_seed is not None:
            parts = split((data.y, groups.likeliest(data.sens)), seed=split_seed)
            data.train_mask, data.val_mask, data.test_mask = parts
        check(data, masks=True)
        serving.check_certain(data, MASKS)
        data = serving.to_device(data, self.device)
        data.x = data.x.to(compute_dtype(data.x.dtype))  # Adam does not work in half precision
        graph = self._graph(data)
        self.classes_ = serving.names_of(data, "class_names", int(data.y.max()) + 1)
        count = int(groups.likeliest(data.sens).max()) + 1
        count = data.sens.size(1) if groups.soft(data.sens) else count
        self.groups_ = serving.names_of(data, "group_names", count)
        self.features_ = serving.names_of(data, "feature_names", data.x.size(1))
        self.encoding_ = getattr(data, "encoding", None)
        if self.encoding_ is not None and self.encoding_.feature_names != self.features_:
            self.encoding_ = None  # the graph's features were changed since: it tells of others
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
            temperature=self.predict_temperature,
            strategy=self.strategy,
            seed=seed,
            progress=progress,
        )
        self.network_.eval()
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
            data: the graph the network was trained on, or another with the same features. Features
                and groups are matched by name where both have names, whatever their order; what the
                network does not know is refused.
            nodes: which nodes to predict (a boolean mask); all by default. With ``"solve"`` they
                are the population whose gap is closed.
            mode: ``"solve"`` or ``"frozen"``.

        Returns:
            A row for each node asked for.
        """
        data, nodes = self._served(data, nodes)
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
        """Measure accuracy and fairness on some nodes, the test nodes if there are any.

        Where groups are probabilities, gaps are measured on the nodes whose group is certain, and
        a note says so.
        """
        self._check_fitted()
        if isinstance(data, Data):
            for name, what in (("y", "labels (-1 where unknown)"), ("sens", "groups")):
                if not isinstance(data.get(name), Tensor):
                    raise InputError(f"data.{name}", "missing", f"an evaluation needs {what}")
            if nodes is None and "test_mask" in data and bool(data.test_mask.any()):
                nodes = data.test_mask
        data, nodes = self._served(data, nodes)
        return self._evaluate(data, self._graph(data), nodes, mode, bootstrap)

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
            "predict_temperature": self.predict_temperature,
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
            "encoding": None if self.encoding_ is None else self.encoding_.to_dict(),
        }
        return persistence.save(path, tensors, description, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> FairClassifier:
        """Load what :meth:`save` saved; nothing in it is ever executed."""
        tensors, description = persistence.load(path)
        known = set(inspect.signature(cls).parameters) - {"device"}
        model = cls(**persistence.arguments(path, description["config"], known), device=device)
        model.classes_ = [str(name) for name in description["classes"]]
        model.groups_ = [str(name) for name in description["groups"]]
        model.features_ = [str(name) for name in description["features"]]
        encoding = description.get("encoding")
        model.encoding_ = None if encoding is None else Encoding.from_dict(encoding)
        network = model._build(len(model.features_), len(model.classes_))
        duals = tensors.pop("group_duals", None)
        state = {k.removeprefix("network."): v for k, v in tensors.items()}
        persistence.check_state(path, network.state_dict(), state)
        persistence.check_duals(path, duals, model.propagation, len(model.groups_))
        model.group_duals_ = None if duals is None else duals.to(model.device)
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

    @staticmethod
    def _graph(data: Data) -> Graph:
        return Graph(data.edge_index, data.x.size(0), data.get("edge_weight"))

    def _freeze(self, data: Data, graph: Graph) -> Tensor | None:
        if not isinstance(self.propagation, FMP):
            return None
        tau = self.predict_temperature
        with torch.no_grad():
            logits = self.network_.logits(data.x, graph)
            return self.propagation.solve(
                logits,
                graph.adjacency(logits.dtype),
                data.sens,
                data.val_mask & groups.known(data.sens),
                **self.propagation.at_prediction(tau),
            ).group_duals

    def _logits(self, data: Data, graph: Graph, nodes: Tensor, mode: Mode) -> Tensor:
        if mode not in get_args(Mode):
            raise InputError("mode", f"{mode!r} is unknown", "choose 'solve' or 'frozen'")
        with torch.no_grad():
            if isinstance(self.propagation, FMP):
                if not isinstance(data.get("sens"), Tensor):
                    raise InputError(
                        "data.sens",
                        "missing",
                        "a fair prediction needs the group of each node (-1 where unknown)",
                    )
                if mode == "frozen":
                    logits = self.network_.logits(data.x, graph)
                    assert self.group_duals_ is not None
                    return self.propagation.frozen(
                        logits, graph.adjacency(logits.dtype), data.sens, self.group_duals_
                    )[nodes]
                serving.check_population(data.sens, nodes, self.groups_)
                inside = nodes & groups.known(data.sens)
                tau = self.predict_temperature
                return self.network_(data.x, graph, data.sens, inside, temperature=tau)[nodes]
            return self.network_(data.x, graph, data.get("sens"))[nodes]

    def _evaluate(
        self, data: Data, graph: Graph, nodes: Tensor, mode: Mode, bootstrap: int
    ) -> Evaluation:
        logits = self._logits(data, graph, nodes, mode)
        sens = groups.certain(data.sens)[nodes]
        evaluation = evaluate(
            logits,
            data.y[nodes],
            sens,
            class_names=self.classes_,
            group_names=self.groups_,
            bootstrap=bootstrap,
        )
        if groups.soft(data.sens):
            unclear = int((sens < 0).sum())
            note = f"gaps leave out {unclear} of {len(sens)} nodes, whose group is not certain"
            evaluation = replace(evaluation, notes=(*evaluation.notes, note))
        return replace(evaluation, mode=mode) if isinstance(self.propagation, FMP) else evaluation

    def _served(self, data: Data, nodes: Tensor | None) -> tuple[Data, Tensor]:
        """A graph as the network knows it, and the nodes asked for, where it computes."""
        self._check_fitted()
        dtype = next(self.network_.parameters()).dtype
        data = serving.aligned(data, self.features_, self.classes_, self.groups_, dtype)
        nodes = serving.node_mask(nodes, data.x.size(0))
        return serving.to_device(data, self.device), nodes.to(self.device)

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise InputError(
                "FairClassifier", "not fitted yet", "call fit(data) or load(path) first"
            )

    def __repr__(self) -> str:
        return f"FairClassifier({self.propagation!r}, backbone={self.backbone!r})"
