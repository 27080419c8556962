"""``fairmp bench``: the table, its ratios, and wrong options."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairmp.cli import main
from fairmp.comparison import speed

NETWORKS = list(speed.networks(speed.random_problem(40, 80, 4)))
SMALL = ("--nodes", "300", "--edges", "1200", "--features", "4", "--rounds", "1", "--device", "cpu")


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairmp", "bench", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_standard_output_equals_the_file(tmp_path: Path) -> None:
    done = bench(*SMALL, "--json", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "bench.json").read_text())
    assert list(found["milliseconds"]) == NETWORKS
    mlp = found["milliseconds"][speed.MLP_ALONE]
    for name, time in found["milliseconds"].items():
        assert found["times_the_mlp"][name] == pytest.approx(time / mlp)
    assert found["graph"]["directed_edges"] == 1200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "'tpu' is unknown"),
        (("--nodes", "3"), "--nodes"),
        (("--out", "full"), "not empty"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fairmp", "bench", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_the_table_lists_every_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["fairmp", "bench", *SMALL])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    shown = capsys.readouterr().out
    assert all(name in shown for name in NETWORKS)
    assert "300 nodes" in shown


def test_every_network_learns() -> None:
    """What is timed is training: each network's loss falls."""
    data = speed.random_problem(400, 1600, 6)
    for name, make in speed.networks(data).items():
        network = make()
        optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
        losses = []
        for _ in range(15):
            optimiser.zero_grad()
            logits = network(data.x)[data.train_mask]
            loss = torch.nn.functional.cross_entropy(logits, data.y[data.train_mask])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0], name


def test_the_graph_of_the_scale_benchmark_is_symmetric_and_of_one_degree() -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "scale.py"
    graph = runpy.run_path(str(path))["regular_graph"](50, 6)
    dense = graph @ torch.eye(50)
    torch.testing.assert_close(dense, dense.T)
    torch.testing.assert_close(dense.sum(1), torch.ones(50))
