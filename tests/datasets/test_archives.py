from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from fairmp.datasets.archives import take_out, unpack
from fairmp.errors import InputError


def make_zip(path: Path, entries: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, body in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            bundle.writestr(info, body, compress_type=zipfile.ZIP_DEFLATED)
    return path


def make_tar(path: Path, *entries: tarfile.TarInfo, body: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for entry in entries:
            entry.size = len(body) if entry.isreg() else 0
            tape.addfile(entry, io.BytesIO(body) if entry.isreg() else None)
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def everything_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_plain_archives_unpack(tmp_path):
    make_zip(tmp_path / "a.zip", {"x/one.txt": b"1", "two.txt": b"2"})
    make_tar(tmp_path / "b.tar.gz", entry("y", tarfile.DIRTYPE), entry("y/three.txt"), body=b"3")
    (tmp_path / "four.txt.gz").write_bytes(gzip.compress(b"4"))
    out = tmp_path / "out"
    for name in ("a.zip", "b.tar.gz", "four.txt.gz"):
        unpack(tmp_path / name, out)
    assert everything_below(out) == ["four.txt", "two.txt", "x/one.txt", "y/three.txt"]
    assert (out / "y" / "three.txt").read_bytes() == b"3"
    assert (out / "four.txt").read_bytes() == b"4"


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "C:\\evil.txt", "..\\evil.txt"]
)
def test_paths_that_leave_the_folder_are_refused(tmp_path, name):
    archives = [
        make_zip(tmp_path / "a.zip", {"good.txt": b"1", name: b"2"}),
        make_tar(tmp_path / "a.tar.gz", entry("good.txt"), entry(name), body=b"2"),
    ]
    for archive in archives:
        with pytest.raises(InputError, match="leaves the folder"):
            unpack(archive, tmp_path / "in" / "out")
    assert everything_below(tmp_path) == ["a.tar.gz", "a.zip"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    archive = make_tar(
        tmp_path / "a.tar.gz", entry("good.txt"), entry("link", kind, "/etc/passwd"), body=b"1"
    )
    with pytest.raises(InputError, match="'link' is a link or a device"):
        unpack(archive, tmp_path / "out")
    assert everything_below(tmp_path / "out") == []


def test_a_link_in_a_zip_is_refused(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"link": b"/etc/passwd"}, stat.S_IFLNK | 0o777)
    with pytest.raises(InputError, match="link"):
        unpack(archive, tmp_path / "out")
    assert everything_below(tmp_path / "out") == []


def test_a_bomb_is_stopped_while_it_unpacks(tmp_path):
    zeros = bytes(5_000_000)
    archives = [
        make_zip(tmp_path / "a.zip", {"one": zeros}),
        make_tar(tmp_path / "a.tar.gz", entry("one"), body=zeros),
        tmp_path / "one.gz",
    ]
    archives[2].write_bytes(gzip.compress(zeros))
    for archive in archives:
        assert archive.stat().st_size < 100_000
        with pytest.raises(InputError, match="more than 1,000,000 bytes"):
            unpack(archive, tmp_path / "out", limit=1_000_000)
        assert everything_below(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.gz"])
def test_a_broken_archive(tmp_path, name):
    (tmp_path / name).write_bytes(b"this is no archive")
    with pytest.raises(InputError, match=f"{name}: cannot be unpacked"):
        unpack(tmp_path / name, tmp_path / "out")


def test_a_gzip_file_cut_short(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(256)) * 99)[:-20])
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpack(tmp_path / "a.gz", tmp_path / "out")
    assert everything_below(tmp_path / "out") == []


def test_no_archive_at_all(tmp_path):
    (tmp_path / "a.csv").write_text("id")
    with pytest.raises(InputError, match="is no archive"):
        unpack(tmp_path / "a.csv", tmp_path / "out")


def test_one_file_taken_out(tmp_path):
    archive = make_zip(tmp_path / "a.zip", {"x/one.txt": b"1", "two.txt": b"2"})
    assert take_out(archive, "one.txt", tmp_path / "out").read_bytes() == b"1"
    assert everything_below(tmp_path / "out") == ["one.txt"]
