"""The audit, against other libraries, brute force, and graphs whose answer is known."""

from __future__ import annotations

import json
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fairmp import InputError, audit
from fairmp.analysis.audits import steps
from fairmp.analysis.audits.counts import homophily
from fairmp.analysis.theory import aggregate
from fairmp.analysis.theory.block_model import block_graph
from fairmp.datasets import social_network
from fairmp.graph import normalise
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
    if not graph.number_of_edges():
        assert found.raw is None
        return
    inside = [sens[a] == sens[b] for a, b in graph.edges]
    assert found.raw == pytest.approx(np.mean(inside))
    if len({int(sens[node]) for edge in graph.edges for node in edge}) > 1:
        expected = nx.attribute_assortativity_coefficient(graph, "group")
        assert found.adjusted == pytest.approx(expected)
    else:
        assert found.adjusted is None


@given(problems(), st.sampled_from(["row", "symmetric"]))
def test_averaging_is_that_of_the_theory(problem, kind):
    x, edges, _ = problem
    edges = to_undirected(edges[:, edges[0] != edges[1]], num_nodes=len(x))
    found = list(steps.propagated(x, normalise(edges, len(x), dtype=x.dtype), 3, kind))
    for k, features in enumerate(found, 1):
        expected = aggregate(x, edges, steps=k, normalisation=kind)
        torch.testing.assert_close(features, expected)


@given(problems())
def test_the_gap_is_the_largest_distance_of_two_means(problem):
    x, _, sens = problem
    means = [x[sens == g].mean(0) for g in range(int(sens.max()) + 1)]
    expected = max(float((a - b).norm()) for a in means for b in means)
    assert steps.mean_gap(x, sens)[0] == pytest.approx(expected, abs=1e-9)


def test_chance_is_the_gap_of_groups_at_random():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(60, 4)) * [1, 2, 3, 4])
    sens = torch.tensor([0] * 40 + [1] * 20)
    square = [
        steps.mean_gap(x, sens[torch.from_numpy(rng.permutation(60))])[0] ** 2 for _ in range(1500)
    ]
    # Without replacement the mean is larger by 60/59.
    assert np.sqrt(np.mean(square) * 59 / 60) == pytest.approx(steps.mean_gap(x, sens)[1], rel=0.03)


def test_the_rule_is_fishers(monkeypatch):
    monkeypatch.setattr(steps, "RIDGE", 0.0)
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
    assert steps.held_out(x, groups, half)[1] == pytest.approx(np.mean(rates))


@pytest.mark.parametrize("distance", [0.0, 1.0, 2.5])
def test_separation_and_share_told_apart_of_normal_groups(distance):
    rng = np.random.default_rng(2)
    groups = np.arange(20_000) % 2
    x = rng.normal(size=(20_000, 6))
    x[:, 2] += distance * groups
    separation, told = steps.held_out(x, groups, np.arange(20_000) // 2 % 2)
    assert separation == pytest.approx(distance, abs=0.04)
    assert told == pytest.approx(2 * ndtr(distance / 2) - 1, abs=0.02)


def test_many_columns_on_few_nodes_do_not_look_like_a_difference():
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(120, 200, generator=generator),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        sens=torch.arange(120) % 2,
    )
    found = audit(data)
    assert abs(found.row[0].told_apart) < found.noise
    # Nobody has a neighbour: nothing moves.
    assert found.row[5].told_apart == found.row[0].told_apart
    assert found.row[0].gap == pytest.approx(found.row[0].chance, rel=0.15)
    assert found.homophily.raw is None
    assert "No edge joins" in str(found)


@pytest.mark.parametrize(("eps", "rises"), [(0.9, True), (0.5, False)])
def test_prediction_and_measurement_agree_on_a_block_model(eps, rises):
    found = audit(block_graph(4000, 0.01, eps, 0.5, seed=0), steps=1)
    before, after = found.row
    assert found.forecast.before == pytest.approx(before.told_apart, abs=0.03)
    assert found.forecast.after == pytest.approx(after.told_apart, abs=0.05)
    assert (found.forecast.corrected > 1) is rises
    assert (after.told_apart > before.told_apart) is rises
    assert found.forecast.m == pytest.approx(2, abs=0.2)
    verb = "raise" if rises else "lower"
    line = next(line for line in found.verdict() if line.startswith("On a graph like yours"))
    assert f"is predicted to {verb} the bias" in line
    assert f"measured: to {verb} the bias" in line
    assert ("Message passing adds bias" in str(found)) is rises


def test_the_counterexample_to_the_printed_condition():
    found = audit(block_graph(20_000, 5e-4, 0.64, 0.5, seed=0), steps=1)
    assert found.forecast.printed > 1 > found.forecast.corrected
    assert found.forecast.after < found.forecast.before
    assert found.row[1].told_apart < found.row[0].told_apart


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
        assert a.told_apart == pytest.approx(b.told_apart, abs=one.noise)
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
    assert "2 of 37 feature columns have one value" in str(found)
    assert found.row[1].told_apart == pytest.approx(plain.row[1].told_apart, abs=0.03)


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
        "fewer than 10 nodes are left out",
        "stated for two groups",
        "the two groups furthest apart",
        "every edge was taken once",
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
    for words in ("Ties keep to the group", "told apart", "Theorem 2, corrected", "<svg"):
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


def test_audit_is_the_function_in_both_orders_of_imports():
    code = (
        "import sys\n"
        "import fairmp.analysis.audits.findings, fairmp.cli.audit\n"
        "from fairmp import audit\n"
        "assert fairmp.audit is audit is fairmp.analysis.audits.audit and callable(audit)\n"
        "for name in [name for name in sys.modules if name.startswith('fairmp.analysis.audits')]:\n"
        "    del sys.modules[name]\n"
        "del sys.modules['fairmp'], fairmp, audit\n"
        "from fairmp import audit\n"
        "import fairmp.analysis.audits.findings\n"
        "assert fairmp.audit is audit is fairmp.analysis.audits.audit and callable(audit)\n"
        "print('both')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "both\n", done.stderr


def test_the_real_graphs(data_folder):
    from fairmp.datasets import load

    nba = audit(load("nba", data_folder))
    shown = str(nba)
    for words in ("10,621 undirected, 21,242 directed", "72.37 %", "39.22 %", "53.63 %"):
        assert words in shown
    # The features hardly know the group; two steps over the ties do, and so do random numbers.
    assert nba.row[0].told_apart < 0.2
    assert nba.row[2].told_apart > 0.5
    assert nba.made_up[2] > 0.4
    credit = audit(load("credit", data_folder), steps=1)
    assert credit.row[1].told_apart < credit.row[0].told_apart - 0.1
    assert credit.forecast.after < credit.forecast.before - 0.1
    assert credit.homophily.raw > 0.85
    assert credit.homophily.adjusted < 0.15
