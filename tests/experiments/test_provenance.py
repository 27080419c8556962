from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import ROOT
from experiments.provenance import (
    COMPARISONS,
    SCOPES,
    SOURCE,
    code_hash,
    known_stale,
    modules,
    normalised,
    problems,
    recorded_codes,
    scope_of,
)

CURRENT = dict.fromkeys(SCOPES, "now")


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    plain = "x = '# no comment'\n\n\ndef f(y):\n    return y + 1\n"
    commented = (
        '"""A module."""\n# why\nx = \'# no comment\'  # here\ndef f(y):\n'
        '    """Add\n    one."""\n    return y + 1  \n'
    )
    assert normalised(plain) == normalised(commented)
    assert normalised(plain) != normalised(plain.replace("+ 1", "+ 2"))
    assert normalised(plain) != normalised(plain.replace("# no comment", "# a comment"))


@pytest.fixture
def copied_source(tmp_path: Path) -> Path:
    names = ("groups.py", "graph.py", "kernels", "nn", "metrics", "training")
    for name in names:
        if (SOURCE / name).is_dir():
            shutil.copytree(SOURCE / name, tmp_path / name)
        else:
            shutil.copy(SOURCE / name, tmp_path / name)
    return tmp_path


def test_hash_changes_with_the_code_of_its_scope_only(copied_source: Path) -> None:
    assert code_hash("layer", copied_source) == code_hash("layer")
    solvers = copied_source / "nn" / "solvers.py"
    changes = {
        "layer": solvers.read_text("utf8").replace("step_size=0.5", "step_size=0.25"),
        "same": "# a comment\n" + solvers.read_text("utf8"),
    }
    for name, text in changes.items():
        solvers.write_text(text, "utf8")
        code_hash.cache_clear()
        assert (code_hash("layer", copied_source) != code_hash("layer")) == (name == "layer")
        assert code_hash("metrics", copied_source) == code_hash("metrics")
        solvers.write_text((SOURCE / "nn" / "solvers.py").read_text("utf8"), "utf8")


def test_stale_records_fail_unless_they_are_listed() -> None:
    codes = {"fresh": {"now"}, "old": {"before"}, "none": {None}, "mixed": {"now", "before"}}
    wrong = problems(codes, {}, CURRENT)
    assert [line.partition(":")[0] for line in wrong] == ["old", "none", "mixed"]
    listed = dict.fromkeys(("old", "none", "mixed"), "waits for the next run")
    assert problems(codes, listed, CURRENT) == []
    [line] = problems(codes, {**listed, "fresh": "forgotten"}, CURRENT)
    assert line.startswith("fresh: fresh")
    [line] = problems(codes, {**listed, "gone": "removed"}, CURRENT)
    assert line.startswith("gone: listed")


def test_codes_are_read_from_both_kinds_of_records(tmp_path: Path) -> None:
    (tmp_path / "compare").mkdir()
    (tmp_path / "epoch.json").write_text('{"command": "x", "code": "a"}')
    (tmp_path / "odds.json").write_text('{"command": "x"}')
    (tmp_path / "stale.json").write_text('{"odds": "old"}')
    lines = [{"code": "a"}, {"code": "b"}, {}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "compare" / "table.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert recorded_codes(tmp_path) == {
        "epoch": {"a"},
        "odds": {None},
        "compare/table": {"a", "b", None},
    }
    assert known_stale(tmp_path) == {"odds": "old"}
    assert (scope_of("epoch"), scope_of("odds")) == ("layer", "models")


def test_comparisons_depend_on_their_runner_and_on_the_rivals() -> None:
    names = {path.name for path in modules("comparison")} - {
        path.name for path in modules("models")
    }
    assert {"compare.py", "external.py", "grid.py", "fairgnn.py", "nifty.py"} <= names
    assert set(modules("models")) < set(modules("comparison"))
    assert {scope_of(f"compare/{name}") for name in COMPARISONS} == {"comparison"}
    assert scope_of("compare/unknown") == "models"


def test_committed_records_are_fresh_or_listed() -> None:
    assert problems(recorded_codes(), known_stale()) == []


def test_check_fails_on_a_stale_record(tmp_path: Path) -> None:
    """The command itself, on a copy with a record of other code that is not listed."""
    for name in ("experiments", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.png"))
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    odds = tmp_path / "benchmarks" / "results" / "odds.json"
    odds.write_text(json.dumps({**json.loads(odds.read_text("utf8")), "code": "another"}), "utf8")
    command = [sys.executable, "-m", "experiments.doc_tables", "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "odds: made by other code than this (models); run it again" in done.stdout
