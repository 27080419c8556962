"""Numeric problems: logits, groups and columns of any size, against what is promised of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fairmp import FMP, debias
from fairmp.datasets import from_tables
from fairmp.nn.fmp import SOLVERS

EXTREMES = [0.0, 1.0, -1.0, 1e-300, 1e30, -1e30, 1e200, -1e200, 1e308, np.inf, -np.inf, np.nan]


def problem(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (n×C) with ties and outliers, and groups with unknown ones."""
    groups, classes = rng.integers(2, 5, 2)
    n = int(rng.integers(2 * groups, 40))
    codes = rng.integers(-1, groups, n)
    codes[: 2 * groups] = np.tile(np.arange(groups), 2)
    logits = rng.normal(size=(n, classes)) + rng.normal(size=(groups, classes))[codes]
    logits *= 10.0 ** rng.integers(-8, 7)
    if rng.random() < 0.3:
        logits = logits.round(int(rng.integers(0, 3)))
    if rng.random() < 0.2:
        logits[rng.integers(0, n)] *= 10.0 ** rng.integers(0, 12)
    if rng.random() < 0.1:
        logits[:] = logits[0]
    kind = torch.float32 if rng.random() < 0.5 else torch.float64
    return torch.from_numpy(logits).to(kind), torch.from_numpy(codes)


def layer(rng: np.random.Generator, place: Path) -> str:
    """A layer's output and gradient are finite, and its gap within the target or warned about."""
    x, sens = problem(rng)
    n, target = len(x), float(rng.choice([0.0, 0.01, 0.2, 1.0]))
    solver = str(rng.choice(SOLVERS, p=[0.7, 0.1, 0.1, 0.1]))
    options = {"target": target} if solver == "projection" else {}
    steps, strength = int(rng.integers(1, 4)), float(rng.choice([0.0, 0.5, 3.0, 100.0]))
    fmp = FMP(steps, strength, solver=solver, **options)
    edges = torch.from_numpy(rng.integers(0, n, (2, int(rng.integers(1, 3 * n)))))
    x.requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = fmp(x, torch.cat([edges, edges.flip(0)], 1), sens)
        f.softmax(1).square().sum().backward()
    assert torch.isfinite(f).all()
    assert torch.isfinite(x.grad).all()
    if solver == "projection":
        known_mask = sens >= 0
        p = f.detach().double().softmax(1)[known_mask]
        means = torch.stack([p[sens[known_mask] == g].mean(0) for g in sens[known_mask].unique()])
        gap = float((means.amax(0) - means.amin(0)).max())
        assert gap <= target + 1e-3 or caught, (gap, target)
    return solver


def post(rng: np.random.Generator, place: Path) -> str:
    """Corrected decisions are within the target and one node, or a warning says otherwise."""
    x, sens = problem(rng)
    target = float(rng.choice([0.0, 0.02, 0.2]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fair = debias(x.numpy(), sens.numpy(), target=target, kind="logits")
    assert np.isfinite(fair).all()
    known_mask = (sens >= 0).numpy()
    assert np.allclose(fair[~known_mask], x.numpy()[~known_mask], rtol=1e-5, atol=1e-6)
    groups = sens.numpy()[known_mask]
    choice = fair[known_mask].argmax(1)
    rates = [np.eye(x.size(1))[choice[groups == g]].mean(0) for g in np.unique(groups)]
    gap = float((np.max(rates, 0) - np.min(rates, 0)).max())
    smallest = min((groups == g).sum() for g in np.unique(groups))
    assert gap <= target + 1 / smallest + 1e-9 or caught, (gap, target, smallest)
    return "corrected"


def columns(rng: np.random.Generator, place: Path) -> str:
    """Columns of extreme numbers become finite features."""
    n = int(rng.integers(8, 30))
    frame = pd.DataFrame({"y": np.arange(n) % 2, "s": np.arange(n) // 2 % 2})
    for k in range(rng.integers(1, 4)):
        values = rng.normal(size=n) * 10.0 ** rng.integers(-320, 309)
        where = rng.random(n) < rng.choice([0.0, 0.1, 0.9])
        values[where] = rng.choice(EXTREMES, where.sum())
        frame[f"c{k}"] = values.astype(object) if rng.random() < 0.2 else values
    edges = pd.DataFrame({"a": [0, 1, 2], "b": [1, 2, 3]})
    scale = str(rng.choice(["standard", "minmax"]))
    with np.errstate(over="raise", invalid="raise"):
        data = from_tables(frame, edges, id=None, label="y", sensitive="s", scale=scale)
    assert torch.isfinite(data.x).all()
    new = frame.drop(columns="y").sample(n, random_state=0).reset_index(drop=True)
    for name in new.columns[1:]:
        new[name] = new[name].astype(float) * 10.0 ** rng.integers(-30, 30)
    assert torch.isfinite(from_tables(new, edges, encoding=data.encoding).x).all()
    return "encoded"


def warm_up() -> None:
    """Compile the kernels, which takes longer than a case may."""
    for kind in (torch.float32, torch.float64):
        for classes in (2, 3):
            for groups in (2, 3):
                x = torch.arange(12.0 * classes, dtype=kind).reshape(12, classes).sin()
                sens = torch.arange(12) % groups
                for solver in SOLVERS:
                    y = x.clone().requires_grad_()
                    f = FMP(2, 1.0, solver=solver)(y, torch.tensor([[0, 1], [1, 0]]), sens)
                    f.sum().backward()
                debias(x.numpy(), sens.numpy(), kind="logits")
    for seed in range(8):  # unknown groups, ties, targets
        for case in (layer, post):
            case(np.random.default_rng(seed), Path())


def any_of_them(rng: np.random.Generator, place: Path) -> str:
    return [layer, post, columns][rng.choice(3, p=[0.4, 0.3, 0.3])](rng, place)
