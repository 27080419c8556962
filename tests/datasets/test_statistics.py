from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from torch_geometric.utils import homophily as pyg_homophily

from fairmp.datasets.statistics import PAPER, EdgeHomophily, agreement, homophily, of_dataset
from tests.graphs import problems


@given(problems())
def test_homophily_agrees_with_pyg(problem) -> None:
    _, edges, sens = problem
    known_edges = edges[:, (sens[edges] >= 0).all(0)]
    if known_edges.size(1):
        assert homophily(edges, sens) == pytest.approx(pyg_homophily(known_edges, sens), abs=1e-6)
    else:
        assert homophily(edges, sens) is None


@pytest.mark.parametrize("known_only", [True, False])
def test_homophily_of_edges_in_parts_is_that_of_all(known_only: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 200), generator=generator)
    codes = torch.randint(-1, 3, (30,), generator=generator)
    counted = EdgeHomophily(codes.numpy(), known_only)
    assert counted.share is None
    for part in edges.numpy()[:, :70], edges.numpy()[:, 70:]:
        counted.add(*part)
    assert counted.share == homophily(edges, codes, known_only=known_only)


def test_homophily_with_unknown_codes() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    codes = torch.tensor([0, 1, -1, -1])
    assert homophily(edges, codes) == 0.0
    assert homophily(edges, codes, known_only=False) == pytest.approx(1 / 3)


def test_agreement_is_to_the_printed_digit():
    paper = PAPER["nba"]
    close, off = (asdict(paper) | {"sens_homophily": share} for share in (0.72366, 0.72364))
    assert all(agreement(type(paper)(**close), paper).values())
    assert [k for k, ok in agreement(type(paper)(**off), paper).items() if not ok] == [
        "sens_homophily"
    ]
    assert "label_homophily_labelled" not in agreement(PAPER["pokec-z"], PAPER["pokec-z"])


def test_real_graphs_agree_with_the_paper(real_data):
    nba = of_dataset("nba", real_data)
    assert all(agreement(nba, PAPER["nba"]).values())
    assert (nba.nodes, nba.features, nba.edges) == (403, 95, 21_242)
    shares = (nba.label_homophily, nba.label_homophily_labelled, nba.sens_homophily)
    assert [f"{100 * share:.2f}" for share in shares] == ["39.22", "53.63", "72.37"]
    pokec = of_dataset("pokec-n-graph", real_data)
    agrees = agreement(pokec, PAPER["pokec-n"])
    assert not agrees.pop("features")
    assert all(agrees.values())
    assert (pokec.nodes, pokec.features, pokec.edges) == (66_569, 3, 1_034_094)
    assert f"{100 * pokec.label_homophily:.2f} {100 * pokec.sens_homophily:.2f}" == "73.23 95.30"
