"""``FairClassifier``: fit, predict, score, save."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS, check, split
from fairmp.errors import InputError, check_choice, check_number
from fairmp.graph import Graph, compute_dtype, locality_order
from fairmp.metrics.evaluation import CRITERIA, canonical
from fairmp.nn.fmp import FMP, PPR, SOLVERS, Smoothing, Solver
from fairmp.nn.models import BACKBONES, Network, build, check_backbone, name_of
from fairmp.training import auto, defaults, loop, model_files, predictor
from fairmp.training.alignment import reordered
from fairmp.training.loop import LocalReducer, Run, needs_groups
from fairmp.training.penalties import Adversary, Lagrangian, Regulariser, Strategy
from fairmp.training.predictor import PARITY, Mode, Predictor

if TYPE_CHECKING:
    from fairmp.datasets.tables import Encoding
    from fairmp.postprocessing.debiaser import Debiaser

__all__ = ["FairClassifier", "Mode", "Run", "build_classifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class FairClassifier(Predictor):
    """A node classifier whose predictions do not depend on the sensitive group.

    A transform reads the features of each node; a propagation reads the graph and, if it is
    :class:`~fairmp.nn.fmp.FMP`, closes the gap between groups: in training that of the training
    nodes, at prediction, in mode ``"batch"``, that of the nodes being predicted. Mode
    ``"per-node"`` applies the correction found on the validation nodes, so that a prediction does
    not depend on which others are made. Either way the group of a node must be known to correct its
    prediction; groups may be given as probabilities (n×G).

    Args:
        propagation: an :class:`~fairmp.nn.fmp.FMP`, a :class:`~fairmp.nn.fmp.PPR`, or
            ``None`` for the transform alone; ``FMP(lambda_s="learned")`` by default.
        backbone: the transform. ``"auto"``, the default, chooses on the validation nodes
            (:mod:`fairmp.training.auto`). ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` and
            ``"appnp"`` are networks (:func:`fairmp.nn.models.build`), as is any module called as
            ``module(x, edge_index)``. ``"trees"`` (gradient boosting), ``"forest"``, ``"logistic"``
            and any scikit-learn classifier are fitted first, and their logits are propagated.
        graph_features: let the backbone read the neighbourhood as well
            (:mod:`fairmp.training.graph_features`); by default ``"auto"`` decides.
        time_budget: seconds after which ``"auto"`` starts no other candidate.
        hidden, num_layers, dropout: width, number and dropout of its layers.
        norm: normalisation between layers, by PyG's name.
        epochs: maximum number of epochs.
        lr, weight_decay: learning rate and weight decay of Adam.
        select: which epoch is kept: that of the best validation ``"accuracy"`` (ties by loss) or
            ``"loss"``, or the ``"last"``.
        patience: epochs without improvement after which to stop, or ``None``.
        eval_every: epochs between two validations.
        strategy: penalty added to the loss, such as
            :class:`~fairmp.training.penalties.Regulariser` or ``Adversary``.
        predict_temperature: τ of a fair propagation at prediction; training uses the propagation's
            own. ``"decisions"`` closes the gap of decisions after the last step
            (:func:`fairmp.nn.decisions.close_decision_gap`).
        criterion: ``"demographic_parity"`` is held inside the propagation. For
            ``"equal_opportunity"`` and ``"equalized_odds"`` propagation is plain, and a correction
            per group found on the labels of the validation nodes follows
            (:class:`~fairmp.postprocessing.debiaser.Debiaser`, with the target of the FMP).
        calibrate: fit a temperature and a bias per class to the validation labels after training,
            before the correction (:mod:`fairmp.training.predictor`).
        device: where to compute.

    After ``fit``: ``network_``, ``classes_``, ``groups_`` and ``features_`` (names),
    ``group_duals_`` (for ``"per-node"``), ``debiaser_`` (for criteria on labels), ``encoding_``
    (how tables became the graph, if they did), ``graph_`` and ``logits_`` (of all nodes, before a
    correction), ``test_logits_`` and ``run_``.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=400, average_degree=8)
        >>> model = FairClassifier(FMP(target=0.01), backbone="mlp", epochs=20, lr=0.01)
        >>> run = model.fit(data, seed=0)
        >>> run.test.mode
        'batch'
        >>> model.predict_proba(data).shape
        torch.Size([400, 2])
    """

    propagation: nn.Module | None = field(
        default_factory=lambda: FMP(lambda_s="learned"), kw_only=False
    )
    backbone: Any = "auto"
    graph_features: bool | None = None
    time_budget: float = 300.0
    hidden: int = defaults.HIDDEN
    num_layers: int = defaults.NUM_LAYERS
    dropout: float = defaults.DROPOUT
    norm: str | None = None
    epochs: int = defaults.EPOCHS
    lr: float = defaults.LR
    weight_decay: float = defaults.WEIGHT_DECAY
    select: loop.Select = "accuracy"
    patience: int | None = defaults.PATIENCE
    eval_every: int = defaults.EVAL_EVERY
    strategy: Strategy | None = None
    predict_temperature: float | Literal["decisions"] = "decisions"
    criterion: str = PARITY
    calibrate: bool = True
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        if not (self.propagation is None or isinstance(self.propagation, nn.Module)):
            raise InputError(
                "propagation", f"{self.propagation!r} is no module", "give FMP(…), PPR(…) or None"
            )
        check_backbone(self.backbone)
        check_number("time_budget", self.time_budget, "give seconds, 0 or more", low=0)
        # Values that are right are stored as they are given, for scikit-learn's clone().
        if self.criterion not in CRITERIA:
            self.criterion = canonical(self.criterion)
        projects = getattr(self.propagation, "solver", None) == "projection"
        if self.criterion != PARITY and not projects:
            value = f"{self.criterion!r} with the propagation {self.propagation!r}"
            raise InputError("criterion", value, "give FMP(target=…), whose target it takes")
        if self.uses_groups and self._holds_gap:
            value = f"{self.strategy!r} is for predictions without groups"
            raise InputError("strategy", value, "give PPR(…) or None as propagation")
        if self.predict_temperature != "decisions":
            hint = "give a number above 0, or 'decisions'"
            check_number("predict_temperature", self.predict_temperature, hint, low=0, above=True)
        try:
            if not isinstance(self.device, torch.device):
                self.device = torch.device(self.device)
        except RuntimeError:
            value = f"{self.device!r} is unknown"
            raise InputError("device", value, "choose 'cpu' or 'cuda'") from None
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("device", "CUDA is not available", "use 'cpu'")
        self.encoding_: Encoding | None = None
        self.debiaser_ = None

    @property
    def _deterministic(self) -> bool:
        """Whether a forward pass in training is the same as in validation."""
        foreign = isinstance(self.backbone, nn.Module) or not self._linear
        return not (foreign or self.dropout or self.norm)

    @property
    def _linear(self) -> bool:
        """Whether the propagation is one of ours, which are linear before the correction."""
        return isinstance(self.propagation, PPR | None)

    @property
    def _trained(self) -> bool:
        """Whether the backbone is a network."""
        return isinstance(self.backbone, nn.Module) or self.backbone in BACKBONES

    @property
    def _holds_gap(self) -> bool:
        """Whether training works towards a gap of its own."""
        return self.strategy is not None and self.strategy.gap_target is not None

    @property
    def calibrates(self) -> bool:
        """Whether predictions are calibrated: not if training held the gap of other decisions."""
        return self.calibrate and self._linear and not self._holds_gap

    def fit(
        self,
        data: Data,
        *,
        seed: int = 0,
        split_seed: int | None = None,
        bootstrap: int = 1000,
        order: str = "given",
        progress: bool | None = None,
    ) -> Run:
        """Train, and measure on the three parts of the split.

        Args:
            data: a graph as :mod:`fairmp.datasets` makes them. Its ``sample_weight`` (n), if it has
                one, weighs nodes in the loss, in figures and in the gap that is closed in batches.
            seed: seed of the initialisation and of dropout.
            split_seed: split labelled nodes of known group 50/25/25 with this seed; by default the
                masks of the graph are used, if it has any.
            bootstrap: number of resamples for the intervals.
            order: of nodes in memory while training; ``"locality"`` puts neighbours near each
                other, which is faster on large graphs with communities. Results are the same up
                to rounding and the random numbers of dropout and intervals.
            progress: show a bar; by default if standard error is a terminal.
        """
        check(data)
        data = copy.copy(data)
        if split_seed is None and not all(name in data for name in MASKS):
            split_seed = 0
        if split_seed is not None:
            parts = split((data.y, groups.most_likely_group(data.sens)), seed=split_seed)
            data.train_mask, data.val_mask, data.test_mask = parts
        check(data, masks=True)
        soft = groups.is_soft(data.sens)
        if soft:
            predictor.check_certain(data)
        if data.x.device != self.device:
            data = data.to(str(self.device))
        data.x = data.x.to(compute_dtype(data.x.dtype))  # Adam does not work in half precision
        self.classes_ = predictor.names_of(data, "class_names", int(data.y.max()) + 1)
        count = data.sens.size(1) if soft else int(data.sens.max()) + 1
        self.groups_ = predictor.names_of(data, "group_names", count)
        self.features_ = predictor.names_of(data, "feature_names", data.x.size(1))
        self.encoding_ = getattr(data, "encoding", None)
        if self.encoding_ is not None and self.encoding_.feature_names != self.features_:
            self.encoding_ = None  # the features were changed after encoding
        graph, work = self._graph(data), (LocalReducer(), seed, split_seed, bootstrap)
        check_choice("order", order, ("given", "locality"))
        if order == "given":
            return self._fit(data, graph, *work, progress=progress)
        if self.graph_features or not self._trained:
            value = f"'locality' with the backbone {name_of(self.backbone)!r} or graph features"
            raise InputError("order", value, f"choose one of {', '.join(BACKBONES)}, or 'given'")
        edges = graph.adjacency(data.x.dtype).forward
        found = locality_order(edges.row.cpu().numpy(), edges.col.cpu().numpy())
        nodes = torch.from_numpy(found).to(data.x.device)
        moved = reordered(data, nodes)
        run = self._fit(moved, self._graph(moved), *work, progress=progress)
        self.graph_, self.logits_ = graph, self.logits_[nodes.argsort()]
        self.test_logits_ = self.test_logits_[nodes[moved.test_mask].argsort()]
        return run

    def _fit(
        self,
        data: Data,
        graph: Graph,
        reducer: LocalReducer,
        seed: int,
        split_seed: int | None,
        bootstrap: int,
        **options: Any,
    ) -> Run:
        """Train on nodes in this process or, with another reducer, in several."""
        operators = loop.GroupOperators(data, len(self.groups_), reducer)
        history, tried = self._train(data, graph, operators, seed, **options)
        # One pass of the transform serves the evaluations, the stored correction and reports.
        self.graph_, self.group_duals_ = graph, None
        with torch.no_grad():
            self.logits_ = self.network_.logits(data.x, graph)
            self._calibrate(data, graph, reducer)
            layer = self.network_.propagation
            if needs_groups(layer):
                adjacency = graph.adjacency(self.logits_.dtype)
                extra = layer.at_prediction(self.predict_temperature)
                found = {
                    name: layer.solve(self.logits_, adjacency, operators[name], **extra)
                    for name in MASKS
                }
                # Parity needs no labels: unlabelled nodes make the served correction more precise.
                serving, unused = found["val_mask"], ~(data.train_mask | data.test_mask)
                population = groups.known_mask(data.sens) & unused
                spare = population & ~data.val_mask
                if reducer.total(spare.sum().double().view(1)) > 0:
                    operator = reducer.group_operator(data.sens, population, len(self.groups_))
                    serving = layer.solve(self.logits_, adjacency, operator, **extra)
                self.group_duals_ = serving.group_duals
                fair = {name: found[name].f[data[name]].to(data.x.dtype) for name in MASKS}
                parts = {name: self._weighted(fair[name], data, data[name]) for name in MASKS}
            else:
                self.logits_ = self.network_.propagate(self.logits_, graph, data.sens)
                self._fit_debiaser(data, reducer)
                debiased = self._debiased(self.logits_, data.sens)
                parts = {name: debiased[data[name]] for name in MASKS}
        self.test_logits_ = parts["test_mask"]
        train, val, test = (
            self._measure(data, data[name], parts[name], "batch", bootstrap, reducer)
            for name in MASKS
        )
        seeds = seed, split_seed
        self.run_ = Run(train, val, test, history, self.config(), *seeds, loop.versions(), tried)
        return self.run_

    def _train(
        self, data: Data, graph: Graph, operators: loop.GroupOperators, seed: int, **options: Any
    ) -> tuple[loop.History, tuple[auto.Trial, ...]]:
        """Train the network, or choose it among candidates."""

        def build(backbone: Any, in_channels: int) -> Network:
            with loop.seeded(seed):
                network = self._build(in_channels, backbone)
            return network.to(data.x.device, data.x.dtype)

        def train(network: Network, data: Data, **options: Any) -> loop.History:
            names = "epochs", "lr", "weight_decay", "select", "patience", "eval_every", "strategy"
            settings = {name: getattr(self, name) for name in names}
            settings |= {"temperature": self.predict_temperature, "operators": operators}
            settings["deterministic"] = self._deterministic
            return loop.fit(network, data, graph, **settings, seed=seed, **options)

        if self._trained and not self.graph_features:
            self.network_ = build(self.backbone, data.x.size(1))
            return train(self.network_, data, **options), ()
        if operators.reducer.size > 1:
            value = f"{self.backbone!r} needs all nodes in one process"
            raise InputError("backbone", value, f"choose one of {', '.join(BACKBONES)}")
        work = operators, build, partial(train, progress=False), seed, options.get("progress")
        self.network_, history, tried = auto.fit(self, data, graph, *work)
        return history, tried

    def _calibrate(self, data: Data, graph: Graph, reducer: LocalReducer) -> None:
        """Calibrate the network and its logits."""
        if not self.calibrates:
            return
        adjacency = graph.adjacency(self.logits_.dtype)
        z, c = predictor.plainly_propagated(self.logits_, self.network_.propagation, adjacency)
        rows = (part[data.val_mask] for part in (z, c, data.y))
        found = reducer.on_first(predictor.fit_calibration, *rows)
        self.network_.calibration = found.to(self.logits_)
        self.logits_ = self.network_.calibrated(self.logits_)

    def _fit_debiaser(self, data: Data, reducer: LocalReducer) -> None:
        """Find the correction for a criterion on labels, on the validation nodes."""
        self.debiaser_ = None
        if self.criterion == PARITY:
            return

        def find(logits: Tensor, sens: Tensor, y: Tensor, *weight: Tensor) -> Debiaser:
            from fairmp.postprocessing.debiaser import Debiaser

            tau = self.predict_temperature
            correction = Debiaser(
                self.criterion,
                cast(FMP, self.propagation).target,
                kind="logits",
                decisions=tau == "decisions" and not groups.is_soft(sens),
                temperature=predictor.SOFT_TEMPERATURE if tau == "decisions" else tau,
                class_names=self.classes_,
            )
            named = predictor.attributes(sens, self.groups_)
            weights = next((part.cpu() for part in weight), None)
            known: Any = {"sensitive_features": named, "sample_weight": weights}
            return correction.fit(logits.cpu(), y.cpu(), **known)

        parts = [data[name] for name in ("sens", "y", "sample_weight") if name in data]
        rows = (part[data.val_mask] for part in (self.logits_, *parts))
        self.debiaser_ = reducer.on_first(find, *rows)

    def __sklearn_tags__(self) -> Any:
        value = "scikit-learn's searches and ensembles cut tables into rows"
        raise InputError("FairClassifier", value, "a graph would lose its edges: use fairmp tune")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn's estimators do.

        If ``deep``, those of the propagation are added, as in ``propagation__target``.
        """
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if deep and isinstance(self.propagation, PPR):
            inner = self.propagation.config()
            found |= {f"propagation__{name}": value for name, value in inner.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, or of the propagation; nothing if one is wrong.

        Example:
            >>> model = FairClassifier(FMP(K=3)).set_params(lr=0.1, propagation__target=0.02)
            >>> model.lr, model.propagation.K, model.propagation.target
            (0.1, 3, 0.02)
        """
        own = {name: value for name, value in params.items() if "__" not in name}
        inner = {name: value for name, value in params.items() if name not in own}
        layer: Any = own.get("propagation", self.propagation)
        config = layer.config() if isinstance(layer, PPR) else {}
        known = [one.name for one in fields(self)] + [f"propagation__{name}" for name in config]
        for name in params:
            if name not in known:
                raise InputError(name, "no argument of it", f"there are {', '.join(known)}")
        if inner:
            config |= {name.removeprefix("propagation__"): v for name, v in inner.items()}
            own["propagation"] = type(layer)(**config)
        changed = replace(self, **own)
        for one in fields(self):
            setattr(self, one.name, getattr(changed, one.name))
        return self

    def config(self) -> dict[str, Any]:
        """Return the arguments that make an equal classifier, as plain JSON values."""
        found = self.get_params(deep=False)
        del found["device"]
        layer = self.propagation
        if layer is not None:
            own = layer.config() if isinstance(layer, PPR) else {}
            found["propagation"] = {"name": type(layer).__name__, **own}
        strategy = {"name": "vanilla"} if self.strategy is None else self.strategy.config()
        return {**found, "strategy": strategy, "backbone": name_of(self.backbone)}

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Save to a folder, as one file of weights and their description."""
        self._check_fitted()
        return model_files.save(path, self, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str | torch.device = "cpu",
        trust: bool = False,
        backbone: nn.Module | None = None,
    ) -> FairClassifier:
        """Load what :meth:`save` saved.

        Nothing in the file is executed. Only a scikit-learn classifier of your own is a pickle
        (``estimators.joblib``), and is loaded with ``trust=True`` alone. Of a module of your own
        the weights are saved: give one of the same shape as ``backbone``.
        """
        return model_files.load(cls, path, device=device, trust=trust, backbone=backbone)

    def _build(self, in_channels: int, backbone: Any) -> Network:
        # A copy: what is learned belongs to one fit, and the arguments stay as they were given.
        layer = copy.deepcopy(self.propagation)
        if self.criterion != PARITY:
            own = cast(FMP, self.propagation)
            layer = PPR(own.K, own.lambda_s, initial_lambda_s=own.initial_lambda_s)
        if isinstance(backbone, nn.Module):
            return Network(copy.deepcopy(backbone), layer)
        names = "hidden", "num_layers", "dropout", "norm"
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings |= {"in_channels": in_channels, "out_channels": len(self.classes_)}
        return build(backbone, **settings, propagation=layer)

    def __repr__(self) -> str:
        return f"FairClassifier({self.propagation!r}, backbone={name_of(self.backbone)!r})"


def build_classifier(
    solver: str = "projection",
    *,
    K: int = 5,
    lambda_s: Smoothing = 3.0,
    lambda_f: float = 1.0,
    target: float = 0.0,
    strategy: str = "vanilla",
    h: float = 1.0,
    pretrain: int = 70,
    adversary_lr: float = 1e-3,
    backbone: Any = "mlp",
    **settings: Any,
) -> FairClassifier:
    """Build a classifier from plain values, as options and records give them.

    ``solver`` is one of :class:`~fairmp.nn.fmp.FMP`, ``"plain"`` for propagation without a
    correction, or ``"none"``; ``strategy`` is ``"vanilla"``, ``"regulariser"`` or ``"adversary"``
    of strength ``h``, or ``"lagrangian"``, which takes the target. Other settings go to
    :class:`FairClassifier`; ``predict_temperature`` may be text.

    Example:
        >>> build_classifier("plain", K=5)
        FairClassifier(PPR(K=5, lambda_s=3.0), backbone='mlp')
    """
    check_choice("solver", solver, (*SOLVERS, "plain", "none"))
    penalties: dict[str, Callable[[], Strategy | None]] = {
        "vanilla": lambda: None,
        "regulariser": lambda: Regulariser(h),
        "lagrangian": lambda: Lagrangian(target),
        "adversary": lambda: Adversary(h, pretrain_classifier=pretrain, lr=adversary_lr),
    }
    check_choice("strategy", strategy, penalties)
    with suppress(KeyError, ValueError):
        settings["predict_temperature"] = float(settings["predict_temperature"])
    propagation: PPR | None = None
    if solver == "plain":
        propagation = PPR(K, lambda_s)
    elif solver != "none":
        propagation = FMP(K, lambda_s, lambda_f, cast(Solver, solver), target)
    settings |= {"strategy": penalties[strategy](), "backbone": backbone}
    return FairClassifier(propagation, **settings)
