"""Classifiers from plain values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from fairmp.errors import check_choice
from fairmp.nn.fmp import FMP, PPR, SOLVERS, Smoothing, Solver
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Lagrangian, Regulariser, Strategy


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
    check_choice("strategy", strategy, ("vanilla", "regulariser", "adversary", "lagrangian"))
    with suppress(KeyError, ValueError):
        settings["predict_temperature"] = float(settings["predict_temperature"])
    propagation: PPR | None = None
    if solver == "plain":
        propagation = PPR(K, lambda_s)
    elif solver != "none":
        propagation = FMP(K, lambda_s, lambda_f, cast(Solver, solver), target)
    penalty: Strategy | None = None
    if strategy == "regulariser":
        penalty = Regulariser(h)
    elif strategy == "lagrangian":
        penalty = Lagrangian(target)
    elif strategy == "adversary":
        penalty = Adversary(h, pretrain_classifier=pretrain, lr=adversary_lr)
    return FairClassifier(propagation, strategy=penalty, backbone=backbone, **settings)
