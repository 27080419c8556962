"""The estimate of groups: right, honest, and blind to what it must not see."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmp.datasets import social_network
from fairmp.errors import InputError
from fairmp.graph import normalise
from fairmp.postprocessing.group_estimator import estimate
from fairmp.postprocessing.predictions import Attribute, attributes


def attribute(sens: torch.Tensor | list[int]) -> Attribute:
    return attributes(sens, len(sens))[0]


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_estimate_with_graph_is_more_accurate_and_calibrated(share: float) -> None:
    data = social_network(n=4000, average_degree=10, groups=3)
    known_mask = torch.rand(4000, generator=torch.Generator().manual_seed(0)) < share
    sens = torch.where(known_mask, data.sens, -1)
    graph = normalise(data.edge_index, 4000)
    estimated = estimate(attribute(sens), data.x, graph)
    right = (estimated.hard == data.sens)[~known_mask].double().mean()
    assert float(right) == pytest.approx(estimated.accuracy, abs=0.1)
    alone = estimate(attribute(sens), data.x)
    assert estimated.accuracy > alone.accuracy + 0.1
    # Honest: as many are in each group as the probabilities say.
    estimated_shares = estimated.sens[~known_mask].mean(0)
    true_shares = torch.bincount(data.sens[~known_mask], minlength=3) / (~known_mask).sum()
    assert float((estimated_shares - true_shares).abs().max()) < 0.06


def test_known_groups_stay_and_sum_to_one() -> None:
    data = social_network(n=500, average_degree=8)
    sens = torch.where(torch.arange(500) % 3 == 0, data.sens, -1)
    estimated = estimate(attribute(sens), data.x, normalise(data.edge_index, 500))
    known = sens >= 0
    assert torch.equal(estimated.sens[known].argmax(1), sens[known])
    assert float(estimated.sens[known].max(1).values.min()) == 1.0
    np.testing.assert_allclose(estimated.sens.sum(1), 1)


def test_estimate_of_random_groups_stays_at_baseline() -> None:
    data = social_network(n=2000, average_degree=10)
    generator = torch.Generator().manual_seed(1)
    random = (torch.rand(2000, generator=generator) < 0.3).long()
    sens = torch.where(torch.arange(2000) % 2 == 0, random, -1)
    estimated = estimate(attribute(sens), data.x, normalise(data.edge_index, 2000))
    # A node's own group must not come back to it through its neighbours.
    assert estimated.accuracy < estimated.baseline + 0.03
    assert float(estimated.sens[sens < 0].std()) < 0.35


def test_an_attribute_is_estimated_only_where_it_is_unknown() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    names = np.where(x[:, 0] > 0, "right", "left").astype(object)
    (whole,) = attributes(names, 60)
    assert estimate(whole, x) is whole
    names[::4] = None
    (part,) = attributes(names, 60)
    result = estimate(part, x)
    assert result.estimated.tolist() == [k % 4 == 0 for k in range(60)]
    assert result.groups == ("left", "right")
    assert result.accuracy > result.baseline
    truth = (x[:, 0] > 0).long()
    assert float((result.hard == truth).double().mean()) > 0.9


@pytest.mark.parametrize(
    ("sens", "features", "words"),
    [
        ([0, 1, 0, -1, -1], np.ones(5), ["group '1' of 'sens' is known for 1 node"]),
        ([-1, -1, -1, -1, -1], np.ones(5), ["0 nodes"]),
        ([0, 0, 0, -1, -1], np.ones(5), ["1 group of"]),
        ([0, 1, 0, 1, -1], np.ones(4), ["features", "5 nodes"]),
        ([0, 1, 0, 1, -1], np.array([1, 2, 3, 4, np.nan]), ["row 4", "nan or infinite"]),
        ([0, 1, 0, 1, -1], [["a"]] * 5, ["not numbers"]),
    ],
)
def test_wrong_input_is_named(sens: list[int], features: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        estimate(attribute(sens), features)
    assert all(word in str(error.value) for word in words), str(error.value)
