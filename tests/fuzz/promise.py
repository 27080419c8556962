"""Check the bound on gaps and the gradients of the projection on random problems.

python -m tests.fuzz.promise --problems 5000 --gradients 2000 --out benchmarks/results/promise.json

Takes about half an hour on one core; --jobs shares it among processes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.provenance import code_hash
from fairmp import FMP

TOLERANCE = 1e-4  # of a gap
GRADIENTS = 0.2  # share of cases whose gradient is checked
SCALES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0)


@dataclass(frozen=True)
class RandomProblem:
    """Logits, a graph, groups (hard or soft, some unknown) and a population."""

    x: Tensor
    edge_index: Tensor
    sens: Tensor
    population: Tensor
    scale: float

    @property
    def kind(self) -> str:
        """What distinguishes the problem numerically."""
        return f"{'soft' if self.sens.dim() == 2 else 'hard'} {self.x.dtype} scale {self.scale:g}"


def random_problem(seed: int) -> RandomProblem:
    rng = np.random.default_rng(seed)
    groups, classes = rng.integers(2, 7, 2)
    n = int(rng.integers(3 * groups, 120))
    scale = float(rng.choice(SCALES))
    codes = rng.integers(-1, groups, n)
    codes[:groups] = np.arange(groups)
    logits = scale * (
        rng.standard_normal((n, classes)) + rng.standard_normal((groups, classes))[codes]
    )
    inside = (rng.random(n) < 0.7) | (np.arange(n) < groups)
    sens = torch.from_numpy(codes)
    if rng.random() < 0.4:
        shares = rng.dirichlet(np.full(groups, 0.3), n) * 0.5
        shares[np.arange(n), np.maximum(codes, 0)] += 0.5
        sens = torch.from_numpy(np.where(codes[:, None] < 0, 0.0, shares))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    edges = torch.from_numpy(rng.integers(0, n, (2, n)))
    edges = torch.cat([edges, edges.flip(0)], 1)
    return RandomProblem(
        torch.from_numpy(logits).to(dtype), edges, sens, torch.from_numpy(inside), scale
    )


def largest_distance(f: Tensor, problem: RandomProblem, temperature: float) -> float:
    """Distance between the two groups farthest apart, class by class, in numpy."""
    z = f.detach().numpy().astype(np.float64) / temperature
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    sens = problem.sens.numpy()
    weights = sens if sens.ndim == 2 else (sens[:, None] == np.arange(sens.max() + 1)) * 1.0
    weights = weights[problem.population.numpy()].astype(np.float64)
    means = (weights.T @ p[problem.population.numpy()]) / weights.sum(0)[:, None]
    return float((means.max(0) - means.min(0)).max())


def excess(seed: int) -> tuple[float, str, bool]:
    """By how much a random problem misses its target, its kind, and whether a warning says so."""
    problem, rng = random_problem(seed), np.random.default_rng([seed, 1])
    target = float(rng.choice([0.0, 0.001, 0.02, 0.1, 0.3]))
    temperature = float(rng.choice([1.0, 1.0, 0.1]))
    layer = FMP(int(rng.integers(1, 4)), float(rng.choice([0.0, 1.0, 4.0])), target=target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = layer(
            problem.x, problem.edge_index, problem.sens, problem.population, temperature=temperature
        )
    return largest_distance(f, problem, temperature) - target, problem.kind, bool(caught)


def gradient_is_finite(seed: int) -> tuple[bool, str]:
    """Whether the gradient of a random loss is finite, and the kind of problem."""
    problem, rng = random_problem(seed), np.random.default_rng([seed, 2])
    temperature = float(rng.choice([1.0, 0.1]))
    target = float(rng.choice([0.0, 0.02, 0.1]))
    x = problem.x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = FMP(2, 1.0, target=target, temperature=temperature)(
            x, problem.edge_index, problem.sens, problem.population
        )
        weight = torch.from_numpy(rng.standard_normal(f.shape)).to(f.dtype)
        (f.log_softmax(1) * weight).sum().backward()
    assert x.grad is not None
    return bool(x.grad.isfinite().all()), problem.kind


def case(rng: np.random.Generator, _: Path) -> str:
    """A random problem meets its target, or warns, and its gradient is finite."""
    seed = int(rng.integers(2**31))
    over, kind, told = excess(seed)
    assert over <= TOLERANCE or told, (seed, over, kind)
    if rng.random() < GRADIENTS:
        finite, kind = gradient_is_finite(seed)
        assert finite, (seed, kind)
    return "met" if over <= TOLERANCE else "missed, warned"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--gradients", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with get_context("spawn").Pool(options.jobs, torch.set_num_threads, (1,)) as pool:
        problems = pool.map(excess, range(options.problems), chunksize=50)
        gradients = pool.map(gradient_is_finite, range(options.gradients), chunksize=50)
    worst = max((over for over, _, _ in problems), default=0.0)
    warned = sum(told for _, _, told in problems)
    missed = [
        {"seed": seed, "excess": over, "kind": kind, "warned": told}
        for seed, (over, kind, told) in enumerate(problems)
        if not over <= TOLERANCE
    ]
    infinite = [
        {"seed": seed, "kind": kind} for seed, (finite, kind) in enumerate(gradients) if not finite
    ]
    result = {
        "command": shlex.join(["python", "-m", "tests.fuzz.promise", *sys.argv[1:]]),
        "code": code_hash("layer"),
        "problems": options.problems,
        "largest_excess": worst,
        "missed": missed,
        "warnings": warned,
        "gradients": options.gradients,
        "not_finite": infinite,
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
