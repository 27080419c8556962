from __future__ import annotations

import gzip
import hashlib
import io
import socket
import time
import zipfile
from pathlib import Path

import pytest

from fairmp.datasets.download import DownloadError, NotFoundError, download, extract, sha256_of
from fairmp.datasets.raw import cache_folder, fetch
from fairmp.datasets.sources import NBA, RawFile, Source
from fairmp.errors import InputError

BODY = b"user_id,SALARY\n1,0\n" * 2000
SUM = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooch waits a second or more between two attempts."""
    monkeypatch.setattr(time, "sleep", lambda _: None)


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_download_stores_the_file_and_nothing_else(server, tmp_path):
    server.serve("/nba.csv", BODY)
    download(f"{server.url}/nba.csv", tmp_path / "new" / "nba.csv", sha256=SUM)
    assert (tmp_path / "new" / "nba.csv").read_bytes() == BODY
    assert files_below(tmp_path) == ["new/nba.csv"]


@pytest.mark.parametrize("known", ["", SUM[:8], SUM])
def test_a_checksum_is_compared_as_far_as_it_is_known(server, tmp_path, known):
    server.serve("/a", BODY)
    download(f"{server.url}/a", tmp_path / "a", sha256=known)
    assert sha256_of(tmp_path / "a") == SUM


def test_the_checksum_of_a_gzipped_copy_is_that_of_its_content(server, tmp_path):
    server.serve("/a.gz", gzip.compress(BODY))
    download(f"{server.url}/a.gz", tmp_path / "a.gz", sha256=SUM)
    assert sha256_of(tmp_path / "a.gz") == SUM
    server.serve("/b.gz", gzip.compress(BODY[1:]))
    with pytest.raises(DownloadError):
        download(f"{server.url}/b.gz", tmp_path / "b.gz", sha256=SUM, retries=0)
    assert files_below(tmp_path) == ["a.gz"]


def test_a_cut_off_transfer_is_retried_and_then_refused(server, tmp_path):
    server.serve("/a", BODY[:100], claim=len(BODY))
    with pytest.raises(DownloadError, match="100 bytes") as caught:
        download(f"{server.url}/a", tmp_path / "a", retries=2)
    assert caught.value.argument == "a"
    assert files_below(tmp_path) == []
    assert len(server.requests) == 3


def test_a_transfer_that_is_complete_the_second_time(server, tmp_path):
    server.pages["/a"] = lambda count: (200, BODY[: 100 if count == 1 else None], len(BODY))
    download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("known", [SUM, SUM[:8]])
def test_a_file_with_a_wrong_checksum_is_not_kept(server, tmp_path, known):
    server.serve("/a", BODY.replace(b"0", b"1"))
    with pytest.raises(DownloadError) as caught:
        download(f"{server.url}/a", tmp_path / "a", sha256=known)
    assert caught.value.argument == "a"
    assert known in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == []


def test_a_file_with_a_wrong_checksum_does_not_replace_the_old_one(server, tmp_path):
    (tmp_path / "a").write_text("the old one")
    server.serve("/a", b"not the file")
    with pytest.raises(DownloadError):
        download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old one"]


def test_a_missing_file_is_not_retried(server, tmp_path):
    with pytest.raises(NotFoundError, match="HTTP 404"):
        download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    with pytest.raises(NotFoundError):
        download((tmp_path / "gone").as_uri(), tmp_path / "a", sha256=SUM)
    assert len(server.requests) == 1
    assert files_below(tmp_path) == []


def test_a_server_error_is_retried(server, tmp_path):
    server.pages["/a"] = lambda count: (500, b"", None) if count < 3 else (200, BODY, None)
    download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert len(server.requests) == 3


def test_a_server_that_stays_down(server, tmp_path):
    server.pages["/a"] = lambda _: (503, b"", None)
    with pytest.raises(DownloadError, match="503"):
        download(f"{server.url}/a", tmp_path / "a", retries=1)
    assert len(server.requests) == 2


def test_a_refused_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a"
        with pytest.raises(DownloadError) as caught:
            download(url, tmp_path / "a", retries=1)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_without_a_scheme(tmp_path):
    with pytest.raises(DownloadError, match="not an address"):
        download("nowhere", tmp_path / "a")


def test_the_progress_bar_goes_to_standard_error(server, tmp_path, capsys):
    server.serve("/a", BODY)
    download(f"{server.url}/a", tmp_path / "nba.csv", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nba.csv" in captured.err
    download(f"{server.url}/a", tmp_path / "other.csv")
    assert capsys.readouterr().err == ""


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, body in entries.items():
            bundle.writestr(name, body)
    return buffer.getvalue()


@pytest.mark.parametrize("member", ["a.txt", "deep/a.txt", "../../a.txt", "/tmp/a.txt"])
def test_one_file_is_extracted_to_the_folder_whatever_its_path(tmp_path, member):
    (tmp_path / "a.zip").write_bytes(zipped({"x/": b"", "other.txt": b"2", member: b"1"}))
    folder = tmp_path / "in" / "out"
    folder.mkdir(parents=True)
    assert extract(tmp_path / "a.zip", "a.txt", folder).read_bytes() == b"1"
    assert files_below(tmp_path) == ["a.zip", "in/out/a.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"limit": 1_000_000}, "too large"), ({"sha256": SUM}, "SHA-256"), ({}, "has no b.txt")],
)
def test_a_file_that_is_too_large_changed_or_missing_is_not_extracted(tmp_path, options, words):
    # Five million zeros in a few kilobytes: the size is counted while it is decompressed.
    (tmp_path / "a.zip").write_bytes(zipped({"a.txt": bytes(5_000_000)}))
    assert (tmp_path / "a.zip").stat().st_size < 100_000
    with pytest.raises(InputError, match=words) as caught:
        extract(tmp_path / "a.zip", "a.txt" if options else "b.txt", tmp_path, **options)
    assert caught.value.argument == "a.zip"
    assert files_below(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("cut", [slice(0, 40), slice(0, -30), slice(5, None), slice(0, 0)])
def test_a_broken_archive(tmp_path, cut):
    (tmp_path / "a.zip").write_bytes(zipped({"a.txt": bytes(range(256)) * 9})[cut])
    with pytest.raises(InputError) as caught:
        extract(tmp_path / "a.zip", "a.txt", tmp_path)
    assert caught.value.argument == "a.zip"
    assert files_below(tmp_path) == ["a.zip"]


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
    found = fetch(tiny(), mirror=server.url)
    assert [file.path.parent for file in found] == [cache_folder() / "raw" / "tiny"] * 2
    requests = len(server.requests)
    assert fetch(tiny(), mirror=server.url) == found
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
    found = fetch(tiny("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert found[1].path.read_bytes() == b"3 4\n"
    assert found[1].file.checksum == "unknown"
    assert sorted(file.name for file in (tmp_path / "tiny").iterdir()) == [
        "nodes.csv",
        "other_edges.txt",
    ]


def test_fetch_uses_an_archive_in_the_folder(server, no_data, tmp_path):
    (tmp_path / "nodes.csv").write_bytes(BODY)
    (tmp_path / "other_edges.txt.zip").write_bytes(zipped({"other_edges.txt": b"3 4\n"}))
    found = fetch(tiny("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert found[1].path.read_bytes() == b"3 4\n"
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
    found = fetch(tiny(), tmp_path, mirror=server.url)
    assert found[0].path == tmp_path / "tiny" / "nodes.csv.gz"
    assert [file.check() for file in found] == ["ok", "ok"]
