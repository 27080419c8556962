"""A correction for single nodes is applied where it helps held-out nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmp.training.correction import correction_helps


def shift_of(logits: torch.Tensor, sens: torch.Tensor) -> torch.Tensor:
    """The shift of each group that closes the gap of decisions of these nodes."""
    z = torch.stack([torch.zeros(len(logits)), logits[:, 1] - logits[:, 0]], 1).double()
    rows = []
    rate = (z[:, 1] > 0).double().mean()
    for g in range(int(sens.max()) + 1):
        margins = z[sens == g, 1].sort(descending=True).values
        cut = margins[min(int(rate * len(margins)), len(margins) - 1)]
        rows.append([0.0, float(cut)])
    return torch.tensor(rows)


def people(n: int, groups: int, bias: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    sens = np.arange(n) % groups
    margin = rng.normal(size=n) + bias * (sens == 0)
    logits = torch.from_numpy(np.stack([np.zeros(n), margin], 1))
    return logits, torch.from_numpy(sens)


@pytest.mark.parametrize("groups", [2, 5])
def test_correction_of_a_biased_model_helps(groups: int) -> None:
    assert all(correction_helps(*people(600, groups, 1.0, seed), shift_of) for seed in range(5))


def test_correction_of_noise_does_not_help() -> None:
    helped = [correction_helps(*people(60, 5, 0.0, seed), shift_of) for seed in range(20)]
    assert sum(helped) <= 8


def test_same_seed_same_answer_and_no_change_of_the_inputs() -> None:
    logits, sens = people(80, 2, 0.1, 3)
    copies = logits.clone(), sens.clone()
    answers = {correction_helps(logits, sens, shift_of, seed=4) for _ in range(3)}
    assert len(answers) == 1
    assert torch.equal(logits, copies[0])
    assert torch.equal(sens, copies[1])


def test_what_cannot_be_judged_is_applied() -> None:
    logits, sens = people(20, 2, 0.0, 0)
    sens[sens == 1] = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    assert correction_helps(logits, sens, shift_of)  # three of a group
    soft = torch.full((20, 2), 0.5)
    assert correction_helps(logits, soft, shift_of)
