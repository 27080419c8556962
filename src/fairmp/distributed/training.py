"""Train, predict and measure on shards, with the one loop and the one model file."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fairmp.datasets.checks import MASKS
from fairmp.datasets.encoding import Encoding
from fairmp.distributed.groups import sharded_incidence
from fairmp.distributed.loading import Shard
from fairmp.distributed.ranks import Ranks
from fairmp.errors import InputError
from fairmp.groups import GroupOperator
from fairmp.metrics import Evaluation, evaluate
from fairmp.nn.fmp import FMP
from fairmp.nn.models import Network, build
from fairmp.training import alignment as serving
from fairmp.training import model_files as persistence
from fairmp.training.classifier import FairClassifier, Mode
from fairmp.training.loop import Checkpoints, LocalReducer, fit, seeded, told
from fairmp.training.penalties import Adversary
from fairmp.training.run import Run


class DistributedReducer(LocalReducer):
    """Nodes on several ranks: sums over nodes are sums over all of them.

    Args:
        ranks: the ranks; all of them train at the same time.
        groups: number of sensitive groups.
    """

    def __init__(self, ranks: Ranks, groups: int) -> None:
        self.ranks, self.num_groups = ranks, groups

    def seed(self, seed: int) -> int:
        """The seed of dropout, another one on each rank."""
        return seed + 1_000_003 * self.ranks.rank

    def group_operator(self, sens: Tensor, population: Tensor) -> GroupOperator:
        """Δ of all ranks' nodes."""
        return sharded_incidence(sens, population, self.num_groups, self.ranks)

    def count(self, mask: Tensor) -> int:
        """How many nodes are in a mask, on all ranks."""
        return int(self.ranks.total(mask.sum().view(1)))

    def cross_entropy(self, logits: Tensor, y: Tensor, count: int) -> Tensor:
        """The share of the nodes here in the mean over all ranks' nodes."""
        return cross_entropy(logits, y, reduction="sum") / count

    def totals(self, *shares: Tensor) -> list[float]:
        """The sums of all ranks' shares, in one message."""
        numbers = torch.stack([share.detach().double() for share in shares])
        return self.ranks.total(numbers).tolist()

    def once(self, penalty: Tensor) -> Tensor:
        """An equal share for each rank."""
        return penalty / self.ranks.size

    def add_gradients(self, network: Network) -> None:
        """Sum the ranks' gradients."""
        self.ranks.add_gradients(network.parameters())


def fit_shard(
    model: FairClassifier,
    shard: Shard,
    *,
    seed: int = 0,
    split_seed: int | None = None,
    bootstrap: int = 1000,
    progress: bool | None = None,
    checkpoints: Checkpoints | None = None,
) -> Run:
    """Train a classifier on shards, as its ``fit`` does on a graph; all ranks call it together.

    The loss, its gradients, the duals and the figures are those of one process with all nodes, up
    to the order in which numbers are added. Dropout is drawn rank by rank. The model is a model
    like any other afterwards, the same on all ranks, and ``model.save`` saves it.

    Args:
        model: a classifier; it is fitted.
        shard: this rank's share of the graph.
        seed: of the initialisation and of dropout.
        split_seed: of the split the shard was loaded with, for the record.
        bootstrap: resamples for the intervals.
        progress: show a bar, on rank 0; by default where standard error is a terminal.
        checkpoints: where to keep the training, and to go on from.

    Returns:
        The run, the same on all ranks.

    Example:
        >>> import tempfile
        >>> from fairmp.datasets import social_network
        >>> from fairmp.distributed import load_shard, shard
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = shard(social_network(200, average_degree=5), f"{place}/g", parts=1)
        ...     mine = load_shard(f"{place}/g")
        >>> model = FairClassifier(FMP(lambda_s=3.0), epochs=5)
        >>> fit_shard(model, mine).test.mode
        'solve'
    """
    _check(model, shard)
    data, graph, manifest, ranks = shard.data, shard.graph, shard.manifest, shard.ranks
    model.classes_ = list(manifest.class_names)
    model.groups_ = list(manifest.group_names)
    model.features_ = list(manifest.feature_names)
    model.encoding_ = None if manifest.encoding is None else Encoding.from_dict(manifest.encoding)
    with seeded(seed):
        network = build(
            model.backbone,
            in_channels=data.x.size(1),
            out_channels=len(model.classes_),
            hidden=model.hidden,
            num_layers=model.num_layers,
            dropout=model.dropout,
            norm=model.norm,
            propagation=model.propagation,
        )
    model.network_ = network.to(data.x.device, data.x.dtype)
    nodes = _nodes(model, ranks)
    history = fit(
        model.network_,
        data,
        graph,
        epochs=model.epochs,
        lr=model.lr,
        weight_decay=model.weight_decay,
        select=model.select,
        patience=model.patience,
        eval_every=model.eval_every,
        temperature=model.predict_temperature,
        strategy=model.strategy,
        seed=seed,
        progress=progress if ranks.rank == 0 else False,
        nodes=nodes,
        checkpoints=checkpoints,
    )
    model.group_duals_, tau = None, model.predict_temperature
    if isinstance(model.propagation, FMP):
        with torch.no_grad():
            logits = model.network_.logits(data.x, graph)
            model.group_duals_ = model.propagation.solve(
                logits,
                graph.adjacency(logits.dtype),
                nodes.group_operator(data.sens, data.val_mask),
                **model.propagation.at_prediction(tau),
            ).group_duals
    train, val, test = (
        _evaluate(model, shard, data, data[name], "solve", bootstrap) for name in MASKS
    )
    model.run_ = Run(
        train, val, test, history, model.config(), seed, split_seed, persistence.versions()
    )
    return model.run_


