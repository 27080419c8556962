from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp.distributed import partition
from fairmp.distributed.partition import Partition
from fairmp.errors import InputError


def grid(side: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A square grid whose nodes are numbered at random, in compressed rows."""
    number = np.random.default_rng(seed).permutation(side * side).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    one = np.concatenate([np.concatenate([a.ravel(), b.ravel()]) for a, b in pairs])
    other = np.concatenate([np.concatenate([b.ravel(), a.ravel()]) for a, b in pairs])
    order = np.lexsort((other, one))
    counts = np.bincount(one, minlength=side * side)
    return np.concatenate([[0], np.cumsum(counts)]), other[order]


def exchanged(row: np.ndarray, col: np.ndarray, partition: Partition) -> int:
    """Rows that parts need of others."""
    part = np.searchsorted(partition.bounds, partition.place, side="right") - 1
    source = np.repeat(np.arange(len(row) - 1), np.diff(row))
    needed = np.stack([part[source], col])[:, part[source] != part[col]]
    return np.unique(needed, axis=1).shape[1]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.data())
def test_ranges_cover_nodes_evenly(weight: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(weight)))
    heavy = np.array(weight) + 1
    bounds = partition.ranges(heavy, parts)
    assert bounds[0] == 0
    assert bounds[-1] == len(weight)
    assert (np.diff(bounds) > 0).all()
    loads = np.add.reduceat(heavy, bounds[:-1])
    if parts <= len(weight) // 4:
        assert loads.max() <= heavy.sum() / parts + 2 * heavy.max() + parts


@pytest.mark.parametrize("find", [partition.locality, partition.metis])
def test_orders_renumber_nodes_and_cut_few_edges(find: object) -> None:
    assert callable(find)
    row, col = grid(24)
    weight = np.diff(row) + 10
    parts = find(row, col, weight, 4)
    assert sorted(parts.place.tolist()) == list(range(576))
    assert parts.bounds[[0, -1]].tolist() == [0, 576]
    loads = np.zeros(4)
    np.add.at(loads, np.searchsorted(parts.bounds, parts.place, side="right") - 1, weight)
    assert loads.max() <= 1.1 * weight.sum() / 4
    assert exchanged(row, col, parts) < exchanged(row, col, partition.given(weight, 4)) / 4


def test_locality_keeps_a_better_given_order() -> None:
    n, rng = 600, np.random.default_rng(0)
    one = np.concatenate([np.repeat(np.arange(n), 3), rng.integers(0, n, 40)])
    other = np.concatenate(
        [(np.arange(n)[:, None] + [1, 2, 3]).ravel() % n, rng.integers(0, n, 40)]
    )
    source, col = np.concatenate([one, other]), np.concatenate([other, one])
    col = col[np.lexsort((col, source))]
    row = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=n))])
    parts = partition.locality(row, col, np.ones(n), 4)
    assert parts.place.tolist() == list(range(n))
    assert partition.cut(row, col, parts) == (np.sort(source) // 150 != col // 150).sum()


def test_graphs_without_edges_or_in_pieces() -> None:
    row, col = np.zeros(6, dtype=np.int64), np.zeros(0, dtype=np.int32)
    assert sorted(partition.locality(row, col, np.ones(5), 2).place.tolist()) == [0, 1, 2, 3, 4]


def test_too_many_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for parts in (0, 6):
        with pytest.raises(InputError, match=f"parts: {parts} for 5 nodes"):
            partition.ranges(np.ones(5), parts)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    row, col = grid(3)
    with pytest.raises(InputError, match="needs the package pymetis"):
        partition.metis(row, col, np.ones(9), 2)
