from __future__ import annotations

from fairmp.datasets.statistics import PAPER, agreement, of_dataset


def test_agreement_is_to_the_printed_digit():
    paper = PAPER["nba"]
    close, off = (paper.as_dict() | {"sens_homophily": share} for share in (0.72366, 0.72364))
    assert all(agreement(type(paper)(**close), paper).values())
    assert [k for k, ok in agreement(type(paper)(**off), paper).items() if not ok] == [
        "sens_homophily"
    ]
    assert "label_homophily_labelled" not in agreement(PAPER["pokec-z"], PAPER["pokec-z"])


def test_the_real_statistics_are_the_papers(real_data):
    nba = of_dataset("nba", real_data)
    assert all(agreement(nba, PAPER["nba"]).values())
    assert (nba.nodes, nba.features, nba.edges) == (403, 95, 21_242)
    shares = (nba.label_homophily, nba.label_homophily_labelled, nba.sens_homophily)
    assert [f"{100 * share:.2f}" for share in shares] == ["39.22", "53.63", "72.37"]
    pokec = of_dataset("pokec-n-graph", real_data)
    same = agreement(pokec, PAPER["pokec-n"])
    assert not same.pop("features")
    assert all(same.values())
    assert (pokec.nodes, pokec.features, pokec.edges) == (66_569, 3, 1_034_094)
    assert f"{100 * pokec.label_homophily:.2f} {100 * pokec.sens_homophily:.2f}" == "73.23 95.30"
