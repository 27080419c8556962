from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from fairmp.comparison import compare
from fairmp.comparison.grid import STRATEGIES, Setting, classifier, run_specs, trainings
from fairmp.comparison.summary import compared
from fairmp.datasets import social_network
from fairmp.datasets.by_name import from_files
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import evaluate
from fairmp.postprocessing.thresholds import GroupThresholds
from fairmp.report.formats import markdown
from fairmp.training.classifier import FairClassifier

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


def test_thresholds_share_one_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    expected = evaluate(data.y[test], shifted, sensitive_features=data.sens[test])
    [record] = [r for r in records if r["name"] == "MLP + thresholds (validation) target=0.1"]
    assert record["run"]["test"]["accuracy"] == expected.accuracy
    assert record["run"]["test"]["dp"] == expected.dp
    share = torch.bincount(data.y[test]).max() / int(test.sum())
    assert record["majority"] == pytest.approx(float(share))


def test_thresholds_take_the_place_of_the_correction(tmp_path: Path) -> None:
    """Fitted and applied to scores without it: with it, groups would be corrected twice."""
    setting = replace(SHORT, epochs=40)
    grid = run_specs([SMALL], ["fmp"], ["thresholds-val"], splits=1, targets=[0.0], setting=setting)
    [record] = compare.run(grid, small, tmp_path / "r.jsonl")
    data = with_split(small(), seed=0)
    model = classifier(grid[0].training()).fit(small(), split_seed=0, bootstrap=0, progress=False)
    val, test = data.val_mask, data.test_mask
    logits = model.uncorrected()
    fitted = GroupThresholds(0.0, kind="logits").fit(
        logits[val], data.y[val], sensitive_features=data.sens[val]
    )
    shifted = fitted.shift(logits[test], sensitive_features=data.sens[test])
    expected = evaluate(data.y[test], shifted, sensitive_features=data.sens[test])
    assert record["run"]["test"]["accuracy"] == expected.accuracy
    assert record["run"]["test"]["dp"] == expected.dp


@pytest.mark.gpu
def test_every_strategy_runs_on_a_gpu(tmp_path: Path) -> None:
    grid = run_specs([SMALL], ["mlp", "gat", "fmp"], splits=1, setting=SHORT)
    records = compare.run(grid, small, tmp_path / "r.jsonl", device="cuda")
    assert {record["spec"]["strategy"] for record in records} == set(STRATEGIES)
    assert not [record["failed"] for record in records if "failed" in record]


def test_number_of_processes_does_not_change_records(tmp_path: Path) -> None:
    setting = replace(SHORT, epochs=4)
    grid = run_specs(
        [SMALL], ["mlp", "gat", "fmp"], ["vanilla", "adversary"], splits=1, setting=setting
    )
    one = compare.run(grid, from_files, tmp_path / "one.jsonl")
    two = compare.run(grid, from_files, tmp_path / "two.jsonl", workers=2)
    assert not [r["failed"] for r in one if "failed" in r]
    assert figures(one) == figures(two)
    assert table(one) == table(two)


def test_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
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


def test_incomplete_last_line_is_dropped(tmp_path: Path) -> None:
    grid = run_specs([SMALL], ["mlp"], ["vanilla", "regulariser"], splits=1, setting=SHORT)
    whole = tmp_path / "whole.jsonl"
    records = compare.run(grid, small, whole)
    content = whole.read_bytes()
    first = content.index(b"\n") + 1
    part = tmp_path / "part.jsonl"
    for length in (*range(0, len(content), 97), first - 1, first, len(content) - 1, len(content)):
        part.write_bytes(content[:length])
        count = (length >= first) + (length == len(content))
        assert len(compare.read(part)) == count
    for length in (1, first - 1, first, first + 1, len(content) - 1):
        part.write_bytes(content[:length])
        assert figures(compare.run(grid, small, part)) == figures(records)
        assert all(json.loads(line) for line in part.read_bytes().splitlines())


def test_runs_of_another_stamp_are_trained_again(tmp_path: Path) -> None:
    specs = run_specs([SMALL], ["mlp"], ["vanilla"], splits=1, setting=Setting(epochs=1, hidden=4))
    path, stamps = tmp_path / "records.jsonl", ("before", "now", "now")
    trained: list[Any] = []
    for code in stamps:
        [record] = compare.run(specs, small, path, stamp={"code": code}, on_record=trained.append)
        assert record["code"] == code
    assert [record["code"] for record in trained] == ["before", "now"]
    assert compare.missing(specs, compare.read(path), stamp={"code": "before"}) == specs


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n{"key": "b"}\n')
    with pytest.raises(InputError, match="line 1 of"):
        compare.run([], small, path)
    assert path.read_text() == '{"a": 1}\n{"key": "b"}\n'


def test_file_is_written_by_one_process(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "r.jsonl"
    grid = run_specs([SMALL], ["mlp"], ["vanilla"], splits=1, setting=SHORT)

    def second(record: Any) -> None:
        with pytest.raises(InputError, match="is being written to by process"):
            compare.run(grid, small, path)

    compare.run(grid, small, path, on_record=second)


def test_folder_of_another_setting_is_refused(tmp_path: Path) -> None:
    compare.check_folder(tmp_path, SHORT)
    grid = run_specs([SMALL], ["mlp"], ["vanilla"], splits=1, setting=SHORT)
    compare.run(grid, small, tmp_path / compare.RECORDS)
    compare.check_folder(tmp_path, SHORT)
    with pytest.raises(InputError, match="this run has lr") as error:
        compare.check_folder(tmp_path, replace(SHORT, lr=0.1))
    assert error.value.argument == "folder"
    (tmp_path / compare.RECORDS).rename(tmp_path / "other")
    with pytest.raises(InputError, match="not empty"):
        compare.check_folder(tmp_path)
