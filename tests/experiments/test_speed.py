"""``python -m experiments speed``: the table, its ratios, and wrong options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.random_graphs import Size, random_problem
from experiments.timing import MLP_ALONE, networks

NETWORKS = list(networks(random_problem(Size(40, 80, 4))))
SMALL = "--nodes 300 --edges 1200 --features 4 --rounds 1 --device cpu"


def test_standard_output_equals_the_file(experiments, tmp_path: Path) -> None:
    status, out, err = experiments(f"speed {SMALL} --json --out out")
    assert status == 0, err
    record = json.loads(out)
    assert record == json.loads((tmp_path / "out" / "bench.json").read_text())
    assert record["command"] == f"python -m experiments speed {SMALL}"
    assert list(record["milliseconds"]) == NETWORKS
    mlp = record["milliseconds"][MLP_ALONE]
    for name, time in record["milliseconds"].items():
        assert record["times_the_mlp"][name] == pytest.approx(time / mlp)
    assert record["graph"]["directed_edges"] == 1200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--device tpu", "'tpu' is unknown"),
        ("--nodes 3", "--nodes"),
        ("--out full", "not empty"),
    ],
)
def test_wrong_option_is_one_line(arguments: str, words: str, experiments, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    status, _, err = experiments(f"speed {arguments}")
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_table_lists_every_network(experiments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    status, out, _ = experiments(f"speed {SMALL}")
    assert status == 0
    assert all(name in out for name in NETWORKS)
    assert "300 nodes" in out
