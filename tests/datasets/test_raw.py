from __future__ import annotations

import gzip
import hashlib
import io
import zipfile

import pytest

from fairmp.datasets.download import DownloadError
from fairmp.datasets.raw import cache_folder, data_folders, fetch, find
from fairmp.datasets.sources import BAIL, CREDIT, NBA, POKEC_Z, SOURCES, RawFile, Source
from fairmp.errors import InputError

BODY = b"user_id,SALARY\n1,0\n" * 2000
SUM = hashlib.sha256(BODY).hexdigest()

pytestmark = pytest.mark.usefixtures("no_wait")


def test_data_folders_with_a_root(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRMP_DATA", str(tmp_path))
    assert data_folders(tmp_path / "x") == [tmp_path / "x"]
    assert data_folders()[0] == tmp_path


def test_data_folders_default_is_the_cache(no_data, own_cache):
    assert data_folders() == [own_cache / "raw"]


def test_data_folders_refuse_a_missing_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRMP_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"FAIRMP_DATA: .*gone' is not a folder"):
        data_folders()


@pytest.mark.parametrize("folder", ["nba", "NBA", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_find_in_folders_plain_or_gzipped(tmp_path, folder, suffix):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"nba.csv{suffix}").write_text("x")
    nodes, edges = find(NBA, tmp_path)
    assert nodes.path is not None
    assert nodes.path.samefile(tmp_path / folder / f"nba.csv{suffix}")
    assert edges.path is None


def test_find_prefers_the_first_candidate(tmp_path):
    (tmp_path / "credit_edges.txt").write_text("0 1")
    assert find(CREDIT, tmp_path)[1].path == tmp_path / "credit_edges.txt"
    (tmp_path / "graph_credit.edgelist").write_text("0,1")
    assert find(CREDIT, tmp_path)[1].path == tmp_path / "graph_credit.edgelist"


def test_check_of_another_file(tmp_path):
    (tmp_path / "bail.csv").write_text("not bail")
    (tmp_path / "bail_edges.txt.gz").write_bytes(gzip.compress(b"0 1\n"))
    assert [file.check() for file in find(BAIL, tmp_path)] == ["differs", "differs"]
    (tmp_path / "bail_edges.txt.gz").write_bytes(b"broken")
    assert find(BAIL, tmp_path)[1].check() == "differs"


def test_check_of_missing_files_and_unknown_checksums(tmp_path):
    (tmp_path / "region_job_relationship.txt").write_text("1\t2\n")
    assert [file.check() for file in find(POKEC_Z, tmp_path)] == ["missing", "sum unknown"]


def test_real_files_are_the_published_ones(real_data):
    states = {source.key: {file.check() for file in find(source, real_data)} for source in SOURCES}
    states = {key: files for key, files in states.items() if "missing" not in files}
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


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, body in entries.items():
            bundle.writestr(name, body)
    return buffer.getvalue()


def tiny(archive_url: str = "") -> Source:
    edges = b"1 2\n"
    return Source(
        key="tiny",
        title="Tiny",
        class_name="Tiny",
        folders=("tiny",),
        files={
            "nodes": (RawFile("nodes.csv", SUM),),
            "edges": (
                RawFile("edges.txt", hashlib.sha256(edges).hexdigest()),
                RawFile("other_edges.txt", url=archive_url),
            ),
        },
    )


def test_fetch_downloads_missing_files_to_the_cache_once(server, no_data):
    server.serve("/tiny/nodes.csv", BODY)
    server.serve("/tiny/edges.txt", b"1 2\n")
    files = fetch(tiny(), mirror=server.url)
    assert [file.path.parent for file in files] == [cache_folder() / "raw" / "tiny"] * 2
    requests = len(server.requests)
    assert fetch(tiny(), mirror=server.url) == files
    assert len(server.requests) == requests


def test_fetch_downloads_to_the_given_folder_from_the_mirror_in_the_environment(
    server, no_data, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAIRMP_MIRROR", f"{server.url}/copy/")
    server.serve("/copy/tiny/nodes.csv", BODY)
    server.serve("/copy/tiny/edges.txt", b"1 2\n")
    fetch(tiny(), tmp_path)
    assert sorted(file.name for file in (tmp_path / "tiny").iterdir()) == [
        "edges.txt",
        "nodes.csv",
    ]


def test_fetch_an_alternative_inside_an_archive(server, no_data, tmp_path):
    server.serve("/tiny/nodes.csv", BODY)
    server.serve("/tiny/other_edges.txt.zip", zipped({"deep/other_edges.txt": b"3 4\n"}))
    files = fetch(tiny("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert files[1].path.read_bytes() == b"3 4\n"
    assert files[1].file.checksum == "unknown"
    assert sorted(file.name for file in (tmp_path / "tiny").iterdir()) == [
        "nodes.csv",
        "other_edges.txt",
    ]


def test_fetch_uses_an_archive_in_the_folder(server, no_data, tmp_path):
    (tmp_path / "nodes.csv").write_bytes(BODY)
    (tmp_path / "other_edges.txt.zip").write_bytes(zipped({"other_edges.txt": b"3 4\n"}))
    files = fetch(tiny("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert files[1].path.read_bytes() == b"3 4\n"
    assert (tmp_path / "other_edges.txt.zip").exists()


def test_fetch_from_an_archive_without_the_file(server, no_data, tmp_path):
    server.serve("/tiny/nodes.csv", BODY)
    server.serve("/tiny/other_edges.txt.zip", zipped({"else.txt": b"3 4\n"}))
    with pytest.raises(InputError, match=r"no other_edges\.txt; it has else\.txt"):
        fetch(tiny("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert [file.name for file in (tmp_path / "tiny").iterdir()] == ["nodes.csv"]


def test_fetch_checks_the_published_checksum(server, no_data, tmp_path):
    server.serve("/nba/nba.csv", BODY)
    with pytest.raises(DownloadError, match=r"nba\.csv: .*SHA256.*FAIRMP_DATA"):
        fetch(NBA, tmp_path, mirror=server.url)
    assert list((tmp_path / "nba").iterdir()) == []


def test_fetch_without_a_public_home(no_data, tmp_path):
    with pytest.raises(DownloadError, match=r"nodes\.csv: no public home is known .*FAIRMP_DATA"):
        fetch(tiny(), tmp_path)


def test_fetch_names_the_address_that_has_no_file(server, no_data, tmp_path):
    with pytest.raises(DownloadError, match=r"/tiny/nodes\.csv .*HTTP 404.*FAIRMP_DATA"):
        fetch(tiny(), tmp_path, mirror=server.url)


def test_fetch_a_gzipped_copy_from_a_mirror(server, no_data, tmp_path):
    server.serve("/tiny/nodes.csv.gz", gzip.compress(BODY))
    server.serve("/tiny/edges.txt", b"1 2\n")
    files = fetch(tiny(), tmp_path, mirror=server.url)
    assert files[0].path == tmp_path / "tiny" / "nodes.csv.gz"
    assert [file.check() for file in files] == ["ok", "ok"]
