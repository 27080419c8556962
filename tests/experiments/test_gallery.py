"""The lessons of the gallery follow from the records."""

from __future__ import annotations

import pytest

from experiments import ROOT
from experiments.committed import read
from experiments.gallery import Exhibit, exhibits, gallery


@pytest.fixture(scope="module")
def graphs() -> dict[str, Exhibit]:
    return exhibits()


def change(exhibit: Exhibit, key: str) -> float:
    """Corrected minus uncorrected, in points."""
    return 100 * (exhibit.batch[key].mean - exhibit.uncorrected[key].mean)


def test_each_graph_has_a_row_and_a_picture(graphs: dict[str, Exhibit]) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf8")
    assert len(gallery().rows) == len(graphs) == 7
    for key in graphs:
        assert f"figures/gallery-{key}.png" in page
        assert (ROOT / "docs" / "figures" / f"gallery-{key}.png").is_file()


def test_batch_correction_closes_every_gap(graphs: dict[str, Exhibit]) -> None:
    assert all(exhibit.batch["dp"].mean < 0.012 for exhibit in graphs.values())


def test_pokec_province_parity_is_nearly_free(graphs: dict[str, Exhibit]) -> None:
    exhibit = graphs["pokec-province"]
    assert exhibit.audit["adjusted"] > 0.9
    assert exhibit.audit["five steps"] > 3 * exhibit.audit["features"]
    assert change(exhibit, "accuracy") > -0.5
    assert change(exhibit, "eo") < -2


def test_nba_per_node_gap_is_larger_than_without_a_correction(graphs: dict[str, Exhibit]) -> None:
    exhibit = graphs["nba"]
    assert exhibit.audit["five steps"] > 5 * exhibit.audit["features"]
    assert exhibit.per_node["dp"].mean > exhibit.uncorrected["dp"].mean
    floors = {line["floor"] for line in read("group-free")["summary"] if line["graph"] == "nba"}
    assert [round(100 * floor) for floor in floors] == [10]


def test_pokec_n_needs_more_than_one_step(graphs: dict[str, Exhibit]) -> None:
    audit = graphs["pokec-n-graph"].audit
    assert audit["one step"] <= audit["features"] < 0.1
    assert min(audit["five steps"], audit["random features"]) > 0.25


def test_facebook_group_is_known_without_a_gap(graphs: dict[str, Exhibit]) -> None:
    exhibit = graphs["facebook100"]
    assert exhibit.audit["features"] > 0.5
    assert exhibit.uncorrected["dp"].mean < 0.02


def test_german_features_reveal_the_group(graphs: dict[str, Exhibit]) -> None:
    exhibit = graphs["german"]
    assert exhibit.audit["features"] > 0.75
    assert exhibit.audit["five steps"] - exhibit.audit["features"] < 0.1
    assert change(exhibit, "accuracy") > -1


def test_credit_homophily_is_chance(graphs: dict[str, Exhibit]) -> None:
    audit = graphs["credit"].audit
    assert audit["homophily"] > 0.85
    assert audit["adjusted"] < 0.1
    assert audit["five steps"] < audit["features"] - 0.1


def test_bail_parity_opens_equal_opportunity(graphs: dict[str, Exhibit]) -> None:
    exhibit = graphs["bail"]
    assert exhibit.uncorrected["eo"].mean < 0.02
    assert change(exhibit, "eo") > 5
    assert change(exhibit, "accuracy") < -2
