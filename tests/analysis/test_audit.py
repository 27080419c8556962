"""The audit, against other libraries, brute force, and graphs whose answer is known."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from scipy.special import ndtr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fairmp import InputError, audit
from fairmp.analysis.audits.measure import mean_gap
from fairmp.analysis.audits.parts import homophily
from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.datasets import social_network
from tests.graphs import problems


@pytest.fixture(scope="module")
def network() -> Data:
    return social_network(n=2000, average_degree=12)


@given(problems())
def test_adjusted_homophily_is_the_assortativity_of_the_groups(problem):
    _, edges, sens = problem
    edges = to_undirected(edges[:, edges[0] != edges[1]], num_nodes=len(sens))
    graph = nx.Graph(edges.T.tolist())
    nx.set_node_attributes(graph, dict(enumerate(sens.tolist())), "group")
    graph = graph.subgraph([node for node in graph if sens[node] >= 0])
    found = homophily(edges, sens)
    assert (found.raw is None) == (not graph.number_of_edges())
    assume(graph.number_of_edges())
    inside = [sens[a] == sens[b] for a, b in graph.edges]
    assert found.raw == pytest.approx(np.mean(inside))
    if len({int(sens[node]) for edge in graph.edges for node in edge}) > 1:
        expected = nx.attribute_assortativity_coefficient(graph, "group")
        assert found.adjusted == pytest.approx(expected)
    else:
        assert found.adjusted is None


@given(problems())
def test_gap_is_the_largest_distance_between_means(problem):
    x, _, sens = problem
    means = [x[sens == g].mean(0) for g in range(int(sens.max()) + 1)]
    expected = max(float((a - b).norm()) for a in means for b in means)
    assert mean_gap(x.numpy(), sens.numpy())[0] == pytest.approx(expected, abs=1e-9)


def test_chance_is_the_expected_gap_of_random_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)) * [1, 2, 3, 4]
    sens = np.repeat([0, 1], [40, 20])
    square = [mean_gap(x, sens[rng.permutation(60)])[0] ** 2 for _ in range(1500)]
    # Without replacement the mean is larger by 60/59.
    assert np.sqrt(np.mean(square) * 59 / 60) == pytest.approx(mean_gap(x, sens)[1], rel=0.03)


def test_rule_is_linear_discriminant_analysis(monkeypatch):
    monkeypatch.setattr(measurement, "HELD_OUT_RIDGE", 0.0)
    rng = np.random.default_rng(1)
    groups = (rng.random(600) < 0.3).astype(int)
    x = rng.normal(size=(600, 5)) @ rng.normal(size=(5, 5)) + groups[:, None] * [1, 0, 0.5, 0, 0]
    half = np.arange(600) % 2
    rates = []
    for k in (0, 1):
        learn, read = half == k, half != k
        rule = LinearDiscriminantAnalysis(priors=[0.5, 0.5]).fit(x[learn], groups[learn])
        said = rule.predict(x[read])
        rates.append(said[groups[read] == 1].mean() - said[groups[read] == 0].mean())
    parity = measurement.held_out_bias(x, groups, half)[1]
    assert parity == pytest.approx(np.mean(rates), abs=0.01)


@pytest.mark.parametrize("distance", [0.0, 1.0, 2.5])
def test_separation_and_predictability_of_normal_groups(distance):
    rng = np.random.default_rng(2)
    groups = np.arange(20_000) % 2
    x = rng.normal(size=(20_000, 6))
    x[:, 2] += distance * groups
    separation, parity = measurement.held_out_bias(x, groups, np.arange(20_000) // 2 % 2)
    assert separation == pytest.approx(distance, abs=0.04)
    assert parity == pytest.approx(2 * ndtr(distance / 2) - 1, abs=0.02)


def test_a_column_that_is_the_group_predicts_it():
    groups = np.arange(40) % 2
    assert measurement.held_out_bias(groups[:, None] * 1.0, groups, np.arange(40) // 2 % 2)[1] == 1
    assert measurement.held_out_bias(np.ones((40, 1)), groups, np.arange(40) // 2 % 2)[1] == 0


def test_many_columns_on_few_nodes_do_not_look_like_a_difference():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(120, 200, generator=generator),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        sens=torch.arange(120) % 2,
    )
    found = audit(data)
    assert abs(found.row[0].predictability) < found.noise
    # Nobody has a neighbour: nothing moves.
    assert found.row[5].predictability == found.row[0].predictability
    assert found.row[0].gap == pytest.approx(found.row[0].chance, rel=0.15)
    assert found.homophily.raw is None
    assert "No edges to compare the groups by" in str(found)


@pytest.mark.parametrize(("eps", "rises"), [(0.9, True), (0.5, False)])
def test_prediction_and_measurement_agree_on_a_block_model(eps, rises):
    found = audit(block_graph(4000, 0.01, eps, 0.5, seed=0), steps=1)
    before, after = found.row
    assert found.forecast.before == pytest.approx(before.predictability, abs=0.03)
    assert found.forecast.after == pytest.approx(after.predictability, abs=0.05)
    assert (found.forecast.corrected > 1) is rises
    assert (after.predictability > before.predictability) is rises
    assert found.forecast.m == pytest.approx(2, abs=0.2)
    verb = "raises" if rises else "lowers"
    line = next(line for line in found.verdict() if "theory predicts" in line)
    assert line.count(f"{verb} the bias") == 2
    assert ("Message passing adds bias" in " ".join(found.verdict())) is rises


def test_the_counterexample_to_the_printed_condition():
    found = audit(block_graph(20_000, 5e-4, 0.64, 0.5, seed=0), steps=1)
    assert found.forecast.printed > 1 > found.forecast.corrected
    assert found.forecast.after < found.forecast.before
    assert found.row[1].predictability < found.row[0].predictability


def test_counts(network):
    found = audit(network, steps=1)
    assert (found.nodes, found.directed_edges) == (2000, network.edge_index.size(1))
    assert found.edges == found.directed_edges // 2
    assert found.density == pytest.approx(found.directed_edges / (2000 * 1999))
    assert found.c == pytest.approx(float((network.sens == 1).double().mean()))
    degree = torch.bincount(network.edge_index[0], minlength=2000)
    for g, row in enumerate(found.groups):
        member = network.sens == g
        assert row.nodes == int(member.sum())
        assert row.mean_degree == pytest.approx(float(degree[member].double().mean()))
        assert row.median_degree == np.median(degree[member])
        assert row.base_rates[1] == pytest.approx(float(network.y[member].double().mean()))
        reached = network.sens[network.edge_index[1][network.sens[network.edge_index[0]] == g]]
        assert row.inside == pytest.approx(float((reached == g).double().mean()))


def test_the_gap_does_not_depend_on_the_groups_names(network):
    swapped = network.clone()
    swapped.sens = 1 - network.sens
    one, other = audit(network, steps=2), audit(swapped, steps=2)
    for a, b in zip(one.row, other.row, strict=True):
        assert a.gap == pytest.approx(b.gap)
        assert a.predictability == pytest.approx(b.predictability, abs=one.noise)
    assert one.homophily == other.homophily


def test_it_is_reproducible_and_leaves_the_graph_alone(network):
    before = network.clone()
    assert audit(network) == audit(network)
    for key in ("x", "edge_index", "y", "sens"):
        assert torch.equal(before[key], network[key])


def test_constant_and_repeated_columns_do_no_harm(network):
    wide = network.clone()
    wide.x = torch.cat([network.x, network.x[:, :3], torch.full((2000, 2), 7.0)], 1)
    found, plain = audit(wide, steps=1), audit(network, steps=1)
    assert found.constant_features == 2
    assert "2 of 37 feature columns are constant" in str(found)
    assert found.row[1].predictability == pytest.approx(plain.row[1].predictability, abs=0.03)


def test_nothing_but_constant_columns(network):
    flat = network.clone()
    flat.x = torch.ones(2000, 3)
    found = audit(flat, steps=2)
    assert [reading.gap for reading in found.row] == [0.0, 0.0, 0.0]
    assert found.forecast.after is None
    json.dumps(found.to_dict(), allow_nan=False)
    str(found)


def test_more_groups_unknown_ones_and_no_labels():
    generator = torch.Generator().manual_seed(0)
    sens = torch.randint(-1, 4, (800,), generator=generator)
    sens[sens == 3] = torch.where(torch.arange(int((sens == 3).sum())) < 6, 3, 0)
    data = Data(
        x=torch.randn(800, 5, generator=generator)
        + sens[:, None] * torch.tensor([1.0, 0, 0, 0, 0]),
        edge_index=torch.randint(0, 800, (2, 4000), generator=generator),
        sens=sens,
    )
    found = audit(data, steps=2)
    assert [row.name for row in found.groups] == ["0", "1", "2", "3", "unknown"]
    assert found.groups[3].nodes == 6
    assert found.groups[-1].share is None
    assert found.c is None
    assert found.forecast.printed is None
    assert found.forecast.before is not None
    assert found.row[0].separation > 1.5
    outside = sens[data.edge_index].min(0).values < 0
    assert found.unknown_edges == pytest.approx(float(outside.double().mean()), abs=0.01)
    assert found.labelled == 0
    shown = str(found)
    for words in (
        "fewer than 10 nodes are excluded",
        "stated for two groups",
        "the two most distinct groups",
        "made undirected",
        "% of the nodes is unknown",
    ):
        assert words in shown.replace("\n  ", " ")
    json.dumps(found.to_dict(), allow_nan=False)


@settings(max_examples=40)
@given(problems())
def test_any_small_graph_can_be_audited(problem):
    x, edges, sens = problem
    found = audit(Data(x=x.float(), edge_index=edges, sens=sens), steps=2)
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found).startswith("Audit of graph")
    assert sum(row.nodes for row in found.groups) == len(sens)
    assert found.row[0] == found.symmetric[0]


def test_sections_make_a_page(network):
    from fairmp.report import page

    shown = page("audit", "", audit(network, steps=2).sections())
    for words in ("Edges stay within groups", "predictability", "Theorem 2, corrected", "<svg"):
        assert words in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sens": None}, "data.sens: missing"),
        ({"x": None}, "data.x: missing"),
        ({"sens": torch.zeros(2000, dtype=torch.int64)}, "sens: 1 group"),
        ({"sens": torch.full((2000,), -1)}, "sens: 0 groups"),
        ({"sens": 2 * (torch.arange(2000) % 2)}, "sens: group 1 has no node"),
        ({"edge_index": torch.tensor([[0], [2000]])}, "data.edge_index"),
    ],
)
def test_a_wrong_graph_is_named(network, change, words):
    broken = network.clone()
    for key, value in change.items():
        broken[key] = value
    with pytest.raises(InputError, match=words):
        audit(broken)


@pytest.mark.parametrize(("option", "value"), [("steps", 0), ("seed", -1)])
def test_a_wrong_option_is_named(network, option, value):
    with pytest.raises(InputError, match=f"{option}: {value}"):
        audit(network, **{option: value})


def test_audit_is_the_function_and_not_a_module():
    import fairmp
    import fairmp.analysis.audits.measure
    import fairmp.cli.audit

    assert fairmp.audit is fairmp.analysis.audits.audit is audit
    assert callable(audit)


def test_the_real_graphs(data_folder):
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
