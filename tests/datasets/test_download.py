from __future__ import annotations

import gzip
import hashlib
import io
import socket
import zipfile
from pathlib import Path

import pytest

from fairmp.datasets.download import DownloadError, NotFoundError, download, extract, sha256_of
from fairmp.errors import InputError

BODY = b"user_id,SALARY\n1,0\n" * 2000
SUM = hashlib.sha256(BODY).hexdigest()

pytestmark = pytest.mark.usefixtures("no_wait")


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_download_stores_the_file_and_nothing_else(server, tmp_path):
    server.serve("/nba.csv", BODY)
    download(f"{server.url}/nba.csv", tmp_path / "new" / "nba.csv", sha256=SUM)
    assert (tmp_path / "new" / "nba.csv").read_bytes() == BODY
    assert files_below(tmp_path) == ["new/nba.csv"]


@pytest.mark.parametrize("digits", ["", SUM[:8], SUM])
def test_download_compares_known_digits_of_the_checksum(server, tmp_path, digits):
    server.serve("/a", BODY)
    download(f"{server.url}/a", tmp_path / "a", sha256=digits)
    assert sha256_of(tmp_path / "a") == SUM


def test_download_checks_the_content_of_gzipped_files(server, tmp_path):
    server.serve("/a.gz", gzip.compress(BODY))
    download(f"{server.url}/a.gz", tmp_path / "a.gz", sha256=SUM)
    assert sha256_of(tmp_path / "a.gz") == SUM
    server.serve("/b.gz", gzip.compress(BODY[1:]))
    with pytest.raises(DownloadError):
        download(f"{server.url}/b.gz", tmp_path / "b.gz", sha256=SUM, retries=0)
    assert files_below(tmp_path) == ["a.gz"]


def test_download_retries_and_refuses_a_cut_off_transfer(server, tmp_path):
    server.serve("/a", BODY[:100], claim=len(BODY))
    with pytest.raises(DownloadError, match="100 bytes") as caught:
        download(f"{server.url}/a", tmp_path / "a", retries=2)
    assert caught.value.argument == "a"
    assert files_below(tmp_path) == []
    assert len(server.requests) == 3


def test_download_succeeds_at_the_second_attempt(server, tmp_path):
    server.pages["/a"] = lambda count: (200, BODY[: 100 if count == 1 else None], len(BODY))
    download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("digits", [SUM, SUM[:8]])
def test_download_does_not_keep_a_wrong_checksum(server, tmp_path, digits):
    server.serve("/a", BODY.replace(b"0", b"1"))
    with pytest.raises(DownloadError) as caught:
        download(f"{server.url}/a", tmp_path / "a", sha256=digits)
    assert caught.value.argument == "a"
    assert digits in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_below(tmp_path) == []


def test_download_with_a_wrong_checksum_keeps_the_old_file(server, tmp_path):
    (tmp_path / "a").write_text("the old one")
    server.serve("/a", b"not the file")
    with pytest.raises(DownloadError):
        download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old one"]


def test_download_does_not_retry_a_missing_file(server, tmp_path):
    with pytest.raises(NotFoundError, match="HTTP 404"):
        download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    with pytest.raises(NotFoundError):
        download((tmp_path / "gone").as_uri(), tmp_path / "a", sha256=SUM)
    assert len(server.requests) == 1
    assert files_below(tmp_path) == []


def test_download_retries_a_server_error(server, tmp_path):
    server.pages["/a"] = lambda count: (500, b"", None) if count < 3 else (200, BODY, None)
    download(f"{server.url}/a", tmp_path / "a", sha256=SUM)
    assert len(server.requests) == 3


def test_download_from_a_server_that_stays_down(server, tmp_path):
    server.pages["/a"] = lambda _: (503, b"", None)
    with pytest.raises(DownloadError, match="503"):
        download(f"{server.url}/a", tmp_path / "a", retries=1)
    assert len(server.requests) == 2


def test_download_with_a_refused_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a"
        with pytest.raises(DownloadError) as caught:
            download(url, tmp_path / "a", retries=1)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_download_refuses_an_address_without_a_scheme(tmp_path):
    with pytest.raises(DownloadError, match="not an address"):
        download("nowhere", tmp_path / "a")


def test_download_shows_progress_on_standard_error(server, tmp_path, capsys):
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
def test_extract_ignores_folders_of_the_archive(tmp_path, member):
    (tmp_path / "a.zip").write_bytes(zipped({"x/": b"", "other.txt": b"2", member: b"1"}))
    folder = tmp_path / "in" / "out"
    folder.mkdir(parents=True)
    assert extract(tmp_path / "a.zip", "a.txt", folder).read_bytes() == b"1"
    assert files_below(tmp_path) == ["a.zip", "in/out/a.txt"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"limit": 1_000_000}, "too large"), ({"sha256": SUM}, "SHA-256"), ({}, "has no b.txt")],
)
def test_extract_refuses_large_changed_or_missing_files(tmp_path, options, words):
    # Five million zeros in a few kilobytes: the size is counted while it is decompressed.
    (tmp_path / "a.zip").write_bytes(zipped({"a.txt": bytes(5_000_000)}))
    assert (tmp_path / "a.zip").stat().st_size < 100_000
    with pytest.raises(InputError, match=words) as caught:
        extract(tmp_path / "a.zip", "a.txt" if options else "b.txt", tmp_path, **options)
    assert caught.value.argument == "a.zip"
    assert files_below(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("cut", [slice(0, 40), slice(0, -30), slice(5, None), slice(0, 0)])
def test_extract_refuses_a_broken_archive(tmp_path, cut):
    (tmp_path / "a.zip").write_bytes(zipped({"a.txt": bytes(range(256)) * 9})[cut])
    with pytest.raises(InputError) as caught:
        extract(tmp_path / "a.zip", "a.txt", tmp_path)
    assert caught.value.argument == "a.zip"
    assert files_below(tmp_path) == ["a.zip"]
