from __future__ import annotations

import pytest
import torch

from experiments.random_graphs import Size, random_problem, regular_graph
from fairmp.errors import InputError


def test_random_problem_has_its_size_both_groups_and_both_classes() -> None:
    data = random_problem(Size(4, 10, 3), density=0.5)
    assert data.x.shape == (4, 3)
    assert data.edge_index.shape == (2, 10)
    pairs = set(map(tuple, data.edge_index.T.tolist()))
    assert pairs == {(b, a) for a, b in pairs}
    assert data.sens.unique().tolist() == data.y.unique().tolist() == [0, 1]
    with pytest.raises(InputError, match="nodes"):
        random_problem(Size(3, 10, 3))


def test_regular_graph_is_symmetric_and_of_one_degree() -> None:
    dense = regular_graph(50, 6) @ torch.eye(50)
    torch.testing.assert_close(dense, dense.T)
    torch.testing.assert_close(dense.sum(1), torch.ones(50))
