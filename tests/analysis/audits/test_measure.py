"""The audit, against other libraries, brute force, and graphs whose answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch_geometric.data import Data

from fairmp import InputError, audit
from fairmp.analysis.audits.measure import mean_gap
from fairmp.datasets import social_network
from tests.graphs import problems


@pytest.fixture(scope="module")
def network() -> Data:
    return social_network(n=2000, average_degree=12)


@given(problems())
def test_gap_is_the_largest_distance_between_means(problem):
    x, _, sens = problem
    means = [x[sens == g].mean(0) for g in range(int(sens.max()) + 1)]
    expected = max(float((a - b).norm()) for a in means for b in means)
    assert mean_gap(x.numpy(), sens.numpy()).gap == pytest.approx(expected, abs=1e-9)


def test_chance_is_the_expected_gap_of_random_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) * [1, 2, 3, 4]
    sens = np.repeat([0, 1], [40, 20])
    square = [mean_gap(x, sens[rng.permutation(60)]).gap ** 2 for _ in range(1500)]
    # Without replacement the mean is larger by 60/59.
    assert np.sqrt(np.mean(square) * 59 / 60) == pytest.approx(mean_gap(x, sens).chance, rel=0.03)


def test_noise_columns_do_not_predict_the_group():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(120, 200, generator=generator),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        sens=torch.arange(120) % 2,
    )
    result = audit(data)
    assert abs(result.row[0].predictability) < result.noise
    # Nobody has a neighbour: nothing moves.
    assert result.row[5].predictability == result.row[0].predictability
    assert result.row[0].gap == pytest.approx(result.row[0].chance, rel=0.15)
    assert result.homophily.raw is None
    assert "No edges to compare the groups by" in str(result)


def test_renaming_groups_does_not_change_the_gap(network):
    swapped = network.clone()
    swapped.sens = 1 - network.sens
    one, other = audit(network, steps=2), audit(swapped, steps=2)
    for a, b in zip(one.row, other.row, strict=True):
        assert a.gap == pytest.approx(b.gap)
        assert a.predictability == pytest.approx(b.predictability, abs=one.noise)
    assert one.homophily == other.homophily


def test_same_seed_same_audit_and_the_graph_is_not_changed(network):
    before = network.clone()
    assert audit(network) == audit(network)
    for key in ("x", "edge_index", "y", "sens"):
        assert torch.equal(before[key], network[key])


def test_constant_and_repeated_columns_do_no_harm(network):
    wide = network.clone()
    wide.x = torch.cat([network.x, network.x[:, :3], torch.full((2000, 2), 7.0)], 1)
    result, plain = audit(wide, steps=1), audit(network, steps=1)
    assert result.constant_features == 2
    assert "2 of 37 feature columns are constant" in str(result)
    assert result.row[1].predictability == pytest.approx(plain.row[1].predictability, abs=0.03)


def test_constant_columns_alone_have_no_gap(network):
    flat = network.clone()
    flat.x = torch.ones(2000, 3)
    result = audit(flat, steps=2)
    assert [reading.gap for reading in result.row] == [0.0, 0.0, 0.0]
    assert result.forecast.after is None
    json.dumps(result.to_dict(), allow_nan=False)
    str(result)


def test_four_groups_some_unknown_without_labels():
    generator = torch.Generator().manual_seed(0)
    sens = torch.randint(-1, 4, (800,), generator=generator)
    sens[sens == 3] = torch.where(torch.arange(int((sens == 3).sum())) < 6, 3, 0)
    data = Data(
        x=torch.randn(800, 5, generator=generator)
        + sens[:, None] * torch.tensor([1.0, 0, 0, 0, 0]),
        edge_index=torch.randint(0, 800, (2, 4000), generator=generator),
        sens=sens,
    )
    result = audit(data, steps=2)
    assert [row.name for row in result.groups] == ["0", "1", "2", "3", "unknown"]
    assert result.groups[3].nodes == 6
    assert result.groups[-1].share is None
    assert result.c is None
    assert result.forecast.printed is None
    assert result.forecast.before is not None
    assert result.row[0].separation > 1.5
    outside = sens[data.edge_index].min(0).values < 0
    assert result.unknown_edges == pytest.approx(float(outside.double().mean()), abs=0.01)
    assert result.labelled == 0
    shown = str(result)
    for words in (
        "fewer than 10 nodes are excluded",
        "stated for two groups",
        "the two most distinct groups",
        "made undirected",
        "% of the nodes is unknown",
    ):
        assert words in shown.replace("\n  ", " ")
    json.dumps(result.to_dict(), allow_nan=False)


@settings(max_examples=40)
@given(problems())
def test_any_small_graph_can_be_audited(problem):
    x, edges, sens = problem
    result = audit(Data(x=x.float(), edge_index=edges, sens=sens), steps=2)
    json.dumps(result.to_dict(), allow_nan=False)
    assert str(result).startswith("Audit of graph")
    assert sum(row.nodes for row in result.groups) == len(sens)
    assert result.row[0] == result.symmetric[0]


@pytest.mark.parametrize(("option", "value"), [("steps", 0), ("seed", -1)])
def test_wrong_argument_is_refused(network, option, value):
    with pytest.raises(InputError, match=f"{option}: {value}"):
        audit(network, **{option: value})


def test_real_graphs_have_the_published_statistics(data_folder):
    from fairmp.datasets import load

    nba = audit(load("nba", data_folder))
    shown = str(nba)
    for words in ("10,621 undirected, 21,242 directed", "72.37 %", "39.22 %", "53.63 %"):
        assert words in shown
    # The features hardly reveal the group; two steps over the edges do, even for random features.
    assert nba.row[0].predictability < 0.2
    assert nba.row[2].predictability > 0.5
    assert nba.random_baseline[2] > 0.4
    credit = audit(load("credit", data_folder), steps=1)
    assert credit.row[1].predictability < credit.row[0].predictability - 0.1
    assert credit.forecast.after < credit.forecast.before - 0.1
    assert credit.homophily.raw > 0.85
    assert credit.homophily.adjusted < 0.15
