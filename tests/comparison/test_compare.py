from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import graph_files
from torch_geometric.data import Data

from fairmp.comparison import compare
from fairmp.comparison.grid import (
    ADDED,
    PENALTIES,
    STRATEGIES,
    TARGETS,
    RunSpec,
    Setting,
    classifier,
    parse_strengths,
    run_specs,
    trainings,
)
from fairmp.comparison.page import compared
from fairmp.datasets import social_network
from fairmp.datasets.by_name import from_files
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.report.formats import markdown
from fairmp.reproduction import grids
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Regulariser

SHORT = Setting(epochs=6, lr=0.02, hidden=8, pretrain=2)
SMALL = "embedded:240"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results" / "compare"


def small(name: str = SMALL) -> Data:
    return social_network(n=240, average_degree=6)


def table(records: list[dict[str, Any]]) -> str:
    """The table, without the column of times."""
    text = markdown(compared(records).tables())
    return "\n".join(line.rsplit("|", 2)[0] for line in text.splitlines())


def figures(records: list[dict[str, Any]]) -> list[Any]:
    return [(r["key"], r["run"]["test"], r["run"]["val"]) for r in records]


def test_keys_identify_runs() -> None:
    spec = RunSpec("nba", "fmp", "vanilla", 0.02, split=3)
    assert spec.key == replace(spec).key != replace(spec, seed=1).key
    grid = run_specs(["nba", "bail"], strengths="all", splits=2, seeds=2)
    assert len({spec.key for spec in grid}) == len(grid)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        # From before "auto" and per-node prediction.
        (
            "table",
            lambda names: run_specs(names, grids.NETWORKS, STRATEGIES[:-1], setting=grids.RECORDED),
        ),
        ("fairgnn", lambda names: grids.table1(names, splits=5)),
        ("pareto", grids.pareto),
        ("hyperparameters", grids.hyperparameters),
        ("ranges", None),
        ("unsmoothed", None),
        ("runtime", None),
    ],
)
def test_committed_records_are_read(name: str, grid: Any, tmp_path: Path) -> None:
    # Records are found by the key of their spec: it must not change for runs of earlier versions.
    packed = RESULTS / f"{name}.jsonl.gz"
    path = tmp_path / "records.jsonl"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    records = compare.read(path)
    assert records
    for record in records:
        given = record["spec"]
        spec = RunSpec(**given | {"setting": Setting(**ADDED | given["setting"])})
        assert (spec.key, spec.name, spec.family) == tuple(
            record[key] for key in ("key", "name", "family")
        )
    if grid is not None:
        names = list(dict.fromkeys(record["data"] for record in records))
        assert compare.missing(grid(names), records) == []


def test_the_defaults_are_those_of_training() -> None:
    ours, theirs = (vars(model) for model in (classifier(RunSpec("nba", "auto")), FairClassifier()))
    assert str(ours.pop("propagation")) == str(theirs.pop("propagation"))
    assert ours == theirs
    old = RunSpec("nba", "fmp", setting=grids.RECORDED)
    assert classifier(old).patience is None
    spec = json.loads(json.dumps(asdict(old)))
    assert spec["setting"].pop("patience") is None
    assert spec["setting"].pop("calibrate") is True
    text = json.dumps(spec, sort_keys=True).encode()
    assert old.key == hashlib.sha256(text).hexdigest()[:20]
    for change in ({"patience": 7}, {"calibrate": False}):
        assert replace(old, setting=replace(old.setting, **change)).key != old.key


def test_the_grid_has_every_strength() -> None:
    grid = run_specs(["nba"], strengths="all", splits=1)
    penalties = sum(map(len, PENALTIES.values()))
    plain, fair = 1 + penalties + 2 * len(TARGETS), 4 * len(TARGETS) + penalties
    assert len(grid) == 6 * plain + fair + 2 * len(TARGETS)  # auto, in a batch and per node
    default = run_specs(["nba"], splits=1)
    assert len(default) == 7 * 5 + 1 + 2  # and FMP per node, and auto
    assert {c.strength for c in default if c.strategy == "regulariser"} == {5.0}
    papc = run_specs(
        ["nba"], ["fmp"], ["vanilla"], splits=1, targets=[7], setting=Setting(solver="papc")
    )
    assert papc[0].name == "FMP (papc) λ_f=7"
    assert classifier(papc[0]).config()["propagation"]["lambda_f"] == 7.0