def predict_shard(
    model: FairClassifier, shard: Shard, *, nodes: Tensor | None = None, mode: Mode = "solve"
) -> Tensor:
    """Predict the probability of each class for this rank's nodes; all ranks call it together.

    Args:
        model: a fitted or loaded classifier, the same on all ranks, however it was trained.
        shard: this rank's share of the graph.
        nodes: which of this rank's nodes to predict (a boolean mask); all by default. With
            ``"solve"`` all ranks' nodes asked for are the population whose gap is closed.
        mode: ``"solve"`` or ``"frozen"``.

    Returns:
        A row for each of this rank's nodes asked for.
    """
    data = _served(model, shard)
    nodes = serving.node_mask(nodes, data.x.size(0)).to(data.x.device)
    return _logits(model, shard, data, nodes, mode).softmax(1)


def evaluate_shard(
    model: FairClassifier,
    shard: Shard,
    *,
    nodes: Tensor | None = None,
    mode: Mode = "solve",
    bootstrap: int = 1000,
) -> Evaluation:
    """Measure accuracy and fairness over all ranks' nodes; all ranks call it together.

    Rank 0 gathers what is measured: logits, label and group of each node asked for.

    Args:
        model: a fitted or loaded classifier.
        shard: this rank's share of the graph.
        nodes: which of this rank's nodes to measure; the test nodes by default.
        mode: ``"solve"`` or ``"frozen"``.
        bootstrap: resamples for the intervals.

    Returns:
        The figures, the same on all ranks.
    """
    data = _served(model, shard)
    nodes = data.test_mask if nodes is None else nodes
    nodes = serving.node_mask(nodes, data.x.size(0)).to(data.x.device)
    return _evaluate(model, shard, data, nodes, mode, bootstrap)


def _nodes(model: FairClassifier, ranks: Ranks) -> DistributedReducer:
    return DistributedReducer(ranks, len(model.groups_))


def _served(model: FairClassifier, shard: Shard) -> Data:
    if not hasattr(model, "network_"):
        raise InputError(
            "FairClassifier", "not fitted yet", "call fit_shard(…) or load(path) first"
        )
    dtype = next(model.network_.parameters()).dtype
    return shard.ranks.together(
        lambda: serving.aligned(shard.data, model.features_, model.classes_, model.groups_, dtype)
    )


def _logits(model: FairClassifier, shard: Shard, data: Data, nodes: Tensor, mode: Mode) -> Tensor:
    if mode not in ("solve", "frozen"):
        raise InputError("mode", f"{mode!r} is unknown", "choose 'solve' or 'frozen'")
    graph, network = shard.graph, model.network_
    with torch.no_grad():
        if mode == "frozen" and isinstance(model.propagation, FMP):
            logits = network.logits(data.x, graph)
            assert model.group_duals_ is not None
            found = model.propagation.frozen(
                logits, graph.adjacency(logits.dtype), data.sens, model.group_duals_
            )
        else:
            groups = told(network, data.sens, nodes, _nodes(model, shard.ranks))
            found = network(data.x, graph, *groups, temperature=model.predict_temperature)
    return found[nodes]


def _evaluate(
    model: FairClassifier, shard: Shard, data: Data, nodes: Tensor, mode: Mode, bootstrap: int
) -> Evaluation:
    ranks = shard.ranks
    logits = ranks.gather(_logits(model, shard, data, nodes, mode))
    y, sens = ranks.gather(data.y[nodes]), ranks.gather(data.sens[nodes])

    def figures() -> Evaluation | None:
        if logits is None or y is None or sens is None:
            return None
        return evaluate(
            logits,
            y,
            sens,
            class_names=model.classes_,
            group_names=model.groups_,
            bootstrap=bootstrap,
        )

    found: Evaluation = ranks.from_first(ranks.together(figures))
    return replace(found, mode=mode) if isinstance(model.propagation, FMP) else found


def _check(model: FairClassifier, shard: Shard) -> None:
    if model.norm is not None:
        raise InputError(
            "norm",
            f"{model.norm!r} looks at all nodes at once, which no rank has",
            "use norm=None for shards",
        )
    if model.backbone == "gat":
        shard.graph.looped()
    if isinstance(model.strategy, Adversary):
        raise InputError(
            "strategy",
            "the adversary learns from all nodes in one process",
            "use the regulariser or the projection for shards",
        )
    data, ranks = shard.data, shard.ranks
    counts = torch.tensor([float(data[name].sum()) for name in MASKS], device=data.x.device)
    for name, count in zip(MASKS, ranks.total(counts).tolist(), strict=True):
        if not count:
            raise InputError(f"data.{name}", "no node is in it", "shard with another split")

    def finite() -> None:
        # Some rows at a time: the question asked of all at once takes as much room as they do.
        if not all(bool(torch.isfinite(rows).all()) for rows in data.x.split(1 << 16)):
            raise InputError("data.x", "some features are not finite", "fill or drop them")

    ranks.together(finite)
