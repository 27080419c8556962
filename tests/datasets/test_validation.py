from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from fairmp.datasets import social_network
from fairmp.datasets.validation import check
from fairmp.errors import InputError

N = 60


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(N, average_degree=4, features=3)


def changed(data: Data, **attributes: Any) -> Data:
    graph = data.clone()
    for name, value in attributes.items():
        graph[name] = value
    return graph


def test_check_accepts_a_graph(data: Data) -> None:
    check(data, masks=True)
    check(Data(data.x, data.edge_index), labels=False)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("x", torch.full((N, 3), math.nan)),
        ("x", torch.ones(N, 3, dtype=torch.long)),
        ("x", torch.ones(N, 0)),
        ("x", None),
        ("y", torch.zeros(N - 1, dtype=torch.long)),
        ("y", torch.full((N,), -1)),
        ("y", torch.full((N,), -2)),
        ("y", torch.ones(N, dtype=torch.long)),
        ("y", torch.ones(N)),
        ("sens", torch.zeros(N, dtype=torch.long)),
        ("sens", torch.full((N,), -1)),
        ("sens", torch.arange(N) % 2 * 2),
        ("sens", None),
        ("sample_weight", torch.zeros(N)),
        ("sample_weight", torch.full((N,), -1.0)),
        ("sample_weight", torch.ones(N - 1)),
        ("train_mask", torch.zeros(N, dtype=torch.bool)),
        ("train_mask", torch.zeros(N)),
        ("val_mask", torch.ones(N, dtype=torch.bool)),
    ],
)
def test_check_names_the_wrong_attribute(data: Data, attribute: str, value: Any) -> None:
    with pytest.raises(InputError) as error:
        check(changed(data, **{attribute: value}), masks=True)
    assert error.value.argument == f"data.{attribute}"
    assert "\n" not in str(error.value)


def test_check_names_the_first_value_that_is_not_finite(data: Data) -> None:
    x = data.x.clone()
    x[3, 1] = math.inf
    with pytest.raises(InputError, match="node 3, column 1 'f1'"):
        check(changed(data, x=x))


def test_check_refuses_masks_of_unlabelled_nodes(data: Data) -> None:
    y = torch.where(data.val_mask, -1, data.y)
    with pytest.raises(InputError) as error:
        check(changed(data, y=y), masks=True)
    assert error.value.argument == "data.val_mask"


def test_check_refuses_what_is_no_graph(data: Data) -> None:
    with pytest.raises(InputError) as error:
        check([data])  # type: ignore[arg-type]
    assert error.value.argument == "data"
