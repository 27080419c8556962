from __future__ import annotations

import pytest

from fairmp.cli.options import Graph
from fairmp.datasets import by_name as graphs
from fairmp.datasets.sources import SOURCES
from fairmp.errors import InputError


def test_canonical_names() -> None:
    names = [
        "Facebook100",
        "embedded",
        "Embedded Network",
        "EMBEDDED:0300",
        "pokec_n",
        "PokecNGraph",
    ]
    expected = ["facebook100", "embedded", "embedded", "embedded:300", "pokec-n", "pokec-n-graph"]
    assert [graphs.canonical(name) for name in names] == expected
    for source in SOURCES:
        assert graphs.canonical(source.title) == source.key


@pytest.mark.parametrize("size", [graphs.MIN_NODES, 500])
def test_from_files_with_a_size(size: int) -> None:
    for load in (graphs.from_files, lambda name: Graph(data=name).load()):
        assert load(f"embedded:{size}").num_nodes == size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("embeded", "data: there is no data set 'embeded', did you mean 'embedded'? There are"),
        ("embeded:500", "did you mean 'embedded'"),
        ("embedded:", "'embedded:' has no number of nodes; write 'embedded:3000'"),
        ("embedded:-5", "'embedded:-5' has no number of nodes"),
        ("embedded:39", "asks for 39 nodes; give 40 to 100,000,000"),
        ("embedded:50000000000", "asks for 50,000,000,000 nodes; give 40 to 100,000,000"),
    ],
)
def test_canonical_refuses_wrong_names(name: str, words: str) -> None:
    for load in (graphs.from_files, lambda name: Graph(data=name).load(), graphs.canonical):
        with pytest.raises(InputError) as caught:
            load(name)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_check_data_dir_refuses_a_missing_folder(tmp_path) -> None:
    graphs.check_data_dir(None)
    graphs.check_data_dir(tmp_path)
    with pytest.raises(InputError) as error:
        graphs.check_data_dir(tmp_path / "gone")
    assert error.value.argument == "data_dir"


def test_name_of_tables_changes_with_contents_and_columns(tmp_path) -> None:
    nodes, edges = tmp_path / "people.csv", tmp_path / "edges.csv"
    nodes.write_text("a")
    edges.write_text("b")
    name = graphs.name_of_tables(nodes, edges, id="who")
    assert name.startswith("people-")
    assert name == graphs.name_of_tables(nodes, edges, id="who")
    assert name != graphs.name_of_tables(nodes, edges, id="name")
    edges.write_text("c")
    assert name != graphs.name_of_tables(nodes, edges, id="who")
