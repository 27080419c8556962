from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from fairmp import InputError, outputs
from fairmp.outputs import atomic_file, check_free, exclusive, free_name, hold, into, results


def test_results_appear_in_one_step(tmp_path: Path) -> None:
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
def test_results_leave_nothing_after_an_error(tmp_path: Path, failure: type[BaseException]) -> None:
    def fail() -> None:
        with results(tmp_path / "out") as folder:
            (folder / "half").write_text("…")
            raise failure

    with pytest.raises(failure):
        fail()
    assert not list(tmp_path.iterdir())


def test_results_refuse_a_folder_with_files(tmp_path: Path) -> None:
    mine = tmp_path / "out"
    mine.mkdir()
    (mine / "mine.txt").write_text("mine")
    with pytest.raises(InputError) as error, results(mine):
        pytest.fail("work was started")
    assert (error.value.argument, "{overwrite" in error.value.hint) == ("out", True)
    with results(mine, overwrite=True) as folder:
        (folder / "new.txt").write_text("new")
    assert sorted(p.name for p in mine.iterdir()) == ["mine.txt", "new.txt"]
    assert (mine / "mine.txt").read_text() == "mine"
    with pytest.raises(InputError, match="file"):
        check_free(mine / "mine.txt", overwrite=True)


def test_free_name_counts_up(tmp_path: Path) -> None:
    stem = str(tmp_path / "run")
    assert free_name(stem) == Path(stem)
    Path(stem).mkdir()
    Path(stem + "-2").mkdir()
    assert free_name(stem) == Path(stem + "-3")


def test_check_free_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (Path("/proc/x/y"), tmp_path / ("x" * 300), tmp_path / "file" / "out"):
        with pytest.raises(InputError, match="cannot be written") as error:
            check_free(path, overwrite=False)
        assert error.value.argument == "out"
        assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_check_free_leaves_nothing_behind(tmp_path: Path) -> None:
    check_free(tmp_path / "a" / "b" / "c", overwrite=False)
    assert not list(tmp_path.iterdir())


def test_results_with_a_long_name(tmp_path: Path) -> None:
    long = tmp_path / ("ä" * 120)
    with results(long) as folder:
        (folder / "a").write_text("a")
    assert [path.name for path in long.iterdir()] == ["a"]


