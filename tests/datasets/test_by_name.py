from __future__ import annotations

import pytest

from fairmp.cli.options import Graph
from fairmp.datasets import by_name as graphs
from fairmp.datasets.sources import SOURCES
from fairmp.errors import InputError


def test_names_people_type() -> None:
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
def test_every_command_takes_a_size(size: int) -> None:
    for load in (graphs.from_files, lambda name: Graph(data=name).load()):
        assert load(f"embedded:{size}").num_nodes == size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("embeded", "there is no 'embeded', did you mean 'embedded'?; there are embedded, nba,"),
        ("embeded:500", "did you mean 'embedded'"),
        ("embedded:", "'embedded:' has no number of nodes; write 'embedded:3000'"),
        ("embedded:-5", "'embedded:-5' has no number of nodes"),
        ("embedded:39", "asks for 39 nodes; give 40 to 100,000,000"),
        ("embedded:50000000000", "asks for 50,000,000,000 nodes; give 40 to 100,000,000"),
    ],
)
def test_a_wrong_name_is_one_line_everywhere(name: str, words: str) -> None:
    for load in (graphs.from_files, lambda name: Graph(data=name).load(), graphs.canonical):
        with pytest.raises(InputError) as caught:
            load(name)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_graphs_without_files_are_left_out(tmp_path) -> None:
    found, absent = graphs.available(["embedded:300", "nba"], tmp_path)
    assert list(found) == ["embedded:300"]
    assert list(absent) == ["NBA"]
