"""Rivals that are tuned, and run on splits of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import external
from experiments.external import SWITCHED_OFF
from experiments.parts import Task
from experiments.provenance import code_hash
from experiments.rivals.tuning import GRIDS, METHODS, choose, settings_of
from fairmp.comparison.external import load_method
from fairmp.datasets import social_network


def test_command_tunes_once_fits_every_split_and_continues(
    experiments: Any, tmp_path: Path
) -> None:
    words = "external --quick --graph embedded:240 --split 3 --split 4 --out r --jobs 1"
    status, out, err = experiments(words)
    assert status == 0, err
    assert all(name in out for name in METHODS)
    record = json.loads((tmp_path / "r" / "rivals.json").read_text("utf8"))
    tuned = record["tuned"]["embedded:240"]
    assert list(tuned) == list(METHODS)
    for title, trials in tuned.items():
        assert [trial["settings"] for trial in trials["trials"]] == settings_of(title)
        assert trials["settings"] in settings_of(title)
    assert [(fit["data"], fit["split"]) for fit in record["records"]] == [
        ("embedded:240", 3),
        ("embedded:240", 4),
    ]
    rows = {*METHODS, *SWITCHED_OFF}
    assert all(set(fit["rows"]) == rows for fit in record["records"])
    status, _, err = experiments(words)
    assert status == 0, err
    assert err.count("0 to go") == 2


def test_switched_off_network_has_the_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    data = social_network(n=300, seed=1)
    monkeypatch.setattr(external, "from_files", lambda name, folder: data)
    ran: list[tuple[str, dict[str, Any]]] = []

    def run(title: str, data: Any, device: str, settings: dict[str, Any]) -> dict[str, Any]:
        ran.append((title, settings))
        return {"test": dict.fromkeys(external.FIGURES, 0.5)}

    monkeypatch.setattr(external, "_run", run)
    tuned = {
        "a": {
            "NIFTY": {"settings": {"similarity": 0.4, "lr": 0.1}},
            "FairGNN": {"settings": {"alpha": 1.0, "beta": 2.0}},
        }
    }
    for row in SWITCHED_OFF:
        task = Task("a", 3, row)
        external._measure(task, data_dir=None, device="cpu", quick=False, tuned=tuned)
    assert ran == [("FairGNN, no fairness part", {}), ("NIFTY, no fairness part", {"lr": 0.1})]


def test_interventions_are_paired_and_need_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(accuracy: float) -> dict[str, dict[str, float]]:
        off = {"accuracy": accuracy, "dp": 0.1, "eo": 0.0}
        fair = {"accuracy": accuracy - 0.02, "dp": 0.04, "eo": 0.0}
        return {"NIFTY": fair, "NIFTY, switched off": off, "FairGNN": fair}

    by_split = {("nba", split): rows(0.5 + 0.1 * split) for split in range(5)}
    monkeypatch.setattr(external, "recorded", lambda: by_split)
    [[graph, method, *cells]] = external.interventions().rows
    assert (graph, method) == ("NBA", "NIFTY")
    assert cells[2:] == ["-2.0 ± 0.0", "-6.0 ± 0.0"]  # although accuracy differs by split
    del by_split["nba", 3]["NIFTY, switched off"]
    assert external.interventions().rows == []


def test_committed_record_of_this_code_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures = {"accuracy": 0.5, "dp": 0.1, "eo": 0.0}
    record = {
        "code": code_hash("rivals"),
        "tuned": {"nba": {title: {"settings": {}, "trials": []} for title in METHODS}},
        "records": [{"data": "nba", "split": 21, "rows": {"NIFTY": figures}}],
    }
    monkeypatch.setattr(external, "exists", lambda name: True)
    monkeypatch.setattr(external, "read", lambda name: record)
    measured = external._committed(20)
    assert set(measured) == {
        *(Task("nba", 20, part) for part in external.TRIALS),
        Task("nba", 21, "NIFTY"),
    }
    record["code"] = "another"
    assert external._committed(20) == {}


@pytest.mark.parametrize("title", METHODS)
def test_rivals_have_nine_settings_that_their_constructors_take(title: str) -> None:
    settings = settings_of(title)
    assert len(settings) == 9
    assert set(GRIDS) == set(METHODS)
    for chosen in settings:
        load_method(METHODS[title])(**chosen)


def test_accuracy_chooses_a_backbone_and_the_gap_a_fair_method() -> None:
    figures = iter(
        {"accuracy": 0.8 + 0.004 * number, "dp": 0.05 + 0.01 * number} for number in range(9)
    )
    backbone = choose("NIFTY, no fairness part", lambda settings: next(figures))
    assert backbone["settings"] == settings_of("NIFTY, no fairness part")[-1]
    figures = iter(
        {"accuracy": 0.8 + 0.004 * number, "dp": 0.05 + 0.01 * number} for number in range(9)
    )
    fair = choose("NIFTY", lambda settings: next(figures))
    assert fair["settings"] == settings_of("NIFTY")[6]  # within a point of the highest accuracy
