from __future__ import annotations

import gzip

import pytest

from fairmp.datasets.raw import data_folders, find
from fairmp.datasets.sources import BAIL, CREDIT, NBA, POKEC_N, POKEC_Z, SOURCES, source_named
from fairmp.errors import InputError


def test_root_is_the_only_folder_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRMP_DATA", str(tmp_path))
    assert data_folders(tmp_path / "x") == [tmp_path / "x"]
    assert data_folders()[0] == tmp_path


def test_the_cache_is_the_default_folder(no_data, own_cache):
    assert data_folders() == [own_cache / "raw"]


def test_a_missing_folder_in_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRMP_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"FAIRMP_DATA: .*gone' is not a folder"):
        data_folders()


@pytest.mark.parametrize("folder", ["nba", "NBA", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_are_found_in_folders_or_flat_plain_or_gzipped(tmp_path, folder, suffix):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"nba.csv{suffix}").write_text("x")
    nodes, edges = find(NBA, tmp_path)
    assert nodes.path is not None
    assert nodes.path.samefile(tmp_path / folder / f"nba.csv{suffix}")
    assert edges.path is None


def test_the_preferred_edge_list_of_credit_comes_first(tmp_path):
    (tmp_path / "credit_edges.txt").write_text("0 1")
    assert find(CREDIT, tmp_path)[1].path == tmp_path / "credit_edges.txt"
    (tmp_path / "graph_credit.edgelist").write_text("0,1")
    assert find(CREDIT, tmp_path)[1].path == tmp_path / "graph_credit.edgelist"


def test_which_checksums_are_known():
    known = {s.key: [f.checksum for c in s.files.values() for f in c] for s in SOURCES}
    assert known["nba"] == ["known", "known"]
    assert known["pokec-z"] == known["pokec-n"] == ["partial", "unknown"]
    assert known["credit"] == ["known", "known", "unknown"]
    assert POKEC_Z.files["nodes"][0].sha256 == "62f299e6"
    assert POKEC_N.files["nodes"][0].sha256 == "2b236a69"


def test_a_file_that_is_not_the_published_one_differs(tmp_path):
    (tmp_path / "bail.csv").write_text("not bail")
    (tmp_path / "bail_edges.txt.gz").write_bytes(gzip.compress(b"0 1\n"))
    assert [file.check() for file in find(BAIL, tmp_path)] == ["differs", "differs"]
    (tmp_path / "bail_edges.txt.gz").write_bytes(b"broken")
    assert find(BAIL, tmp_path)[1].check() == "differs"


def test_missing_files_and_unknown_checksums(tmp_path):
    (tmp_path / "region_job_relationship.txt").write_text("1\t2\n")
    assert [file.check() for file in find(POKEC_Z, tmp_path)] == ["missing", "sum unknown"]


def test_sources_by_key_title_or_class():
    assert source_named("pokec_n").key == "pokec-n"
    assert source_named("Pokec-n, 3 features").class_name == "PokecNGraph"
    with pytest.raises(InputError, match="did you mean 'german'"):
        source_named("germany")
    with pytest.raises(InputError, match=r"did you mean 'mine'.*there are mine, nba"):
        source_named("mime", others=["mine"])


def test_the_real_files_are_the_published_ones(real_data):
    states = {source.key: {file.check() for file in find(source, real_data)} for source in SOURCES}
    states = {key: found for key, found in states.items() if "missing" not in found}
    assert set(states) >= {
        "nba",
        "pokec-province",
        "pokec-n-graph",
        "german",
        "credit",
        "bail",
        "facebook100",
    }
    assert all(state == {"ok"} for state in states.values())
