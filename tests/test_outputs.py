from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairmp import InputError, outputs
from fairmp.outputs import atomic_file, check_free, free_name, hold, results


def test_results_arrive_whole(tmp_path: Path) -> None:
    goal = tmp_path / "deep" / "out"
    with results(goal) as folder:
        (folder / "a.txt").write_text("a")
        (folder / "sub").mkdir()
        (folder / "sub" / "b.txt").write_text("b")
        assert not goal.exists()
    assert (goal / "a.txt").read_text() == "a"
    assert (goal / "sub" / "b.txt").read_text() == "b"
    assert os.listdir(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_a_failure(tmp_path: Path, failure: type[BaseException]) -> None:
    def fail() -> None:
        with results(tmp_path / "out") as folder:
            (folder / "half").write_text("…")
            raise failure

    with pytest.raises(failure):
        fail()
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays(tmp_path: Path) -> None:
    mine = tmp_path / "out"
    mine.mkdir()
    (mine / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty.*overwrite=True"), results(mine):
        pytest.fail("work was started")
    with results(mine, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
    assert sorted(p.name for p in mine.iterdir()) == ["mine.txt", "new.txt"]
    assert (mine / "mine.txt").read_text() == "mine"
    with pytest.raises(InputError, match="is a file"):
        check_free(mine / "mine.txt", overwrite=True)


def test_free_names(tmp_path: Path) -> None:
    stem = str(tmp_path / "run")
    assert free_name(stem) == Path(stem)
    Path(stem).mkdir()
    Path(stem + "-2").mkdir()
    assert free_name(stem) == Path(stem + "-3")


def test_what_can_not_be_written_to_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (Path("/proc/x/y"), tmp_path / ("x" * 300), tmp_path / "file" / "out"):
        with pytest.raises(InputError, match=r"^out: .*cannot be written to \(") as told:
            check_free(path, overwrite=False)
        assert "\n" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_asking_leaves_nothing_behind_and_long_names_have_room(tmp_path: Path) -> None:
    check_free(tmp_path / "a" / "b" / "c", overwrite=False)
    assert not list(tmp_path.iterdir())
    long = tmp_path / ("ä" * 120)
    with results(long) as folder:
        (folder / "a").write_text("a")
    assert [path.name for path in long.iterdir()] == ["a"]


HOLDER = """
import sys, time
from pathlib import Path
from fairmp import outputs

outputs.hold(Path(sys.argv[1]), overwrite=True)
with outputs.results(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "half").write_text("half")
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_and_its_user_named(tmp_path: Path, holder, monkeypatch) -> None:
    with pytest.raises(InputError, match=rf"written to by process {holder.pid} on .* since"):
        hold(tmp_path / "out", overwrite=True)
    monkeypatch.setattr(outputs, "WAIT_S", 0.1)
    with pytest.raises(InputError, match="written to"), results(tmp_path / "out"):
        pytest.fail("two processes write")
    assert free_name(str(tmp_path / "out")) == tmp_path / "out-2"


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path, holder) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert os.listdir(tmp_path) == [".out.partial"]
    assert free_name(str(tmp_path / "out")) == tmp_path / "out"
    with results(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["a"]


def test_a_lock_is_given_up_with_all_it_made(tmp_path: Path) -> None:
    hold(tmp_path / "deep" / "out", overwrite=False)
    hold(tmp_path / "deep" / "out", overwrite=False)
    assert os.listdir(tmp_path / "deep") == [".out.partial"]
    outputs.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [True, False])
def test_older_files_stay_or_go(tmp_path: Path, keep: bool) -> None:
    out = tmp_path / "out"
    (out / "sub").mkdir(parents=True)
    (out / "sub" / "old").write_text("old")
    (out / "a").write_text("old")
    with results(out, overwrite=True, keep=keep) as folder:
        (folder / "a").write_text("new")
        assert (out / "a").read_text() == "old"
    assert (out / "a").read_text() == "new"
    assert (out / "sub" / "old").exists() == keep
    assert os.listdir(tmp_path) == ["out"]


def test_a_crash_between_two_renames_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    with results(out) as folder:
        (folder / "a").write_text("old")
    real, calls = os.rename, []

    def rename(*paths: object) -> None:
        calls.append(paths)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*paths)

    def write() -> None:
        with results(out, overwrite=True) as folder:
            (folder / "a").write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            write()
    assert not out.exists()
    hold(out, overwrite=True)
    assert (out / "a").read_text() == "old"
    outputs.release()
    assert os.listdir(tmp_path) == ["out"]


def test_the_working_directory_keeps_its_name(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    inode = out.stat().st_ino
    with results(Path()) as folder:
        (folder / "a").write_text("a")
    assert (out.stat().st_ino, os.listdir(".")) == (inode, ["a"])


def test_a_draft_left_by_a_killed_process_is_removed(tmp_path: Path) -> None:
    goal = tmp_path / "a[1].csv"
    (tmp_path / ".a[1].csv-0123abcd.partial").write_text("half")
    with atomic_file(goal) as one, atomic_file(goal) as two:
        one.write_text("one")
        two.write_text("two")
        assert {one.name, two.name} == set(os.listdir(tmp_path))
    assert (goal.read_text(), os.listdir(tmp_path)) == ("one", ["a[1].csv"])