STAGING = re.compile(r"\.out-[a-z0-9_]{8}\.partial")
HOLDER = """
import sys, time
from pathlib import Path
from fairmp import outputs

outputs.hold(Path(sys.argv[1]), overwrite=True)
with outputs.results(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "half").write_text("half")
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "out")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_folder_in_use_is_refused_with_its_owner(tmp_path: Path, holder, monkeypatch) -> None:
    with pytest.raises(InputError, match=rf"process {holder.pid} on .* since"):
        hold(tmp_path / "out", overwrite=True)
    monkeypatch.setattr(outputs, "WAIT_S", 0.1)
    with pytest.raises(InputError, match=str(holder.pid)), results(tmp_path / "out"):
        pytest.fail("two processes write")
    assert free_name(str(tmp_path / "out")) == tmp_path / "out-2"


def test_results_wait_for_the_owner(tmp_path: Path, holder) -> None:
    holder.stdin.close()
    with results(tmp_path / "out", overwrite=True) as folder:
        (folder / "a").write_text("a")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "half"]
    assert os.listdir(tmp_path) == ["out"]


def test_next_run_removes_what_a_killed_one_left(tmp_path: Path, holder) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    [left] = os.listdir(tmp_path)
    assert STAGING.fullmatch(left)
    assert free_name(str(tmp_path / "out")) == tmp_path / "out"
    with results(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["a"]


def test_release_removes_the_staging_directory(tmp_path: Path) -> None:
    hold(tmp_path / "deep" / "out", overwrite=False)
    hold(tmp_path / "deep" / "out", overwrite=False)
    [staging] = os.listdir(tmp_path / "deep")
    assert STAGING.fullmatch(staging)
    outputs.release()
    assert not list(tmp_path.iterdir())


def test_into_uses_the_folder_that_is_held(tmp_path: Path) -> None:
    with into(tmp_path) as folder:
        assert folder == tmp_path
    hold(tmp_path / "out", overwrite=False)
    with into(tmp_path / "out") as folder:
        assert folder != tmp_path / "out"
        (folder / "a").write_text("a")
    assert os.listdir(tmp_path / "out") == ["a"]


@pytest.mark.parametrize("keep", [True, False])
def test_results_keep_or_remove_older_files(tmp_path: Path, keep: bool) -> None:
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


def test_crash_between_two_renames_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    with results(out) as folder:
        (folder / "a").write_text("old")
    real, calls = os.rename, []

    def rename(*paths: object) -> None:
        calls.append(paths)
        if len(calls) == 2:
            os._exit(7)
        real(*paths)

    process = os.fork()
    if process == 0:
        monkeypatch.setattr(os, "rename", rename)
        with results(out, overwrite=True) as folder:
            (folder / "a").write_text("new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    assert not out.exists()
    hold(out, overwrite=True)
    assert (out / "a").read_text() == "old"
    outputs.release()
    assert os.listdir(tmp_path) == ["out"]


def test_error_between_two_renames_loses_nothing(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    with results(out) as folder:
        (folder / "a").write_text("old")
    real = os.rename

    def rename(source: Path, goal: Path) -> None:
        if source.name == "new":
            raise KeyboardInterrupt
        real(source, goal)

    def write() -> None:
        with results(out, overwrite=True) as folder:
            (folder / "a").write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            write()
    assert (out / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_results_keep_the_working_directory(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    inode = out.stat().st_ino
    with results(Path()) as folder:
        (folder / "a").write_text("a")
    assert (out.stat().st_ino, os.listdir(".")) == (inode, ["a"])


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(tmp_path: Path, monkeypatch, code: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with results(tmp_path / "out") as folder:
        (folder / "a").write_text("a")
    (tmp_path / ".b-0123abcd.partial").mkdir()  # perhaps in use
    with atomic_file(tmp_path / "b") as draft:
        draft.write_text("b")
    assert sorted(os.listdir(tmp_path)) == [".b-0123abcd.partial", "b", "out"]


def test_exclusive_is_for_one_process(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with exclusive(path):
        with pytest.raises(InputError) as error, exclusive(path):
            pytest.fail("two processes write")
        assert error.value.argument == "out"
    with exclusive(path):
        pass
    assert not list(tmp_path.iterdir())


def test_atomic_file_removes_stale_drafts_only(tmp_path: Path) -> None:
    goal = tmp_path / "a[1].csv"
    stale = tmp_path / ".a[1].csv-0123abcd.partial"
    stale.mkdir()
    (stale / ".owner").write_text("process 1 on a host since 00:00\na[1].csv\n")
    (stale / "new").mkdir()
    (stale / "new" / "a[1].csv").write_text("half")
    with atomic_file(goal) as one, atomic_file(goal) as two:
        one.write_text("one")
        two.write_text("two")
        assert {one.parents[1].name, two.parents[1].name} == set(os.listdir(tmp_path))
    assert (goal.read_text(), os.listdir(tmp_path)) == ("one", ["a[1].csv"])


def test_atomic_file_new_replaces_none(tmp_path: Path) -> None:
    goal = tmp_path / "a"

    def write() -> None:
        with atomic_file(goal, new=True) as draft:
            draft.write_text("ours")
            goal.write_text("theirs")

    with pytest.raises(InputError) as error:
        write()
    assert error.value.argument == "out"
    assert (goal.read_text(), os.listdir(tmp_path)) == ("theirs", ["a"])


PRECIOUS = {"new/thesis.tex": "mine", "old/thesis.tex": "older", ".lock": ""}


def plant(folder: Path, owner: str | None = None) -> None:
    """Make a directory with the layout of a staging directory."""
    for name, text in PRECIOUS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if owner is not None:
        (folder / ".owner").write_text(owner)


def contents(folder: Path) -> dict[str, str | None]:
    """Every path below a folder, with the text of the files."""
    paths = sorted(folder.rglob("*"))
    return {str(path): path.read_text() if path.is_file() else None for path in paths}


FOREIGN = {  # directories that look like ours and are not
    "no mark": None,
    "another program's": "someone else\nout\n",
    "another goal's": "process 1 on a host since 00:00\nout2\n",
    "of an older format": "process 1 on a host since 00:00",
}


@pytest.mark.parametrize("owner", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("is_link", [True, False])
@pytest.mark.parametrize("name", [".out.partial", ".out-aaaaaaaa.partial"])
def test_results_leave_folders_of_others_alone(
    tmp_path: Path, name: str, is_link: bool, owner: str | None
) -> None:
    folder = tmp_path / ("precious" if is_link else name)
    plant(folder, owner)
    if is_link:
        (tmp_path / name).symlink_to(folder)
    before = contents(tmp_path)
    for _ in range(2):
        with results(tmp_path / "out", overwrite=True) as staging:
            (staging / "a").write_text("a")
        with atomic_file(tmp_path / "out" / "a") as draft:
            draft.write_text("a")
        with exclusive(tmp_path / "out" / "a"):
            pass
    after = contents(tmp_path)
    assert {path for path in after if path not in before} == {
        str(tmp_path / "out"),
        str(tmp_path / "out" / "a"),
    }
    assert {path: after[path] for path in before} == before


def test_mark_in_a_link_is_no_mark(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    plant(precious, "process 1 on a host since 00:00\nout\n")
    (tmp_path / ".out-aaaaaaaa.partial").symlink_to(precious)
    folder = tmp_path / ".out-bbbbbbbb.partial"
    plant(folder)
    (folder / ".owner").symlink_to(precious / ".owner")
    before = contents(tmp_path)
    with results(tmp_path / "out") as staging:
        (staging / "a").write_text("a")
    assert before.items() <= contents(tmp_path).items()


def test_staging_names_differ_and_are_private(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with results(tmp_path / "out", overwrite=True) as staging:
            names.add(staging.parent.name)
            assert staging.parent.stat().st_mode & 0o077 == 0
    assert len(names) == 3


def test_exclusive_touches_no_file_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".a.lock").symlink_to(tmp_path / "target")
    before = contents(tmp_path)
    with exclusive(tmp_path / "a"):
        pass
    assert contents(tmp_path) == before


def test_folder_left_before_its_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".out-aaaaaaaa.partial").mkdir()
    (tmp_path / ".out-bbbbbbbb.partial").mkdir()
    (tmp_path / ".out-bbbbbbbb.partial" / ".lock").touch()
    with results(tmp_path / "out") as staging:
        (staging / "a").write_text("a")
    assert os.listdir(tmp_path) == ["out"]


WRITERS = """
import sys
from pathlib import Path
from fairmp import outputs

