from __future__ import annotations

import csv
import html
import json
from pathlib import Path

from fairmp import FairClassifier
from fairmp.report.from_results import document_of
from fairmp.tuning import page
from fairmp.tuning.space import Method
from tests.tuning.helpers import short_search, small


def test_written_files_agree_with_the_search(tmp_path: Path) -> None:
    tuned = short_search(goal="front", splits=2)
    commands = page.Commands(train="fairmp train", panel="", rerun="fairmp tune")
    best = page.write(tuned, tmp_path, small(), commands)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"best.json", "front.csv", "trials.csv", "tradeoff.png", "tradeoff.svg"} | {
        "model",
        "report.html",
        "report.json",
    }
    assert json.loads((tmp_path / "best.json").read_text(encoding="utf-8")) == best
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text(encoding="utf-8").splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in tuned.front]
    accuracies = [float(row["validation_accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies)
    assert sum(int(row["chosen"]) for row in rows) == 1
    assert all(row["test_accuracy"] for row in rows)
    model = FairClassifier.load(tmp_path / "model")
    test = model.evaluate(small(), nodes=small().test_mask, bootstrap=0)
    assert test.accuracy == best["chosen"]["model_test"]["accuracy"]
    text = html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert best["chosen"]["python"] in text
    document = document_of(tmp_path)
    assert document["metrics"][0]["after"] == best["chosen"]["model_test"]["accuracy"]
    assert document["lines"].rows == page.figures_table(tuned)
    header, shown = page.front_table(tuned, 2)
    assert len(shown) == min(2, len(tuned.front))
    assert len(header) == len(shown[0])


def test_unmet_goal_is_said() -> None:
    tuned = short_search(goal=0.0, method=Method("gcn", epochs=3), space=["hidden=8"], trials=2)
    assert f"trial {tuned.chosen.number}" in page.not_met(tuned)
    assert page.not_met(tuned) in page.summary(tuned)


def test_trials_are_records_with_the_chosen_one_first() -> None:
    tuned = short_search(trials=3)
    records = page.trial_records(tuned)
    assert records[0]["name"] == f"trial {tuned.chosen.number}"
    assert len({record["key"] for record in records}) == 3
    assert records[0]["run"]["test"]
    assert not records[1]["run"]["test"]
