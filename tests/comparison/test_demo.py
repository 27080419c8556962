from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairmp.comparison import demo
from fairmp.datasets import social_network


def test_projection_closes_the_gap_in_every_step_and_the_printed_steps_hardly_move() -> None:
    data = social_network(n=600, average_degree=8)
    model = demo.methods(epochs=30)[demo.PLAIN]
    model.fit(data, bootstrap=0, progress=False)
    gaps = demo.gaps_by_step(model, data)
    assert all(len(by_step) == 1 + demo.K for by_step in gaps.values())
    assert gaps["projection"][0] > 0.02
    assert max(gaps["projection"][1:]) < 1e-3
    assert gaps["paper"][-1] == pytest.approx(gaps["no correction"][-1], rel=0.05)


def test_run_writes_records_model_and_a_report_with_its_commands(tmp_path: Path) -> None:
    short = demo.methods(epochs=5)
    classifiers = {name: short[name] for name in (demo.PLAIN, demo.FAIR)}
    commands = demo.Commands("rerun this", "train those")
    trained: list[str] = []
    shown = demo.run(
        600, 2, 0, tmp_path, commands, classifiers=classifiers, workers=1, advance=trained.append
    )
    assert sorted(trained) == sorted([*classifiers, *classifiers])
    assert [line.name for line in shown.lines] == list(classifiers)
    stored = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in stored] == [r["name"] for r in shown.records]
    assert (tmp_path / "model").is_dir()
    page = (tmp_path / "report.html").read_text("utf8")
    assert "rerun this" in page
    assert "train those" in page
    document = json.loads((tmp_path / "report.json").read_text("utf8"))
    fair = next(line for line in shown.lines if line.name == demo.FAIR)
    mean = f"{100 * fair.figures['accuracy'].mean:.1f} %"
    over_splits, first_split = document["summary"].split(" Split 1: ")
    assert "over 2 splits" in over_splits
    assert mean in over_splits
    assert "Accuracy is" in first_split
    assert all(not criterion["command"] for criterion in document["panel"]["criteria"])
