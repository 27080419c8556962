"""What does not need PyG or torch's compiler does not wait for their import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = "{'torch_geometric', 'torch._dynamo', 'sklearn', 'matplotlib'}"


def imported(code: str, folder: Path) -> str:
    """Run a program, and return which of the heavy packages it has imported."""
    report = f"\nimport sys; print('imported', sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("imported ")[-1].strip()


def test_debias_and_the_layer(tmp_path: Path) -> None:
    code = """
import fairmp, torch, fairmp.graph, fairmp.nn.models
x, sens = torch.randn(40, 2), torch.arange(40) % 2
fairmp.debias(x, sens)
layer = fairmp.FMP(lambda_s="learned")
layer(x, torch.randint(40, (2, 90)), sens).sum().backward()
layer.solve(x, torch.randint(40, (2, 90)), sens, decisions=True)
"""
    assert imported(code, tmp_path) == "[]"


@pytest.mark.parametrize(
    "arguments",
    [["debias", "table.csv", "--sensitive", "sex", "--out", "out"], ["data", "verify", "nba"]],
)
def test_commands(tmp_path: Path, arguments: list[str]) -> None:
    rows = [f"{(7 * k % 10) / 10},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["probability,sex", *rows]))
    code = f"""
import sys
from fairmp.cli import main
sys.argv = ["fairmp", *{arguments!r}]
try: main()
except SystemExit: pass
"""
    assert "torch_geometric" not in imported(code, tmp_path)
