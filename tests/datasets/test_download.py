from __future__ import annotations

import hashlib
import io
import socket
import zipfile
from pathlib import Path

import pytest

from fairmp.datasets.download import DownloadError, NotThereError, download, sha256_of
from fairmp.datasets.raw import cache_home, fetch
from fairmp.datasets.sources import NBA, RawFile, Source
from fairmp.errors import InputError

BODY = b"user_id,SALARY\n1,0\n" * 2000
SUM = hashlib.sha256(BODY).hexdigest()


def quick(url: str, path: Path, sha256: str = SUM, attempts: int = 3) -> None:
    download(url, path, sha256=sha256, attempts=attempts, wait=0.001)


def test_a_whole_file_arrives_as_it_is(server, tmp_path):
    server.serve("/nba.csv", BODY)
    quick(f"{server.url}/nba.csv", tmp_path / "new" / "nba.csv")
    assert (tmp_path / "new" / "nba.csv").read_bytes() == BODY
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["nba.csv"]


@pytest.mark.parametrize("known", ["", SUM[:8]])
def test_a_sum_known_in_part_is_checked_as_far_as_it_goes(server, tmp_path, known):
    server.serve("/a", BODY)
    quick(f"{server.url}/a", tmp_path / "a", sha256=known)
    assert sha256_of(tmp_path / "a") == SUM


def test_a_truncated_file_is_tried_again_then_refused_and_not_kept(server, tmp_path):
    server.serve("/a", BODY[:100], claim=len(BODY))
    with pytest.raises(
        DownloadError, match=r"a: .*3 tries \(cut short: 100 of 38,000 bytes came\)"
    ):
        quick(f"{server.url}/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert len(server.asked) == 3


def test_a_truncated_file_that_is_whole_the_second_time(server, tmp_path):
    server.pages["/a"] = lambda asked: (200, BODY[: 100 if asked == 1 else None], len(BODY))
    quick(f"{server.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("known", [SUM, SUM[:8]])
def test_a_corrupted_file_is_refused_and_the_old_one_stays(server, tmp_path, known):
    (tmp_path / "a").write_text("the old one")
    server.serve("/a", BODY.replace(b"0", b"1"))
    with pytest.raises(DownloadError, match="corrupted") as caught:
        quick(f"{server.url}/a", tmp_path / "a", sha256=known)
    assert known in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the old one"]


def test_not_there_is_said_at_once(server, tmp_path):
    with pytest.raises(NotThereError, match="HTTP 404"):
        quick(f"{server.url}/a", tmp_path / "a")
    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_stumbling_server_is_asked_again(server, tmp_path):
    server.pages["/a"] = lambda asked: (500, b"", None) if asked < 3 else (200, BODY, None)
    quick(f"{server.url}/a", tmp_path / "a")
    assert len(server.asked) == 3


def test_a_server_that_stays_down(server, tmp_path):
    server.pages["/a"] = lambda _: (503, b"", None)
    with pytest.raises(DownloadError, match=r"2 tries \(HTTP 503"):
        quick(f"{server.url}/a", tmp_path / "a", attempts=2)


def test_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/a"
        with pytest.raises(DownloadError, match="in 2 tries"):
            quick(url, tmp_path / "a", attempts=2)


def test_an_address_that_is_none(tmp_path):
    with pytest.raises(DownloadError, match="no address"):
        quick("nowhere", tmp_path / "a")


def test_the_progress_bar_goes_to_the_error_stream_when_asked_for(server, tmp_path, capsys):
    server.serve("/a", BODY)
    download(f"{server.url}/a", tmp_path / "nba.csv", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nba.csv" in captured.err
    download(f"{server.url}/a", tmp_path / "nba.csv")
    assert capsys.readouterr().err == ""


def made_up(archive_url: str = "") -> Source:
    edges = b"1 2\n"
    return Source(
        key="made-up",
        title="Made up",
        class_name="MadeUp",
        folders=("made_up",),
        files={
            "nodes": (RawFile("nodes.csv", SUM),),
            "edges": (
                RawFile("edges.txt", hashlib.sha256(edges).hexdigest()),
                RawFile("other_edges.txt", url=archive_url),
            ),
        },
    )


def test_fetch_downloads_what_is_missing_to_the_cache_once(server, no_data):
    server.serve("/made_up/nodes.csv", BODY)
    server.serve("/made_up/edges.txt", b"1 2\n")
    found = fetch(made_up(), mirror=server.url)
    assert [file.path.parent for file in found] == [cache_home() / "raw" / "made_up"] * 2
    asked = len(server.asked)
    assert fetch(made_up(), mirror=server.url) == found
    assert len(server.asked) == asked


def test_fetch_goes_to_the_folder_one_names_and_the_mirror_may_be_in_the_environment(
    server, no_data, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAIRMP_MIRROR", f"{server.url}/copy/")
    server.serve("/copy/made_up/nodes.csv", BODY)
    server.serve("/copy/made_up/edges.txt", b"1 2\n")
    fetch(made_up(), tmp_path)
    assert sorted(file.name for file in (tmp_path / "made_up").iterdir()) == [
        "edges.txt",
        "nodes.csv",
    ]


def zipped(name: str, body: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr(name, body)
    return buffer.getvalue()


def test_an_alternative_inside_an_archive(server, no_data, tmp_path):
    server.serve("/made_up/nodes.csv", BODY)
    server.serve("/made_up/other_edges.txt.zip", zipped("deep/other_edges.txt", b"3 4\n"))
    found = fetch(made_up("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert found[1].path.read_bytes() == b"3 4\n"
    assert found[1].sum_known == "unknown"
    assert sorted(file.name for file in (tmp_path / "made_up").iterdir()) == [
        "nodes.csv",
        "other_edges.txt",
    ]


def test_an_archive_that_lies_in_the_folder_already(server, no_data, tmp_path):
    (tmp_path / "nodes.csv").write_bytes(BODY)
    (tmp_path / "other_edges.txt.zip").write_bytes(zipped("other_edges.txt", b"3 4\n"))
    found = fetch(made_up("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert found[1].path.read_bytes() == b"3 4\n"
    assert (tmp_path / "other_edges.txt.zip").exists()


def test_an_archive_without_the_file(server, no_data, tmp_path):
    server.serve("/made_up/nodes.csv", BODY)
    server.serve("/made_up/other_edges.txt.zip", zipped("else.txt", b"3 4\n"))
    with pytest.raises(InputError, match=r"holds no other_edges\.txt; it holds else\.txt"):
        fetch(made_up("http://x/other_edges.txt.zip"), tmp_path, mirror=server.url)
    assert [file.name for file in (tmp_path / "made_up").iterdir()] == ["nodes.csv"]


def test_the_published_sum_guards_the_real_names(server, no_data, tmp_path):
    server.serve("/nba/nba.csv", BODY)
    with pytest.raises(DownloadError, match=r"corrupted .*FAIRMP_DATA"):
        fetch(NBA, tmp_path, mirror=server.url)
    assert list((tmp_path / "nba").iterdir()) == []


def test_what_has_no_public_home_says_so(no_data, tmp_path):
    with pytest.raises(DownloadError, match=r"nodes\.csv: no public home is known .*FAIRMP_DATA"):
        fetch(made_up(), tmp_path)


def test_nothing_at_the_mirror_says_which_address(server, no_data, tmp_path):
    with pytest.raises(DownloadError, match=r"/made_up/nodes\.csv answers HTTP 404.*FAIRMP_DATA"):
        fetch(made_up(), tmp_path, mirror=server.url)
