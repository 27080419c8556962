"""Default settings of training, one set for the library and all commands, and the paper's."""

from __future__ import annotations

from typing import Any, Literal

K, LAMBDA_F = 5, 1.0  # propagation steps, and the fairness strength of the other solvers
LAMBDA_S: Literal["learned"] = "learned"  # smoothing, starting at the 1.0 of the layers
H, PRETRAIN = 5.0, 70  # strength of a penalty, and epochs before an adversary is active
HIDDEN, NUM_LAYERS, DROPOUT = 64, 2, 0.0
EPOCHS, PATIENCE, EVAL_EVERY = 300, 50, 1
LR, WEIGHT_DECAY = 0.01, 5e-4
FOLDS = 5  # of cross-fitting
TIME_BUDGET = 300.0  # seconds for the choice of a backbone

PAPER: dict[str, Any] = {
    "backbone": "mlp",
    "lambda_s": 3.0,
    "hidden": 64,
    "num_layers": 2,
    "dropout": 0.0,
    "epochs": 300,
    "lr": 1e-3,
    "weight_decay": 1e-5,
    "patience": None,
    "eval_every": 1,
    "calibrate": False,
}
