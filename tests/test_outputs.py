from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairmp import InputError
from fairmp.outputs import check_free, free_name, results


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
    with pytest.raises(InputError, match=r"not empty.*--overwrite"), results(mine):
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
        with pytest.raises(InputError, match=r"^--out: .*cannot be written to \(") as told:
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
