"""Train, predict and evaluate on shards, with the same loop and model file as one process."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmp.datasets.encoding import Encoding
from fairmp.datasets.splits import MASKS
from fairmp.distributed.loading import Shard
from fairmp.errors import InputError
from fairmp.metrics import Evaluation
from fairmp.training.classifier import FairClassifier, Mode
from fairmp.training.nodes import Names, Predicted, TrainingNodes
from fairmp.training.penalties import Adversary
from fairmp.training.run import Run
from fairmp.training.trainer import Checkpoints


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
    to the order of summation. Intervals are those of independent nodes, where one process resamples
    communities of the graph, and a note says so. Dropout is drawn on each rank. The fitted model
    and the run are the same on all ranks, and ``model.save`` saves it. ``split_seed`` is for the
    record: the split is that of the shard. ``checkpoints`` save the training, and resume it. Other
    arguments are those of :meth:`FairClassifier.fit
    <fairmp.training.classifier.FairClassifier.fit>`.

    Example:
        >>> import tempfile
        >>> from fairmp import FMP
        >>> from fairmp.datasets import social_network
        >>> from fairmp.distributed import load_shard, shard
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = shard(social_network(200, average_degree=5), f"{place}/g", parts=1)
        ...     mine = load_shard(f"{place}/g")
        >>> model = FairClassifier(FMP(lambda_s=3.0), backbone="mlp", epochs=5)
        >>> fit_shard(model, mine).test.mode
        'batch'
    """
    _check(model, shard)
    encoding, data = shard.manifest.encoding, shard.data
    names = Names(data.feature_names, data.class_names, data.group_names)
    return model.fit_nodes(
        TrainingNodes(data, shard.graph, names, shard.ranks),
        seed=seed,
        split_seed=split_seed,
        bootstrap=bootstrap,
        progress=progress,
        checkpoints=checkpoints,
        encoding=None if encoding is None else Encoding.from_dict(encoding),
    ).run_


def predict_shard(
    model: FairClassifier, shard: Shard, *, nodes: Tensor | None = None, mode: Mode = "batch"
) -> Tensor:
    """Predict the probability of each class for this rank's nodes; all ranks call it together.

    The model is the same on all ranks, however it was trained. ``nodes`` is a mask of this rank's
    nodes, all by default; in mode ``"batch"`` those of all ranks are the population whose gap is
    closed. Returns one row per predicted node of this rank.
    """
    data, nodes = shard.ranks.raise_on_all_ranks(lambda: model.fitted_.align(shard.data, nodes))
    return model.fitted_.logits(data, shard.graph, nodes, mode, shard.ranks).softmax(1)


def evaluate_shard(
    model: FairClassifier,
    shard: Shard,
    *,
    nodes: Tensor | None = None,
    mode: Mode = "batch",
    bootstrap: int = 1000,
) -> Evaluation:
    """Measure accuracy and fairness over the nodes of all ranks; all ranks call it together.

    ``nodes`` is a mask of this rank's nodes, by default the test nodes. Rank 0 gathers the logits,
    labels and groups that are measured; the result is the same on all ranks. Intervals are those of
    independent nodes, since no rank has the graph whose communities one process resamples.
    """
    ranks = shard.ranks
    nodes = shard.data.test_mask if nodes is None else nodes
    fitted = model.fitted_
    data, nodes = ranks.raise_on_all_ranks(lambda: fitted.align(shard.data, nodes))
    logits = fitted.logits(data, shard.graph, nodes, mode, ranks)
    return fitted.measure(Predicted(data, nodes, logits), mode, bootstrap, ranks)


def _check(model: FairClassifier, shard: Shard) -> None:
    if model.norm is not None:
        value = f"{model.norm!r} needs all nodes, which no rank has"
        raise InputError("norm", value, "use {norm=None}")
    if model.backbone == "gat":
        shard.graph.with_self_loops()
    if isinstance(model.strategy, Adversary):
        value = "the adversary needs all nodes in one process"
        raise InputError("strategy", value, "use the regulariser or the projection for shards")
    data = shard.data
    counts = torch.tensor([float(data[name].sum()) for name in MASKS], device=data.x.device)
    for name, count in zip(MASKS, shard.ranks.total(counts).tolist(), strict=True):
        if not count:
            raise InputError(f"data.{name}", "no node is in it", "shard with another split")

    def check_finite() -> None:
        # In pieces: a mask of all features would take as much memory as they do.
        if not all(bool(torch.isfinite(rows).all()) for rows in data.x.split(1 << 16)):
            raise InputError("data.x", "some features are not finite", "fill or drop them")

    shard.ranks.raise_on_all_ranks(check_finite)