goal, number = Path(sys.argv[1]), sys.argv[2]
for _ in range(40):
    with outputs.atomic_file(goal / "file") as draft:
        draft.write_text(number)
for _ in range(10):
    with outputs.results(goal / "deep" / "out", overwrite=True) as folder:
        (folder / "a").write_text(number)
        (folder / "b").write_text(number)
"""


def test_concurrent_processes_write_all_or_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITERS, str(tmp_path), str(number)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    errors = [writer.communicate(timeout=100)[1] for writer in writers]
    assert errors == [""] * 3
    assert sorted(os.listdir(tmp_path)) == ["deep", "file"]
    assert os.listdir(tmp_path / "deep") == ["out"]
    out = tmp_path / "deep" / "out"
    assert (out / "a").read_text() == (out / "b").read_text()


def test_results_leave_neighbours_alone(tmp_path: Path) -> None:
    for name in (".out.old", ".out.tmp", "out.partial", ".out.partial.bak"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    before = set(tmp_path.rglob("*"))
    for text in ("first", "second"):
        with results(tmp_path / "out", overwrite=True) as folder:
            (folder / "a").write_text(text)
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "out", tmp_path / "out" / "a"}
    assert before <= set(tmp_path.rglob("*"))


def test_atomic_file_leaves_drafts_of_others(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "new").mkdir(parents=True)
    (precious / "new" / "thesis.tex").write_text("mine")
    (tmp_path / ".a-link.partial").symlink_to(precious)
    (tmp_path / ".a-folder.partial" / "new").mkdir(parents=True)
    (tmp_path / ".a-file.partial").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with atomic_file(tmp_path / "a") as draft:
        draft.write_text("a")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "a"])


def test_atomic_file_under_concurrent_writers(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with atomic_file(tmp_path / "a") as draft:
            draft.write_text(str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(400)))
    assert os.listdir(tmp_path) == ["a"]
    assert int((tmp_path / "a").read_text()) in range(400)
