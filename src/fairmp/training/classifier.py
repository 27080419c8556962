"""``FairClassifier``: fit, predict, score, save."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS, check, with_split
from fairmp.datasets.transforms import as_read
from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.graph import Graph, compute_dtype, locality_order
from fairmp.metrics import Evaluation
from fairmp.metrics.evaluation import CRITERIA, canonical
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP, PPR, SOLVERS, Smoothing, Solver
from fairmp.nn.models import BACKBONES, Network, check_backbone, name_of
from fairmp.training import defaults, model_files
from fairmp.training.alignment import are_numbers, reordered
from fairmp.training.auto import Selection, SelectionSettings, select
from fairmp.training.calibration import (
    HeldOut,
    calibrate_network,
    propagate_uncorrected,
    validation_nodes,
)
from fairmp.training.correction import (
    PARITY,
    Correction,
    fit_debiaser,
    hold_criterion,
    hold_parity,
)
from fairmp.training.estimators import Classifier
from fairmp.training.explanation import Stages, own_logits
from fairmp.training.fitted import FittedModel, Mode, Nodes
from fairmp.training.group_free import GroupEstimate, estimate_groups
from fairmp.training.nodes import (
    Names,
    Predicted,
    TrainingNodes,
    check_certain_groups,
    graph_of,
)
from fairmp.training.penalties import Adversary, Regulariser, Strategy
from fairmp.training.run import Run, versions
from fairmp.training.trainer import (
    Checkpoints,
    NetworkSettings,
    Select,
    TrainingSettings,
    train_network,
)

if TYPE_CHECKING:
    from fairmp.datasets.encoding import Encoding
    from fairmp.datasets.targets import UnknownGroups
    from fairmp.postprocessing.debiaser import Debiaser
    from fairmp.training.explanation import Explanation
    from fairmp.training.new_people import NewPeople

__all__ = ["FairClassifier", "Mode", "Run", "build_classifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class FairClassifier:
    """A node classifier whose predictions do not depend on the sensitive group.

    A transform reads the features of each node; a propagation reads the graph and, if it is
    :class:`~fairmp.nn.fmp.FMP`, closes the gap between groups: in training that of the training
    nodes, at prediction, in mode ``"batch"``, that of the nodes being predicted. Mode
    ``"per-node"`` applies the correction found on the validation nodes, so that a prediction does
    not depend on which others are made. Either way the group of a node must be known to correct its
    prediction; groups may be given as probabilities (n×G). With ``group_free`` nobody's group is
    read at prediction.

    Args:
        propagation: an :class:`~fairmp.nn.fmp.FMP`, a :class:`~fairmp.nn.fmp.PPR`, or
            ``None`` for the transform alone; by default ``FMP`` with learned smoothing.
        backbone: the transform. ``"auto"``, the default, chooses on the validation nodes
            (:mod:`fairmp.training.auto`). ``"mlp"``, ``"gcn"``, ``"gat"``, ``"sgc"`` and
            ``"appnp"`` are networks (:func:`fairmp.nn.models.build`), as is any module called as
            ``module(x, edge_index)``. ``"trees"`` (gradient boosting), ``"forest"``, ``"logistic"``
            and any scikit-learn classifier are fitted first, and their logits are propagated.
        graph_features: let the backbone read the neighbourhood as well
            (:mod:`fairmp.training.graph_features`); by default ``"auto"`` decides.
        folds: parts of the labelled nodes outside the test set that ``"auto"`` is cross-fitted on:
            each candidate is fitted without each of them, all are averaged, and choices,
            calibration and per-node corrections are made on out-of-fold predictions, which
            ``run_.val`` measures. 1 fits on the training nodes and chooses on the validation
            nodes, as other backbones and solvers always do.
        time_budget: seconds after which ``"auto"`` starts no other candidate or fold.
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
        on: what predictions are made equal on. ``"decisions"`` closes the gap of decisions after
            the last step (:func:`fairmp.nn.decisions.close_decision_gap`); ``"probabilities"``
            predicts as in training, at the propagation's temperature.
        criterion: ``"demographic_parity"`` is held inside the propagation. For
            ``"equal_opportunity"`` and ``"equalized_odds"`` propagation is plain, and a correction
            per group found on the labels of the validation nodes follows
            (:class:`~fairmp.postprocessing.debiaser.Debiaser`, with the target of the FMP).
        group_free: read no group at prediction, with the target of the FMP. Propagation is plain,
            a second network estimates the groups (:mod:`fairmp.training.group_free`), and the
            :mod:`blind rule <fairmp.postprocessing.blind>` decides, sized so that the gap between
            *true* groups of held-out nodes meets the target.
        neighbour_groups: let these estimates read the known groups of neighbours, which are then
            saved with the model.
        confidence: promise the target for new people of the same population with this confidence,
            0.95 for example, or refuse with the number of people that are missing
            (:mod:`fairmp.postprocessing.confidence`). Propagation is plain, and a certified
            correction per node follows. ``run_.promise`` says it in words.
        calibrate: fit a temperature and a bias per class to the validation labels after training,
            before the correction (:mod:`fairmp.training.calibration`).
        device: where to compute.

    After ``fit``: ``run_`` (figures and history), ``network_``, ``classes_``, ``groups_`` and
    ``features_`` (names), ``group_duals_`` (for ``"per-node"``), ``debiaser_`` (for corrections
    after plain propagation), ``encoding_`` (how tables became the graph, if they did), ``graph_``
    and ``logits_`` (of all nodes, before a correction), ``test_logits_``, and ``held_out_``: logits
    of labelled nodes by models that were not fitted on them, propagated and not corrected. With
    ``group_free`` also ``group_network_`` and ``group_logits_``, its logits of all nodes, out of
    fold where their group was fitted on.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=400, average_degree=8)
        >>> model = FairClassifier(FMP(target=0.01), backbone="mlp", epochs=20, lr=0.01)
        >>> model.fit(data, seed=0, bootstrap=0).run_.test
        Evaluation(n=100, mode='batch', accuracy=0.7..., dp=0.0004002, eo=0...)
        >>> model.predict(data, nodes=[0, 1, 2])
        array(['class 1', 'class 1', 'class 1'], dtype='<U7')
        >>> model.predict_proba(data).shape
        torch.Size([400, 2])
    """

    propagation: nn.Module | None = field(
        default_factory=lambda: FMP(lambda_s=defaults.LAMBDA_S), kw_only=False
    )
    backbone: str | nn.Module | Classifier = "auto"
    graph_features: bool | None = None
    folds: int = defaults.FOLDS
    time_budget: float = defaults.TIME_BUDGET
    hidden: int = defaults.HIDDEN
    num_layers: int = defaults.NUM_LAYERS
    dropout: float = defaults.DROPOUT
    norm: str | None = None
    epochs: int = defaults.EPOCHS
    lr: float = defaults.LR
    weight_decay: float = defaults.WEIGHT_DECAY
    select: Select = "accuracy"
    patience: int | None = defaults.PATIENCE
    eval_every: int = defaults.EVAL_EVERY
    strategy: Strategy | None = None
    on: On = "decisions"
    criterion: str = PARITY
    group_free: bool = False
    neighbour_groups: bool = True
    confidence: float | None = None
    calibrate: bool = True
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        hint = "give FMP(…), PPR(…) or None"
        if not (self.propagation is None or isinstance(self.propagation, nn.Module)):
            raise InputError("propagation", f"{self.propagation!r} is not a module", hint)
        check_backbone(self.backbone)
        check_integer("folds", self.folds, "give 1 or more, 5 is usual")
        check_number("time_budget", self.time_budget, "give seconds, 0 or more", low=0)
        _ = self.training_settings  # which checks those arguments
        # A value that is right is stored unchanged, as scikit-learn's clone() checks.
        if self.criterion not in CRITERIA:
            self.criterion = canonical(self.criterion)
        self._check_correction()
        if not isinstance(self.device, torch.device):
            self.device = _device(self.device)
        self.encoding_: Encoding | None = None
        self.logits_: Tensor
        self.test_logits_: Tensor
        self._folder: Path | None = None  # that it was loaded from
        self._graph: Data | None = None  # that it was fitted on
        self._transform_logits: Tensor | None = None  # of its nodes, before propagation
        self._new_people: NewPeople | None = None

    def _check_correction(self) -> None:
        """Raise if what is asked for after plain propagation cannot be had."""
        has_target = isinstance(self.propagation, FMP) and self.propagation.solver == "projection"
        asked = {
            "criterion": self.criterion != PARITY,
            "group_free": self.group_free,
            "confidence": self.confidence is not None,
        }
        for argument in (name for name, is_asked in asked.items() if is_asked):
            if not has_target:
                value = f"{getattr(self, argument)!r} with the propagation {self.propagation!r}"
                raise InputError(argument, value, "give FMP(target=…), whose target it takes")
            if argument != "criterion" and self.on != "decisions":
                raise InputError("on", repr(self.on), f"{{{argument}}} is for 'decisions'")
        if self.confidence is not None:
            from fairmp.postprocessing.confidence import (
                BLIND_CRITERIA,
                THRESHOLD_CRITERIA,
                check_promise,
            )

            criteria = BLIND_CRITERIA if self.group_free else THRESHOLD_CRITERIA
            target = cast(FMP, self.propagation).target
            check_promise(self.criterion, target, self.confidence, criteria)

    @property
    def uses_groups(self) -> bool:
        """Whether a prediction uses the group of its node."""
        return isinstance(self.propagation, FMP) and not self.group_free

    @property
    def corrects(self) -> bool:
        """Whether predictions are corrected between groups, read or estimated."""
        return isinstance(self.propagation, FMP)

    @property
    def corrects_rows(self) -> bool:
        """Whether propagation is plain, and a correction per node follows."""
        return self.criterion != PARITY or self.group_free or self.confidence is not None

    @property
    def cross_fits(self) -> bool:
        """Whether several folds are fitted: that takes candidates, and a propagation of ours."""
        layer = self.network_settings.propagation
        is_linear = isinstance(layer, PPR | None)  # before the correction
        projects = not isinstance(layer, FMP) or layer.solver == "projection"
        return self.folds > 1 and self.backbone == "auto" and is_linear and projects

    @property
    def calibrates(self) -> bool:
        """Whether predictions are calibrated, which takes a propagation of ours."""
        is_linear = isinstance(self.propagation, PPR | None)  # before the correction
        return self.calibrate and is_linear

    @property
    def gap_target(self) -> float | None:
        """Largest gap that is asked for, that of the projection."""
        layer = self.propagation
        return layer.target if isinstance(layer, FMP) and layer.solver == "projection" else None

    @property
    def network_settings(self) -> NetworkSettings:
        """The layers of its networks; propagation is plain where a correction follows."""
        layer = self.propagation
        if self.corrects_rows and isinstance(layer, FMP):
            layer = PPR(layer.K, layer.lambda_s, initial_lambda_s=layer.initial_lambda_s)
        return NetworkSettings(layer, self.hidden, self.num_layers, self.dropout, self.norm)

    @property
    def training_settings(self) -> TrainingSettings:
        """How its networks are trained."""
        names = [field.name for field in fields(TrainingSettings)]
        return TrainingSettings(**{name: getattr(self, name) for name in names})

    def fit(
        self,
        data: Data,
        *,
        seed: int = 0,
        split_seed: int | None = None,
        bootstrap: int = 1000,
        order: str = "given",
        progress: bool | None = None,
    ) -> Self:
        """Train, and measure on the three parts of the split (``run_``).

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
        check_choice("order", order, ("given", "locality"))
        data = as_read(data)
        check(data)
        if split_seed is None and not all(name in data for name in MASKS):
            split_seed = 0
        data = self._prepared(data, split_seed)
        nodes = TrainingNodes(data, graph_of(data), Names.of(data))
        numbers, trained_on = None, nodes
        if order == "locality":
            numbers = self._locality_order(nodes)
            moved = reordered(data, numbers)
            trained_on = TrainingNodes(moved, graph_of(moved), nodes.names)
        encoding: Encoding | None = getattr(data, "encoding", None)
        if encoding is not None and encoding.feature_names != nodes.names.features:
            encoding = None  # the features were changed after encoding
        self.fit_nodes(
            trained_on,
            seed=seed,
            split_seed=split_seed,
            bootstrap=bootstrap,
            progress=progress,
            encoding=encoding,
        )
        if numbers is not None:
            self._restore_order(nodes.graph, numbers, trained_on.data.test_mask)
        self._graph = data
        return self

    def _prepared(self, data: Data, split_seed: int | None) -> Data:
        """A checked copy of the graph with its split, on the device, in the type to compute in."""
        data = copy.copy(data) if split_seed is None else with_split(data, seed=split_seed)
        check(data, masks=True)
        if groups.is_soft(data.sens):
            check_certain_groups(data)
        if data.x.device != self.device:
            data = data.to(str(self.device))
        data.x = data.x.to(compute_dtype(data.x.dtype))  # Adam does not work in half precision
        return data

    def _restore_order(self, graph: Graph, numbers: Tensor, test_mask: Tensor) -> None:
        """Bring the logits of reordered nodes back to the order of the graph."""
        places = numbers.argsort()
        self.graph_, self.logits_ = graph, self.logits_[places]
        self.test_logits_ = self.test_logits_[numbers[test_mask].argsort()]
        self._transform_logits = cast(Tensor, self._transform_logits)[places]

    def fit_nodes(
        self,
        nodes: TrainingNodes,
        *,
        seed: int = 0,
        split_seed: int | None = None,
        bootstrap: int = 1000,
        progress: bool | None = None,
        checkpoints: Checkpoints | None = None,
        encoding: Encoding | None = None,
    ) -> Self:
        """Train on nodes that are checked, in this process or, with another reducer, in several.

        ``split_seed`` is for the record, ``checkpoints`` save the training of a network and resume
        it, and ``encoding`` is how tables became the graph; see :meth:`fit` for the others.
        """
        trained = self._train(nodes, seed, progress, checkpoints)
        estimate = self._estimate_groups(nodes, seed, progress) if self.group_free else None
        with torch.no_grad():
            logits, held_out = self._calibrate(trained, nodes)
            calibrated = held_out.calibrated(trained.network.calibration)
            self.held_out_ = Predicted(nodes.data, held_out.nodes, calibrated)
            out_of_fold = self.held_out_ if held_out.cross_fitted else None
            correction = self._solve(trained.network, nodes, logits, out_of_fold, estimate)
        self._store(trained.network, nodes, correction, estimate)
        self.encoding_, self._transform_logits = encoding, logits
        train, val, test = self._measure(nodes, correction, bootstrap)
        self.run_ = Run(
            train=train,
            val=val,
            test=test,
            history=trained.history,
            config=self.config(),
            seed=seed,
            split_seed=split_seed,
            versions=versions(),
            tried=trained.trials,
            group_tried=() if estimate is None else estimate.trials,
            promise=None if self.debiaser_ is None else self.debiaser_.promise_,
            uncorrected=self._measure_uncorrected(nodes, bootstrap),
        )
        return self

    def _train(
        self,
        nodes: TrainingNodes,
        seed: int,
        progress: bool | None,
        checkpoints: Checkpoints | None,
    ) -> Selection:
        """Train the network, or choose it among candidates."""
        backbone = self.backbone
        if _is_network(backbone) and not self.graph_features:
            network, history = train_network(
                backbone,
                nodes,
                self.network_settings,
                self.training_settings,
                seed=seed,
                checkpoints=checkpoints,
                progress=progress,
            )
            return Selection(network, history, ())
        if nodes.reducer.size > 1:
            value = f"{backbone!r} needs all nodes in one process"
            raise InputError("backbone", value, f"choose one of {', '.join(BACKBONES)}")
        return select(self._selection_settings, nodes, seed=seed, progress=progress)

    @property
    def _selection_settings(self) -> SelectionSettings:
        return SelectionSettings(
            backbone=self.backbone,
            graph_features=self.graph_features,
            time_budget=self.time_budget,
            calibrate=self.calibrates,
            folds=self.folds if self.cross_fits else 1,
            network=self.network_settings,
            training=self.training_settings,
        )

    def _estimate_groups(
        self, nodes: TrainingNodes, seed: int, progress: bool | None
    ) -> GroupEstimate:
        """Fit the network that estimates groups."""
        if nodes.reducer.size > 1:
            value = "groups are estimated from all nodes in one process"
            raise InputError("group_free", value, "train on one graph, not on shards")
        settings = replace(self._selection_settings, folds=self.folds)
        return estimate_groups(
            nodes, settings, neighbour_groups=self.neighbour_groups, seed=seed, progress=progress
        )

    def _calibrate(self, trained: Selection, nodes: TrainingNodes) -> tuple[Tensor, HeldOut]:
        """Calibrate the network; return its logits before propagation, and held-out nodes."""
        network, logits = trained.network, trained.logits
        # One pass of the transform serves the evaluations, the stored correction and reports.
        if logits is None:
            logits = network.logits(nodes.data.x, nodes.graph)
        held_out = trained.held_out or validation_nodes(network, nodes, logits)
        if self.calibrates:
            calibrate_network(network, nodes, held_out)
        return network.calibrated(logits), held_out

    def _solve(
        self,
        network: Network,
        nodes: TrainingNodes,
        logits: Tensor,
        out_of_fold: Predicted | None,
        estimate: GroupEstimate | None,
    ) -> Correction:
        """Correct each part of the split."""
        if isinstance(network.propagation, FMP):
            return hold_parity(network.propagation, nodes, logits, self.on, out_of_fold)
        propagated = network.propagate(logits, nodes.graph, nodes.data.sens)
        if not self.corrects_rows:
            return hold_criterion(None, nodes, propagated, out_of_fold)
        held_out, group_logits = self.held_out_, None
        if estimate is not None:
            blind = estimate.blind[held_out.nodes]  # all, unless time was over
            numbers = held_out.nodes.nonzero()[:, 0][blind]
            held_out = Predicted(held_out.data, numbers, held_out.logits[blind])
            group_logits = estimate.logits[numbers]
        debiaser = fit_debiaser(self._debiaser(nodes.names), nodes, held_out, group_logits)
        estimated = None if estimate is None else estimate.logits
        return hold_criterion(debiaser, nodes, propagated, out_of_fold, estimated)

    def _debiaser(self, names: Names) -> Debiaser:
        """The correction after plain propagation, not fitted yet."""
        from fairmp.postprocessing.debiaser import Debiaser

        layer = cast(FMP, self.propagation)  # whose target and temperature it takes
        return Debiaser(
            self.criterion,
            layer.target,
            kind="logits",
            on=self.on,
            temperature=1.0 if self.on == "decisions" else layer.temperature,
            class_names=names.classes,
            group_free=self.group_free,
            confidence=self.confidence,
        )

    def _store(
        self,
        network: Network,
        nodes: TrainingNodes,
        correction: Correction,
        estimate: GroupEstimate | None,
    ) -> None:
        """Store the network, the correction that per-node prediction applies, and the logits."""
        fitted = FittedModel(
            network,
            nodes.names,
            self.on,
            torch.device(self.device),
            correction.group_duals,
            correction.debiaser,
            None if estimate is None else estimate.network,
        )
        self.adopt(fitted)
        if estimate is not None:
            self.group_logits_ = estimate.logits
        self.graph_, self.logits_ = nodes.graph, correction.uncorrected
        self.test_logits_ = correction.parts["test_mask"].logits

    def _measure(
        self, nodes: TrainingNodes, correction: Correction, bootstrap: int
    ) -> list[Evaluation]:
        """Evaluate each part of the split, predicted as a batch of its own."""
        parts = [correction.parts[mask] for mask in MASKS]
        return [self.fitted_.measure(part, "batch", bootstrap, nodes.reducer) for part in parts]

    def _measure_uncorrected(self, nodes: TrainingNodes, bootstrap: int) -> Evaluation | None:
        """Evaluate the test nodes without the correction, if there is one."""
        if not self.corrects:
            return None
        test = nodes.data.test_mask
        with torch.no_grad():
            predicted = Predicted(nodes.data, test, self.uncorrected()[test])
        return self.fitted_.evaluate(predicted, bootstrap, nodes.reducer)

    def adopt(self, fitted: FittedModel) -> None:
        """Take over a fitted model: set the learned attributes that prediction needs."""
        self.fitted_, names = fitted, fitted.names
        self.features_, self.classes_, self.groups_ = names.features, names.classes, names.groups
        self.network_, self.group_duals_ = fitted.network, fitted.group_duals
        self.debiaser_, self.group_network_ = fitted.debiaser, fitted.group_network
        self._new_people = self._graph = self._folder = None

    def _locality_order(self, nodes: TrainingNodes) -> Tensor:
        """Numbers of the nodes, neighbours near each other."""
        if self.graph_features or not _is_network(self.backbone):
            value = f"'locality' with the backbone {name_of(self.backbone)!r} or graph features"
            raise InputError("order", value, f"choose one of {', '.join(BACKBONES)}, or 'given'")
        edges = nodes.graph.adjacency(nodes.data.x.dtype).forward
        order = locality_order(edges.row.cpu().numpy(), edges.col.cpu().numpy())
        return torch.from_numpy(order).to(nodes.data.x.device)

    def predict_proba(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> Tensor:
        """Predict the probability of each class.

        Args:
            data: the graph the network was trained on, or another with the same features and
                groups, which are matched by name if both have names.
            nodes: which nodes to predict: a boolean mask, or their numbers, in any order; all by
                default. In mode ``"batch"`` they are the population whose gap is closed.
            mode: ``"batch"`` or ``"per-node"``; a correction after plain propagation, as for a
                criterion on labels, is always per node.

        Returns:
            One row per predicted node, in the order of the graph, or of the numbers given.
        """
        self._check_fitted()
        return self.fitted_.predict(data, nodes, mode).logits.softmax(1)

    def predict(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> np.ndarray:
        """Predict the names of classes, or their numbers if the training data had no names.

        See :meth:`predict_proba` for the arguments.
        """
        codes: np.ndarray = self.predict_proba(data, nodes=nodes, mode=mode).argmax(1).cpu().numpy()
        return codes if are_numbers(self.classes_) else np.array(self.classes_)[codes]

    def predict_new(
        self, people: Any, edges: Any = None, *, unknown_groups: UnknownGroups = "refuse"
    ) -> Any:
        """Predict people who were not in the training graph, each of them alone (per node).

        New people receive messages, and known people stay as they were
        (:mod:`fairmp.training.known_graph`): a prediction costs as much as a person has edges, and
        depends neither on earlier ones nor on the order. Those given together see each other where
        they have an edge. The first call prepares the training graph.

        Args:
            people: one row per person, with the columns of the training table: a table of pandas,
                polars or Arrow, or a list of dicts. Their ids must be new.
            edges: one row per edge, by ids of known or new people. The columns are found as those
                of training. A saved model needs its graph for them (``save(graph=True)``).
            unknown_groups: ``"refuse"`` groups not seen in training, or ``"allow"`` them: such
                people are not corrected.

        Returns:
            Id, probabilities and decision of each person, as a table of the same kind.

        Example:
            >>> import pandas as pd
            >>> from fairmp.datasets import from_tables
            >>> people = pd.DataFrame({"id": range(60), "sex": ["f", "m", "m"] * 20})
            >>> people = people.assign(age=range(20, 80), hired=["no"] * 30 + ["yes"] * 30)
            >>> edges = pd.DataFrame({"source": range(59), "target": range(1, 60)})
            >>> data = from_tables(people, edges, id="id", label="hired", sensitive="sex")
            >>> model = FairClassifier(backbone="logistic").fit(data, bootstrap=0)
            >>> new = [{"id": 60, "sex": "f", "age": 75}, {"id": 61, "sex": "f", "age": 22}]
            >>> model.predict_new(new, [{"source": 60, "target": 59}])[0]["decision"]
            'yes'
        """
        return self.new_people().predict(people, edges, unknown_groups)

    def explain(
        self, person: Any, edges: Any = None, *, unknown_groups: UnknownGroups = "refuse"
    ) -> Explanation:
        """Explain the prediction of a new person: own data, neighbours and correction.

        The three parts add up to the logit of :meth:`predict_new`
        (:mod:`fairmp.training.explanation`).

        Args:
            person: a dict, or a table of one row.
            edges: see :meth:`predict_new`.
            unknown_groups: see :meth:`predict_new`.
        """
        return self.new_people().explain(person, edges, unknown_groups)

    def stages(self, nodes: Tensor, corrected: Tensor) -> Stages:
        """Logits of some nodes of the graph that was fitted, at each stage of their prediction.

        Args:
            nodes: a mask.
            corrected: their logits after the correction.
        """
        alone = own_logits(self.network_, cast(Data, self._graph).x, nodes)
        return Stages(alone.cpu(), self.uncorrected()[nodes].cpu(), corrected.cpu())

    def new_people(self) -> NewPeople:
        """What :meth:`predict_new` keeps between calls, prepared once."""
        from fairmp.training.new_people import NewPeople

        self._check_fitted()
        if self.encoding_ is None:
            value = "the model was not trained on tables, so it cannot encode columns as features"
            raise InputError("people", value, "give a graph to predict(), or train on tables")
        if self._new_people is None and self._folder is not None:
            self._new_people = NewPeople.stored(self.fitted_, self.encoding_, self._folder)
        elif self._new_people is None:
            logits = self._transform_logits
            self._new_people = NewPeople(self.fitted_, self.encoding_, self._graph, logits)
        return self._new_people

    def evaluate(
        self,
        data: Data,
        *,
        nodes: Nodes = None,
        mode: Mode = "batch",
        bootstrap: int = 1000,
    ) -> Evaluation:
        """Measure accuracy and fairness on some nodes, by default the test nodes if there are any.

        If groups are probabilities, gaps are measured on nodes of certain group, and a note says
        so.
        """
        self._check_fitted()
        if isinstance(data, Data):
            for name, content in (("y", "labels (-1 if unknown)"), ("sens", "groups")):
                if not isinstance(data.get(name), Tensor):
                    raise InputError(f"data.{name}", "missing", f"an evaluation needs {content}")
            if nodes is None and "test_mask" in data and bool(data.test_mask.any()):
                nodes = data.test_mask
        predicted = self.fitted_.predict(data, nodes, mode)
        return self.fitted_.measure(predicted, mode, bootstrap)

    def score(self, data: Data, *, nodes: Nodes = None, mode: Mode = "batch") -> float:
        """Return the accuracy on some nodes, by default the test nodes if there are any."""
        return self.evaluate(data, nodes=nodes, mode=mode, bootstrap=0).accuracy

    def estimate_groups(self, data: Data, *, nodes: Nodes = None) -> Tensor:
        """Estimate the probability of each group, as a group-free model does to predict (m×G).

        See :meth:`predict_proba` for the arguments; the groups of ``data`` are not read.
        """
        self._check_fitted()
        if not self.group_free:
            value = "this model reads groups, and estimates none"
            raise InputError("group_free", value, "fit with {group_free=True}")
        return self.fitted_.estimate_groups(data, nodes).softmax(1)

    def uncorrected(self) -> Tensor:
        """Logits of all nodes of the graph that was fitted, propagated and not corrected (n×C)."""
        layer = self.network_.propagation
        if not isinstance(layer, FMP):
            return self.logits_
        adjacency = self.graph_.adjacency(self.logits_.dtype)
        return propagate_uncorrected(self.logits_, layer, adjacency).logits

    def _check_fitted(self) -> None:
        if not hasattr(self, "fitted_"):
            hint = "call fit(data) or load(path) first"
            raise InputError("FairClassifier", "not fitted yet", hint)

    def __sklearn_tags__(self) -> Any:
        value = "scikit-learn's searches and ensembles are not supported: they cut tables into rows"
        raise InputError("FairClassifier", value, "a graph would lose its edges: use fairmp tune")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn's estimators do.

        If ``deep``, those of the propagation are added, as in ``propagation__target``.
        """
        params = {field.name: getattr(self, field.name) for field in fields(self)}
        if deep and isinstance(self.propagation, PPR):
            layer = self.propagation.config()
            params |= {f"propagation__{name}": value for name, value in layer.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, or of the propagation; nothing if one is wrong.

        Example:
            >>> model = FairClassifier(FMP(K=3)).set_params(lr=0.1, propagation__target=0.02)
            >>> model.lr, model.propagation.K, model.propagation.target
            (0.1, 3, 0.02)
        """
        arguments = {name: value for name, value in params.items() if "__" not in name}
        layer = arguments.get("propagation", self.propagation)
        layer_config: dict[str, Any] = layer.config() if isinstance(layer, PPR) else {}
        layer_names = {f"propagation__{name}": name for name in layer_config}
        parameters = [*(field.name for field in fields(self)), *layer_names]
        for name, value in params.items():
            if name not in parameters:
                raise InputError(name, "no such argument", f"there are {', '.join(parameters)}")
            if name in layer_names:
                layer_config[layer_names[name]] = value
        if isinstance(layer, PPR) and len(arguments) < len(params):
            arguments["propagation"] = type(layer)(**layer_config)
        changed = replace(self, **arguments)
        for name in arguments:
            setattr(self, name, getattr(changed, name))
        return self

    def config(self) -> dict[str, Any]:
        """Return the arguments that make an equal classifier, as plain JSON values."""
        config = self.get_params(deep=False)
        del config["device"]
        layer = self.propagation
        if layer is not None:
            arguments = layer.config() if isinstance(layer, PPR) else {}
            config["propagation"] = {"name": type(layer).__name__, **arguments}
        strategy = {"name": "vanilla"} if self.strategy is None else self.strategy.config()
        return {**config, "strategy": strategy, "backbone": name_of(self.backbone)}

    def save(self, path: str | Path, *, overwrite: bool = False, graph: bool = False) -> Path:
        """Save to a folder, as one file of weights and their description.

        Only the weights of a module of your own are saved. scikit-learn classifiers are saved with
        skops. With ``graph``, a model of tables stores its training graph too, people's data
        included, so that :meth:`predict_new` can read edges to it.
        """
        self._check_fitted()
        if graph and (self._graph is None or self.encoding_ is None):
            value = "the model was not fitted on tables in this process"
            raise InputError("graph", value, "leave it out")
        folder = model_files.save(path, self, overwrite=overwrite)
        if graph:
            self.save_graph(folder)
        return folder

    def save_graph(self, folder: Path) -> None:
        """Store the training graph beside a saved model."""
        from fairmp.datasets.stored_graph import save_graph

        save_graph(cast(Data, self._graph), folder, self._transform_logits)

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

        Args:
            path: the folder.
            device: where to compute.
            trust: load a scikit-learn classifier with types that are not known to be safe. They
                could run code; without them nothing in the file is executed.
            backbone: for the weights of a module of your own, a module of the same shape.
        """
        model = model_files.load(cls, path, device=device, trust=trust, backbone=backbone)
        model._folder = Path(path)
        return model

    def __repr__(self) -> str:
        return f"FairClassifier({self.propagation!r}, backbone={name_of(self.backbone)!r})"


def _is_network(backbone: str | nn.Module | Classifier) -> TypeGuard[str | nn.Module]:
    return isinstance(backbone, nn.Module) or backbone in BACKBONES


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        value = f"{name!r} is unknown"
        raise InputError("device", value, "choose 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "CUDA is not available", "use 'cpu'")
    return device


def build_classifier(
    solver: str = "projection",
    *,
    K: int = defaults.K,
    lambda_s: Smoothing = defaults.LAMBDA_S,
    lambda_f: float = defaults.LAMBDA_F,
    target: float = 0.0,
    strategy: str = "vanilla",
    h: float = defaults.H,
    pretrain: int = defaults.PRETRAIN,
    adversary_lr: float = 1e-3,
    **settings: Any,
) -> FairClassifier:
    """Build a classifier from plain values, as options and records give them.

    ``solver`` is one of :class:`~fairmp.nn.fmp.FMP`, ``"plain"`` for propagation without a
    correction, or ``"none"``; ``strategy`` is ``"vanilla"``, ``"regulariser"`` or ``"adversary"``
    of strength ``h``. Other settings go to :class:`FairClassifier`.

    Example:
        >>> build_classifier("plain", K=5, lambda_s=1.0, backbone="mlp")
        FairClassifier(PPR(K=5, lambda_s=1.0), backbone='mlp')
    """
    check_choice("solver", solver, (*SOLVERS, "plain", "none"))
    penalties: dict[str, Callable[[], Strategy | None]] = {
        "vanilla": lambda: None,
        "regulariser": lambda: Regulariser(h),
        "adversary": lambda: Adversary(h, pretrain_classifier=pretrain, lr=adversary_lr),
    }
    check_choice("strategy", strategy, penalties)
    propagation: PPR | None = None
    if solver == "plain":
        propagation = PPR(K, lambda_s)
    elif solver != "none":
        propagation = FMP(K, lambda_s, lambda_f, cast(Solver, solver), target)
    return FairClassifier(propagation, strategy=penalties[strategy](), **settings)