def test_a_spec_makes_its_classifier() -> None:
    fair = classifier(RunSpec("nba", "fmp", "regulariser", 2.0, setting=Setting(target=0.1, K=2)))
    assert fair.strategy == Regulariser(2.0)
    assert fair.config()["propagation"]["target"] == 0.1
    assert fair.config()["propagation"]["K"] == 2
    other = classifier(RunSpec("nba", "gat", "adversary", 3.0))
    assert isinstance(other.strategy, Adversary)
    assert other.strategy.h == 3.0
    assert (other.backbone, other.propagation) == ("gat", None)
    behind = RunSpec("nba", "fmp", "thresholds-val", 0.2, setting=Setting(target=0.05))
    assert classifier(behind).config()["propagation"]["target"] == 0.05


@pytest.mark.parametrize(
    ("changed", "argument", "value"),
    [
        ({"backbones": ["mpl"]}, "backbones", "'mpl'"),
        ({"strategies": ["none"]}, "strategies", "'none'"),
        ({"splits": 0}, "splits", "0"),
        ({"setting": Setting(epochs=50)}, "epochs", "50"),
        ({"setting": Setting(solver="newton")}, "solver", "'newton'"),
        ({"backbones": ["mlp"], "targets": [1.5]}, "targets", "1.5"),
    ],
)
def test_a_wrong_grid_is_refused_before_training(
    changed: dict[str, Any], argument: str, value: str
) -> None:
    with pytest.raises(InputError) as refused:
        run_specs(["nba"], **changed)
    assert refused.value.argument == argument
    assert value in str(refused.value.value)


def test_strengths_are_parsed() -> None:
    assert parse_strengths("all", "x") == "all"
    assert parse_strengths("1,2", "x") == [1.0, 2.0]
    for text in ("1,x", "-1", "nan", ""):
        with pytest.raises(InputError) as refused:
            parse_strengths(text, "strengths")
        assert refused.value.argument == "strengths"


def test_thresholds_share_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    fit = FairClassifier.fit

    def counted(self: FairClassifier, *args: Any, **kwargs: Any) -> Any:
        fits.append(self)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(FairClassifier, "fit", counted)
    strategies = ["vanilla", "thresholds-val", "thresholds-batch"]
    grid = run_specs([SMALL], ["mlp"], strategies, splits=1, targets=[0.0, 0.1], setting=SHORT)
    assert len(trainings(grid)) == 1
    records = compare.run(grid, small, tmp_path / "r.jsonl")
    assert (len(records), len(fits)) == (5, 1)
    # What thresholds do, done by hand.
    [model] = fits
    data = with_split(small(), seed=0)
    val, test = data.val_mask, data.test_mask
    fitted = GroupThresholds(0.1).fit(
        model.predict_proba(data, nodes=val), data.y[val], data.sens[val]
    )
    scores = model.predict_proba(data, nodes=test)
    expected = evaluate(fitted.shift(scores, data.sens[test]), data.y[test], data.sens[test])
    [found] = [r for r in records if r["name"] == "MLP + thresholds (validation) target=0.1"]
    assert found["run"]["test"]["accuracy"] == expected.accuracy
    assert found["run"]["test"]["dp"] == expected.dp
    share = torch.bincount(data.y[test]).max() / int(test.sum())
    assert found["majority"] == pytest.approx(float(share))


def test_several_processes_find_what_one_does(tmp_path: Path) -> None:
    setting = replace(SHORT, epochs=4)
    grid = run_specs([SMALL], strategies=["vanilla", "adversary"], splits=1, setting=setting)
    one = compare.run(grid, from_files, tmp_path / "one.jsonl")
    two = compare.run(grid, from_files, tmp_path / "two.jsonl", workers=2)
    assert not [r["failed"] for r in one if "failed" in r]
    assert figures(one) == figures(two)
    assert table(one) == table(two)


def test_a_failing_run_does_not_stop_the_rest(tmp_path: Path) -> None:
    def load(name: str) -> Data:
        if name == "broken":
            raise OSError("disk\non fire")
        return small()

    path = tmp_path / "r.jsonl"
    grid = run_specs(["broken", SMALL], ["mlp"], ["vanilla"], splits=1, setting=SHORT)
    failed, good = compare.run(grid, load, path)
    assert failed["failed"] == "OSError: disk on fire"
    assert good["run"]["test"]["accuracy"] > 0
    assert compared([failed, good]).failed == [failed]
    seen: list[Any] = []
    compare.run(grid, small, path, on_record=seen.append)
    assert seen == []
    again = compare.run(grid, small, path, retry=True, on_record=seen.append)
    assert len(seen) == 1
    assert "failed" not in again[0]
    assert len(compare.read(path)) == 2


