from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from experiments import RESULTS, grids
from experiments.rivals.tuning import METHODS as RIVALS
from fairmp.comparison import compare
from fairmp.comparison.grid import STRATEGIES, RunSpec, run_specs
from fairmp.datasets import by_name
from tests.experiments.records import DP


def test_printed_figures_are_complete() -> None:
    table = grids.printed()["table1"]
    assert set(table) == {"pokec-z", "pokec-n", "nba"}
    for methods in table.values():
        assert set(methods) == set(DP)
        assert all(len(pair) == 2 for figures in methods.values() for pair in figures.values())
    # A few of the paper's figures, typed again.
    assert table["pokec-z"]["FMP"] == {
        "accuracy": [70.5, 0.5],
        "dp": [0.81, 0.4],
        "eo": [1.73, 1.03],
    }
    assert table["nba"]["GAT"]["dp"] == [20.12, 16.18]
    assert table["pokec-n"]["APPNP"]["eo"] == [4.01, 2.36]


def test_fairgnns_protocol_has_the_counts_of_the_papers_data_table(data_folder: str) -> None:
    data = by_name.from_files("nba+fairgnn", data_folder)
    stated = grids.printed()["statistics"]["nba"]
    assert int(data.train_mask.sum()) == stated["training_labels"]
    outside = ~(data.val_mask | data.test_mask)
    assert int(((data.sens >= 0) & outside).sum()) == stated["known_groups"]


@pytest.mark.parametrize("grid", [grids.table1, grids.published, grids.pareto, grids.runtime])
@pytest.mark.parametrize("quick", [False, True])
def test_fmp_as_printed_is_in_every_grid(grid: grids.Grid, quick: bool) -> None:
    families = {spec.family for spec in grid(["nba"], quick=quick)}
    assert {"FMP", "FMP (paper)"} <= families
    if grid in (grids.table1, grids.published):
        assert "FMP (released)" in families
        assert {method.rpartition(":")[2] for method in RIVALS.values()} <= families
    if grid is grids.pareto:
        penalised = {f"{name} + regulariser" for name in ("MLP", "GCN", "GAT", "SGC")}
        assert penalised <= families


def test_hyperparameters_include_the_literal_gamma() -> None:
    specs = grids.hyperparameters(["nba"])
    literal = {spec.strength for spec in specs if spec.setting.solver == "paper"}
    literal &= {spec.setting.lambda_s for spec in specs if spec.strength == spec.setting.lambda_s}
    assert {0.0, 5.0, 1000.0} <= literal


def test_runtime_has_five_runs() -> None:
    assert {spec.seed for spec in grids.runtime(["nba"])} == set(range(5))


@pytest.mark.parametrize("name", ["pokec-z", "pokec-n"])
def test_table1_adds_the_papers_protocol(name: str) -> None:
    specs = grids.table1([name], splits=2)
    assert {spec.data for spec in specs} == {name, f"{name}+fairgnn"}


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
        ("unsmoothed", None),
        ("runtime", None),
    ],
)
def test_committed_records_are_read(name: str, grid: Any, tmp_path: Path) -> None:
    # Records are found by the key of their spec: it must not change for runs of earlier versions.
    packed = RESULTS / "compare" / f"{name}.jsonl.gz"
    path = tmp_path / "records.jsonl"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    records = compare.read(path)
    assert records
    for record in records:
        spec = RunSpec.from_dict(record["spec"])
        assert (spec.key, spec.name, spec.family) == tuple(
            record[key] for key in ("key", "name", "family")
        )
    if grid is not None:
        names = list(dict.fromkeys(record["data"] for record in records))
        specs = grid(names)
        assert len(compare.missing(specs, records)) < len(specs) / 2  # rows added since
