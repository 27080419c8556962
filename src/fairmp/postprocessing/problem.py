"""What is to be corrected, and what its gaps are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fairmp.metrics.counts import boolean_mask, weights
from fairmp.postprocessing.predictions import Attribute, Scores, read_labels

On = Literal["decisions", "probabilities"]
ON: tuple[On, ...] = ("decisions", "probabilities")


@dataclass(frozen=True)
class Problem:
    """Scores, and what their gaps are measured on."""

    scores: Scores
    logits: Tensor  # to correct (n×C)
    attributes: tuple[Attribute, ...]
    population: Tensor  # n, bool
    y: Tensor  # labels, −1 unknown (n)
    classes: tuple[str, ...]
    weight: Tensor  # of each node (n, float64)

    @cached_property
    def is_weighted(self) -> bool:
        """Whether weights are given that are not all 1."""
        return bool((self.weight != 1).any())


def read_problem(
    scores: Scores,
    attributes: Sequence[Attribute],
    y: Any,
    *,
    class_names: Sequence[str] | None,
    sample_weight: Any,
    population: Any = None,
) -> Problem:
    """Check the labels, weights and population, and bring all to one device."""
    n, device = len(scores.logits), scores.logits.device
    classes, labels = read_labels(y, scores, class_names)
    return Problem(
        scores=scores,
        logits=scores.logits,
        attributes=tuple(replace(one, sens=one.sens.to(device)) for one in attributes),
        population=torch.from_numpy(boolean_mask(population, n, "population")).to(device),
        y=labels,
        classes=classes,
        weight=torch.from_numpy(weights(sample_weight, n)).to(device),
    )