def test_a_line_cut_short_anywhere_is_dropped(tmp_path: Path) -> None:
    grid = run_specs([SMALL], ["mlp"], ["vanilla", "regulariser"], splits=1, setting=SHORT)
    whole = tmp_path / "whole.jsonl"
    records = compare.run(grid, small, whole)
    content = whole.read_bytes()
    first = content.index(b"\n") + 1
    part = tmp_path / "part.jsonl"
    for length in range(len(content) + 1):
        part.write_bytes(content[:length])
        count = (length >= first) + (length == len(content))
        assert len(compare.read(part)) == count
    for length in (1, first - 1, first, first + 1, len(content) - 1):
        part.write_bytes(content[:length])
        assert figures(compare.run(grid, small, part)) == figures(records)
        assert all(json.loads(line) for line in part.read_bytes().splitlines())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n{"key": "b"}\n')
    with pytest.raises(InputError, match="line 1 of"):
        compare.run([], small, path)
    assert path.read_text() == '{"a": 1}\n{"key": "b"}\n'


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "r.jsonl"
    grid = run_specs([SMALL], ["mlp"], ["vanilla"], splits=1, setting=SHORT)

    def second(record: Any) -> None:
        with pytest.raises(InputError, match="another run is writing"):
            compare.run(grid, small, path)

    compare.run(grid, small, path, on_record=second)


def test_graphs_survive_the_way_through_a_file(tmp_path: Path) -> None:
    data = small()
    found = graph_files.load(graph_files.save(data, tmp_path / "g.npz"))
    for name in ("x", "edge_index", "y", "sens"):
        assert torch.equal(found[name], data[name])
    assert (found.name, found.group_names) == (data.name, data.group_names)
    assert "train_mask" not in found
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="path: "):
        graph_files.load(tmp_path / "bad.npz")
    with pytest.raises(InputError, match="path: "):
        graph_files.from_npz("nba", tmp_path)


GRID = "--backbones mlp,fmp --strategies vanilla,regulariser,thresholds-val --splits 4 --hidden 8"


def started(folder: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    """The grid in a process of its own, where only what a bare machine has can be imported."""
    absent = ["pandas", "pyarrow", "sklearn", "typer", "rich", "matplotlib", "safetensors"]
    code = (
        "import sys\n"
        f"for name in {absent!r}: sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from grid import main\n"
        "if __name__ == '__main__': sys.exit(main())\n"
    )
    words = [*GRID.split(), "--npz", str(folder), "--out", str(out), "--workers", str(workers)]
    script = folder / "start.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script), *words, "--epochs", "40", "--lr", "0.02"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_killed_at_any_moment_it_goes_on_to_the_same_table(tmp_path: Path) -> None:
    graph_files.save(small(), tmp_path / "small.npz")
    setting = replace(grids.RECORDED, epochs=40, lr=0.02, hidden=8)
    strategies = ["vanilla", "regulariser", "thresholds-val"]
    grid = run_specs(["small"], ["mlp", "fmp"], strategies, splits=4, setting=setting)

    def load(name: str) -> Data:
        return graph_files.from_npz(name, tmp_path)

    undisturbed = compare.run(grid, load, tmp_path / "undisturbed.jsonl")
    out, chance, killed = tmp_path / "killed.jsonl", random.Random(0), 0
    for workers in (2, 1):
        goal = lines_of(out) + chance.randint(1, 5)
        process = started(tmp_path, out, workers)
        while lines_of(out) < goal and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.1)
        children = children_of(process.pid)
        process.kill()
        process.wait()
        assert process.returncode in (0, -signal.SIGKILL)
        killed += process.returncode != 0
        assert wait_for(lambda children=children: not any(map(alive, children)))
    assert killed
    assert 0 < len(compare.read(out)) <= len(grid)
    resumed = compare.run(grid, load, out)
    assert len(grid) == lines_of(out)
    assert figures(resumed) == figures(undisturbed)
    assert table(resumed) == table(undisturbed)


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition: Any, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())
