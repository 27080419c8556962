"""Records that are made again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments import ROOT, remake
from experiments.provenance import KNOWN_STALE, code_hash, recorded_codes, scope_of
from experiments.remake import RECIPES, Recipe, forget_fresh, main, run_recipe, stale_records


def write_record(results: Path, name: str, code: str | None) -> None:
    (results / f"{name}.json").write_text(json.dumps({"code": code}), "utf8")


def test_stale_records_are_those_of_other_code_and_absent_ones(tmp_path: Path) -> None:
    write_record(tmp_path, "odds", code_hash(scope_of("odds")))
    write_record(tmp_path, "decisions", "another")
    write_record(tmp_path, "of-another-machine", None)
    stale = stale_records(tmp_path)
    assert "odds" not in stale
    assert {"decisions", "of-another-machine", "group-free"} <= set(stale)


def test_fresh_records_leave_the_list(tmp_path: Path) -> None:
    write_record(tmp_path, "odds", code_hash(scope_of("odds")))
    write_record(tmp_path, "decisions", "another")
    listed = {"odds": "of an earlier version", "decisions": "of an earlier version"}
    (tmp_path / KNOWN_STALE).write_text(json.dumps(listed), "utf8")
    forget_fresh(tmp_path)
    assert list(json.loads((tmp_path / KNOWN_STALE).read_text("utf8"))) == ["decisions"]


def test_recipe_puts_its_file_in_place_unless_a_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(remake, "ROOT", tmp_path)
    monkeypatch.setattr(remake, "RESULTS", results)
    (tmp_path / "made.json").write_text("{}", "utf8")
    assert run_recipe(Recipe(("one",), ("platform",), ("made.json",)), jobs=1)
    assert (results / "one.json").read_text("utf8") == "{}"
    assert not run_recipe(Recipe(("two",), ("no_such_module",), ("made.json",)), jobs=1)
    assert not (results / "two.json").exists()


def test_recipe_sets_threads_and_device_and_packs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remake, "ROOT", tmp_path)
    monkeypatch.setattr(remake, "RESULTS", tmp_path)
    program = "import json, os, sys\n"
    program += "line = [*sys.argv[1:], os.environ['OMP_NUM_THREADS']]\n"
    program += "open('runs.jsonl', 'w').write(json.dumps(line))\n"
    (tmp_path / "writer.py").write_text(program, "utf8")
    command = f"writer 'two words' {remake.JOBS} {remake.DEVICE}"
    assert run_recipe(Recipe(("runs",), (command,), ("runs.jsonl",), threads=3), 5, "cuda")
    packed = (tmp_path / "runs.jsonl.gz").read_bytes()
    assert json.loads(gzip.decompress(packed)) == ["two words", "5", "cuda", "3"]


def test_gpu_records_are_left_out_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def run(recipe: Recipe, jobs: int, device: str) -> bool:
        tried.extend(recipe.records)
        return True

    monkeypatch.setattr(remake, "stale_records", lambda: ["odds", "epoch-gpu"])
    monkeypatch.setattr(remake, "run_recipe", run)
    monkeypatch.setattr(remake, "forget_fresh", lambda: None)
    monkeypatch.setattr(remake.doc_tables, "main", lambda arguments: 0)
    assert main(["--run"]) == 0
    assert tried == ["odds"]
    tried.clear()
    assert main(["--run", "--device", "cuda", "epoch-gpu", "decisions"]) == 0
    assert tried == ["epoch-gpu"]  # decisions are fresh


def test_each_committed_record_has_one_recipe() -> None:
    names = [name for recipe in RECIPES for name in recipe.records]
    assert len(names) == len(set(names))
    assert set(names) == set(recorded_codes())


# The code that stamps a record, where it is not the module of the command.
STAMPED_IN = {
    "experiments.bare_grid": "experiments/bare_grid.py",
    "experiments external": "experiments/external.py",
    "experiments synthetic": "experiments/synthetic.py",
    "experiments attribution": "experiments/attribution.py",
    "experiments published": "experiments/options.py",
    "experiments runtime": "experiments/runtime.py",
    "experiments unknown": "experiments/unknown.py",
    "tests.fuzz": "tests/fuzz/__main__.py",
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.records[0])
def test_commands_stamp_their_records_with_the_scope_of_the_check(recipe: Recipe) -> None:
    [scope] = {scope_of(name) for name in recipe.records}
    module, argument, *_ = [*recipe.commands[-1].split(), ""]
    where = STAMPED_IN.get(f"{module} {argument}") or STAMPED_IN.get(module)
    source = (ROOT / (where or f"{module.replace('.', '/')}.py")).read_text("utf8")
    calls = [f'{call}("{scope}")' for call in ("provenance", "code_hash", "stamp")]
    assert any(call in source for call in calls) or (scope == "models" and "stamp()" in source)


def test_every_recipe_names_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in RECIPES:
        assert not recipe.made or len(recipe.made) == len(recipe.records)
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no command makes nothing" in capsys.readouterr().err
