from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from fairmp.datasets import from_tables, social_network
from fairmp.datasets.splits import Split, check, check_groups, largest_remainder, split, with_split
from fairmp.errors import InputError


def nodes(n: int, classes: int, groups: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.integers(-1, classes, n)),
        torch.from_numpy(rng.integers(-1, groups, n)),
    )


@settings(deadline=None, max_examples=80)
@given(
    n=st.integers(12, 400),
    classes=st.integers(1, 5),
    groups=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    fractions=st.sampled_from([(0.5, 0.25, 0.25), (0.6, 0.2, 0.2), (0.34, 0.33, 0.33), (0.3,) * 3]),
)
def test_split_is_disjoint_stratified_and_of_the_right_size(n, classes, groups, seed, fractions):
    y, sens = nodes(n, classes, groups, seed)
    known = (y >= 0) & (sens >= 0)
    assume(int(known.sum()) >= 5)
    masks = split((y, sens), seed=seed, fractions=fractions)
    assert torch.equal(masks.train & ~known, (y >= 0) & (sens < 0))
    result = masks._replace(train=masks.train & known)
    total = torch.stack(list(result)).sum(0)
    assert total.max() <= 1
    assert not (total.bool() & ~known).any()
    for mask, fraction in zip(result, fractions, strict=True):
        assert abs(int(mask.sum()) - fraction * int(known.sum())) < 1
    if sum(fractions) == 1:
        assert torch.equal(total.bool(), known)

    if int(result.train.sum()) >= classes + groups:
        assert set(y[known].tolist()) == set(y[result.train].tolist())
        assert set(sens[known].tolist()) == set(sens[result.train].tolist())
    for c in range(classes):
        for g in range(groups):
            stratum = known & (y == c) & (sens == g)
            for mask, fraction in zip(result, fractions, strict=True):
                assert abs(int((mask & stratum).sum()) - fraction * int(stratum.sum())) <= 3


def test_split_spreads_strata_of_one_node():
    y = torch.arange(40) % 2
    sens = torch.arange(40) // 2
    sizes = [int(mask.sum()) for mask in split((y, sens), seed=0)]
    assert sizes == [20, 10, 10]


@pytest.mark.parametrize("seed", range(20))
def test_split_training_has_rare_classes_and_groups(seed):
    y = torch.tensor([0, 1] * 20 + [2, 0])
    sens = torch.tensor([0, 0, 1, 1] * 10 + [0, 2])
    train, val, test = split((y, sens), seed=seed, fractions=(0.2, 0.4, 0.4))
    assert set(y[train].tolist()) == {0, 1, 2}
    assert set(sens[train].tolist()) == {0, 1, 2}
    assert [int(m.sum()) for m in (train, val, test)] == [8, 17, 17]


def test_split_leftover_nodes_vary_with_the_seed():
    y, sens = torch.zeros(9, dtype=torch.long), torch.zeros(9, dtype=torch.long)
    chosen = torch.stack([split((y, sens), seed=k).test.float() for k in range(300)]).mean(0)
    assert chosen.min() > 0.1
    assert chosen.max() < 0.4


def test_same_seed_same_split():
    pair = nodes(300, 3, 2)
    first, again, other = (split(pair, seed=k) for k in (1, 1, 2))
    assert isinstance(first, Split)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.train, other.train)


def test_split_takes_arrays_tensors_and_graphs():
    y, sens = nodes(100, 2, 2)
    a = split((y, sens), seed=4).train
    assert torch.equal(a, split((y.numpy(), sens.numpy()), seed=4).train)
    assert torch.equal(a, split(Data(y=y, sens=sens), seed=4).train)


def test_recorded_splits_do_not_change():
    y, sens = nodes(200, 3, 2)
    digest = hashlib.sha256()
    for seed in range(5):
        masks = torch.stack(list(split((y, sens), seed=seed))) & (sens >= 0)
        digest.update(masks.numpy().tobytes())
    assert digest.hexdigest()[:16] == "e6c4e9695c852d1b"


