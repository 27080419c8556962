"""What is not needed is not imported: it would cost every start a second or more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS_NEED = {
    "duckdb",
    "igraph",
    "jinja2",
    "narwhals",
    "optuna",
    "pandas",
    "pyarrow",
    "rich",
    "typer",
}
HEAVY = {"torch_geometric", "torch._dynamo", "sklearn", "matplotlib"}


def imported(code: str, packages: set[str], folder: Path) -> list[str]:
    """Run Python code, and return which of the packages it has imported."""
    report = f"\nimport sys; print('imported', *({packages!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("imported")[-1].split()


def test_import_fairmp_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    assert imported("import fairmp", {"torch", "numpy"} | COMMANDS_NEED, tmp_path) == []


def test_debias_and_layer_import_nothing_that_only_commands_need(tmp_path: Path) -> None:
    code = """
import fairmp, torch, fairmp.graph, fairmp.nn.models
x, sens = torch.randn(40, 2), torch.arange(40) % 2
fairmp.debias(x, sens)
layer = fairmp.FMP(lambda_s="learned")
layer(x, torch.randint(40, (2, 90)), sens).sum().backward()
layer.solve(x, torch.randint(40, (2, 90)), sens, decisions=True)
"""
    assert imported(code, HEAVY | COMMANDS_NEED, tmp_path) == []


def test_classifier_trains_with_torch_scipy_and_pyg_alone(tmp_path: Path) -> None:
    absent = {"networkx", "numba", "pooch", "safetensors"} | (HEAVY | COMMANDS_NEED)
    absent -= {"torch_geometric", "torch._dynamo"}
    code = f"""
import sys
for name in {absent!r}: sys.modules.pop(name, None)
import torch, torch_geometric
for name in {absent!r}: sys.modules[name] = None
from fairmp import FMP, FairClassifier
from fairmp.datasets import social_network
data = social_network(n=300, average_degree=6)
FairClassifier(FMP(), backbone="mlp", epochs=2).fit(data, progress=False)
"""
    assert imported(code, {"torch_geometric"}, tmp_path) == ["torch_geometric"]


def test_help_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    assert imported(program("train", "--help"), {"torch", "numpy"}, tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [["debias", "table.csv", "--sensitive", "sex", "--out", "out"], ["data", "verify", "nba"]],
)
def test_commands_on_tables_and_files_import_no_pyg(tmp_path: Path, words: list[str]) -> None:
    rows = [f"{(7 * k % 10) / 10},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["probability,sex", *rows]))
    assert imported(program(*words), {"torch_geometric"}, tmp_path) == []


def program(*words: str) -> str:
    return f"""
import sys
from fairmp.cli import main
sys.argv = ["fairmp", *{words!r}]
try: main()
except SystemExit: pass
"""
