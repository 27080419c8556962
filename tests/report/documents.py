"""A document with every part that an evaluation gives."""

from __future__ import annotations

import numpy as np

from fairmp.metrics import evaluate
from fairmp.report import Document
from fairmp.report.evaluations import add_decisions, from_evaluations, point

N = 400


def decided(classes: int = 2, groups: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    sens = rng.integers(-1, groups, N)
    y = rng.integers(-1, classes, N)
    before = rng.normal(size=(N, classes))
    before[:, 0] -= sens
    return sens, y, before, rng.normal(size=(N, classes))


def document_for(classes: int = 2, groups: int = 2) -> Document:
    sens, y, before, after = decided(classes, groups)
    names = {
        "class_names": [f"class {c}" for c in range(classes)],
        "group_names": [f"group <{g}>" for g in range(groups)],
    }
    first, second = (
        evaluate(y, s, sensitive_features=sens, bootstrap=50, **names) for s in (before, after)
    )
    document = from_evaluations(second, first, target=0.02)
    add_decisions(document, names["group_names"], sens, y, after.argmax(1), before.argmax(1))
    document |= {
        "title": "A <graph>",
        "points": [point("mine", "chosen", second), point("before", "before", first)],
        "curve": [{"gap": 0.0, "accuracy": 0.4}, {"gap": 0.2, "accuracy": 0.5}],
        "assumptions": ["Groups are known."],
        "command": "fairmp train --out x",
        "setting": {"epochs": 3},
        "versions": {"fairmp": "0"},
    }
    return document