def test_with_split_does_not_change_its_input():
    y, sens = nodes(60, 2, 2)
    data = Data(y=y, sens=sens, name="mine")
    before = data.keys()
    result = with_split(data, seed=2, fractions=(0.4, 0.3, 0.3))
    assert data.keys() == before
    assert result.name == "mine"
    assert result.y is data.y
    expected = split(data, seed=2, fractions=(0.4, 0.3, 0.3))
    assert torch.equal(result.train_mask, expected.train)
    assert torch.equal(result.val_mask, expected.val)
    assert torch.equal(result.test_mask, expected.test)


@pytest.mark.parametrize(
    "fractions",
    [(0.5, 0.5), (0.5, 0.3, 0.3), (0.5, 0.5, 0.0), (1.2, -0.1, -0.1), (float("nan"),) * 3],
)
def test_split_refuses_wrong_fractions(fractions):
    with pytest.raises(InputError, match=r"^fractions: "):
        split(nodes(50, 2, 2), fractions=fractions)


def test_split_of_probable_groups_is_that_of_the_most_likely() -> None:
    y, sens = nodes(100, 2, 3)
    sens = sens.clamp_min(0)
    probable = 0.8 * torch.nn.functional.one_hot(sens, 3).double() + 0.2 / 3
    for mask, expected in zip(split((y, probable)), split((y, sens)), strict=True):
        assert torch.equal(mask, expected)


def test_split_refuses_wrong_nodes():
    unknown = torch.full((5,), -1)
    with pytest.raises(InputError, match="none of the 5 nodes"):
        split((unknown, torch.zeros(5, dtype=torch.long)))
    with pytest.raises(InputError, match="cannot fill three parts"):
        split((torch.tensor([0, 1]), torch.tensor([0, 1])))
    with pytest.raises(InputError, match=r"^data\.sens: missing"):
        split(Data(y=torch.zeros(5, dtype=torch.long)))
    with pytest.raises(InputError, match=r"^sens: shape"):
        split((torch.zeros(5), torch.zeros(4)))
    with pytest.raises(InputError, match=r"^seed: -1"):
        split(nodes(50, 2, 2), seed=-1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.integers(0, 1000))
def test_largest_remainder_keeps_the_sum_and_stays_within_one(weights, total):
    quotas = np.array(weights)
    assume(quotas.sum() > 0)
    quotas = quotas / quotas.sum() * total
    counts = largest_remainder(quotas, total)
    assert counts.sum() == total
    assert (np.abs(counts - quotas) < 1 + 1e-6).all()


def test_check_groups_names_all_groups_that_a_part_lacks():
    people = pd.DataFrame({"y": [0, 1] * 20, "s": ["a", "b"] * 18 + ["a", "b", "tiny", "rare"]})
    edges = pd.DataFrame({"from": [0, 1], "to": [1, 2]})
    data = from_tables(people, edges, id=None, label="y", sensitive="s")
    with pytest.raises(InputError, match="'rare' 1, 'tiny' 1") as error:
        check_groups(data, [0])
    assert error.value.argument == "sensitive"
    check_groups(from_tables(people[:-2], edges, id=None, label="y", sensitive="s"), range(3))
    check_groups(Data(), [0])  # a benchmark graph


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


def test_labelled_nodes_of_unknown_group_are_training_nodes():
    y = torch.tensor([0, 1] * 20 + [0, 1, -1])
    sens = torch.tensor([0, 0, 1, 1] * 10 + [-1, -1, -1])
    train, val, test = split((y, sens), seed=3)
    known = split((y[:40], sens[:40]), seed=3)
    assert train[40:].tolist() == [True, True, False]
    for mask, expected in zip((train, val, test), known, strict=True):
        assert torch.equal(mask[:40], expected)
    assert not bool((val | test)[40:].any())
