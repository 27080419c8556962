from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from fairmp.comparison import compare
from fairmp.comparison.grid import (
    PENALTIES,
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
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Adversary, Regulariser

SHORT = Setting(epochs=6, lr=0.02, hidden=8, pretrain=2)
SMALL = "embedded:240"


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


def test_the_defaults_are_those_of_training() -> None:
    ours, theirs = (vars(model) for model in (classifier(RunSpec("nba", "auto")), FairClassifier()))
    assert str(ours.pop("propagation")) == str(theirs.pop("propagation"))
    assert ours == theirs
    old = RunSpec("nba", "fmp", setting=Setting(patience=None))
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
        ({"methods": ["mpl"]}, "methods", "'mpl'"),
        ({"strategies": ["none"]}, "strategies", "'none'"),
        ({"splits": 0}, "splits", "0"),
        ({"setting": Setting(epochs=50)}, "epochs", "50"),
        ({"setting": Setting(solver="newton")}, "solver", "'newton'"),
        ({"methods": ["mlp"], "targets": [1.5]}, "targets", "1.5"),
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
        model.predict_proba(data, nodes=val), data.y[val], sensitive_features=data.sens[val]
    )
    scores = model.predict_proba(data, nodes=test)
    shifted = fitted.shift(scores, sensitive_features=data.sens[test])
    expected = evaluate(shifted, data.y[test], data.sens[test])
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
        with pytest.raises(InputError, match="another process is writing"):
            compare.run(grid, small, path)

    compare.run(grid, small, path, on_record=second)
