"""Train, predict and evaluate on shards, with the same loop and model file as one process."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.checks import MASKS
from fairmp.datasets.encoding import Encoding
from fairmp.distributed.loading import Shard
from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.training.classifier import FairClassifier, Mode
from fairmp.training.loop import Checkpoints, Run
from fairmp.training.penalties import Adversary


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
    to the order of summation. Dropout is drawn on each rank. The fitted model is the same on all
    ranks, and ``model.save`` saves it.

    Args:
        model: a classifier; it is fitted.
        shard: this rank's part of the graph.
        seed: seed of the initialisation and of dropout.
        split_seed: seed of the split the shard was loaded with, for the record.
        bootstrap: number of resamples for the intervals.
        progress: show a bar on rank 0; by default if standard error is a terminal.
        checkpoints: where to save the training and to resume it from.

    Returns:
        The run, the same on all ranks.

    Example:
        >>> import tempfile
        >>> from fairmp import FMP
        >>> from fairmp.datasets import social_network
        >>> from fairmp.distributed import load_shard, shard
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = shard(social_network(200, average_degree=5), f"{place}/g", parts=1)
        ...     mine = load_shard(f"{place}/g")
        >>> model = FairClassifier(FMP(lambda_s=3.0), epochs=5)
        >>> fit_shard(model, mine).test.mode
        'batch'
    """
    _check(model, shard)
    manifest = shard.manifest
    model.classes_ = list(manifest.class_names)
    model.groups_ = list(manifest.group_names)
    model.features_ = list(manifest.feature_names)
    model.encoding_ = None if manifest.encoding is None else Encoding.from_dict(manifest.encoding)
    nodes = shard.data, shard.graph, shard.ranks
    return model._fit(*nodes, seed, split_seed, bootstrap, progress, checkpoints)


def predict_shard(
    model: FairClassifier, shard: Shard, *, nodes: Tensor | None = None, mode: Mode = "batch"
) -> Tensor:
    """Predict the probability of each class for this rank's nodes; all ranks call it together.

    Args:
        model: a fitted or loaded classifier, the same on all ranks, however it was trained.
        shard: this rank's part of the graph.
        nodes: which of this rank's nodes to predict (a boolean mask); all by default. In mode
            ``"batch"`` those of all ranks are the population whose gap is closed.
        mode: ``"batch"`` or ``"per-node"``.

    Returns:
        One row per predicted node of this rank.
    """
    data, nodes = shard.ranks.together(lambda: model._align(shard.data, nodes))
    return model._logits(data, shard.graph, nodes, mode, shard.ranks).softmax(1)


def evaluate_shard(
    model: FairClassifier,
    shard: Shard,
    *,
    nodes: Tensor | None = None,
    mode: Mode = "batch",
    bootstrap: int = 1000,
) -> Evaluation:
    """Measure accuracy and fairness over the nodes of all ranks; all ranks call it together.

    Rank 0 gathers the logits, labels and groups that are measured.

    Args:
        model: a fitted or loaded classifier.
        shard: this rank's part of the graph.
        nodes: which of this rank's nodes to measure; the test nodes by default.
        mode: ``"batch"`` or ``"per-node"``.
        bootstrap: number of resamples for the intervals.

    Returns:
        The figures, the same on all ranks.
    """
    ranks = shard.ranks
    nodes = shard.data.test_mask if nodes is None else nodes
    data, nodes = ranks.together(lambda: model._align(shard.data, nodes))
    logits = model._logits(data, shard.graph, nodes, mode, ranks)
    return model._measure(data, nodes, logits, mode, bootstrap, ranks)


def _check(model: FairClassifier, shard: Shard) -> None:
    if model.norm is not None:
        raise InputError(
            "norm", f"{model.norm!r} needs all nodes, which no rank has", "use norm=None"
        )
    if model.backbone == "gat":
        shard.graph.looped()
    if isinstance(model.strategy, Adversary):
        raise InputError(
            "strategy",
            "the adversary needs all nodes in one process",
            "use the regulariser or the projection for shards",
        )
    data: Data = shard.data
    counts = torch.tensor([float(data[name].sum()) for name in MASKS], device=data.x.device)
    for name, count in zip(MASKS, shard.ranks.total(counts).tolist(), strict=True):
        if not count:
            raise InputError(f"data.{name}", "no node is in it", "shard with another split")

    def check_finite() -> None:
        # In pieces: a mask of all features would take as much memory as they do.
        if not all(bool(torch.isfinite(rows).all()) for rows in data.x.split(1 << 16)):
            raise InputError("data.x", "some features are not finite", "fill or drop them")

    shard.ranks.together(check_finite)
