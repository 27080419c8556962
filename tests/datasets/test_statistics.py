from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch_geometric.utils import homophily as pyg_homophily

from fairmp.datasets.statistics import homophily
from tests.graphs import problems


@given(problems())
def test_homophily_is_pygs_among_known_nodes(problem) -> None:
    _, edges, sens = problem
    known = edges[:, (sens[edges] >= 0).all(0)]
    if known.size(1):
        assert homophily(edges, sens) == pytest.approx(pyg_homophily(known, sens), abs=1e-6)
    else:
        assert homophily(edges, sens) is None


def test_unknown_is_a_class_unless_left_out() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    codes = torch.tensor([0, 1, -1, -1])
    assert homophily(edges, codes) == 0.0
    assert homophily(edges, codes, known_only=False) == pytest.approx(1 / 3)
