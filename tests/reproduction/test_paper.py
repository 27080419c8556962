from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairmp.comparison import compare
from fairmp.comparison.grid import RunSpec, Setting
from fairmp.datasets import by_name
from fairmp.datasets.protocols import fairgnn
from fairmp.metrics import Interval
from fairmp.reproduction import grids, paper
from fairmp.reproduction.experiments import published_tables

DP = {"MLP": 0.05, "GCN": 0.09, "GAT": 0.08, "SGC": 0.08, "APPNP": 0.07, "FMP": 0.001}


def records(data: str, dp: dict[str, float], noise: float = 0.002) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for name, gap in dp.items():
        for split in range(5):
            spec = RunSpec(data, name.lower(), strength=0.0 if name == "FMP" else None, split=split)
            test = {"accuracy": 0.7 + noise * rng.normal(), "dp": gap + noise * rng.normal()}
            test |= {"eo": gap, "auc": 0.8, "f1": 0.6}
            run = {"test": test, "seconds": 1.0 + len(found)}
            found.append(compare._head(spec) | {"dataset": data.upper(), "run": run})
    return found


def test_printed_figures_are_complete() -> None:
    table = grids.printed()["table1"]
    assert set(table) == {"pokec-z", "pokec-n", "nba"}
    for methods in table.values():
        assert set(methods) == set(DP)
        assert all(len(pair) == 2 for own in methods.values() for pair in own.values())
    # A few of the paper's figures, typed again.
    assert table["pokec-z"]["FMP"] == {
        "accuracy": [70.5, 0.5],
        "dp": [0.81, 0.4],
        "eo": [1.73, 1.03],
    }
    assert table["nba"]["GAT"]["dp"] == [20.12, 16.18]
    assert table["pokec-n"]["APPNP"]["eo"] == [4.01, 2.36]


def test_the_paper_beside_ours_and_its_claims() -> None:
    own = records("nba", DP)
    [table] = paper.side_by_side(own)
    fair = next(row for row in table.rows if row[0] == "FMP")
    assert fair[1] == "73.3 ± 1.9 sd"
    assert fair[2] == "69.9 ± 0.2"
    verdicts = {claim.text: claim.verdict for claim in paper.table1_claims(own)}
    assert verdicts == {
        "FMP has the smallest ΔDP": paper.HOLDS,
        "FMP has the smallest ΔEO": paper.HOLDS,
        "FMP is as accurate as an MLP, within a point": paper.HOLDS,
        "Graph networks have a larger ΔDP than an MLP": paper.HOLDS,
    }
    worse = records(
        "german", DP | {"FMP": 0.2, "GCN": 0.01, "GAT": 0.01, "SGC": 0.01, "APPNP": 0.01}
    )
    assert paper.side_by_side(worse) == []  # the paper does not have it
    found = {claim.text: claim for claim in paper.table1_claims(worse)}
    assert found["FMP has the smallest ΔDP"].verdict == paper.FAILS
    assert found["Graph networks have a larger ΔDP than an MLP"].verdict == paper.FAILS
    assert found["FMP has the smallest ΔDP"].printed == "–"


def test_what_the_splits_do_not_decide_is_undecided() -> None:
    noisy = records("nba", dict.fromkeys(DP, 0.05), noise=0.05)
    verdicts = [claim.verdict for claim in paper.table1_claims(noisy)]
    assert verdicts[0] == paper.OPEN


@pytest.mark.parametrize(
    ("fair", "expected"),
    [
        ((0.5, 0.45, 0.55), paper.HOLDS),
        ((0.2, 0.1, 0.25), paper.FAILS),
        ((0.3, 0.2, 0.4), paper.OPEN),
    ],
)
def test_areas_that_overlap_decide_nothing(fair: tuple[float, ...], expected: str) -> None:
    areas = {"X": {"FMP": Interval(*fair, 5), "MLP + regulariser": Interval(0.35, 0.3, 0.4, 5)}}
    assert [claim.verdict for claim in paper.pareto_claims(areas)] == [expected]


def test_running_times_are_compared_by_direction() -> None:
    own = records("pokec-n", DP)
    claims = paper.runtime_claims(own)
    found = {claim.text: (claim.printed, claim.verdict) for claim in claims}
    assert found == {
        "FMP takes more time than MLP": ("×1.47", paper.HOLDS),
        "FMP takes less time than APPNP": ("×0.36", paper.FAILS),
    }


def test_hyperparameter_claims() -> None:
    def run(lambda_s: float, split: int, accuracy: float, dp: float) -> dict[str, Any]:
        spec = RunSpec("nba", "ppr", split=split, setting=Setting(lambda_s=lambda_s))
        test = {"accuracy": accuracy, "dp": dp, "eo": 0.0}
        return compare._head(spec) | {"dataset": "NBA", "run": {"test": test}}

    own = [run(s, k, 0.7 - 0.01 * s + 0.001 * k, 0.1) for s in (0.1, 20.0) for k in range(5)]
    [claim] = paper.hyperparameter_claims(own)
    assert (claim.text, claim.verdict) == (
        "More smoothing gives lower accuracy (plain propagation)", paper.HOLDS,
    )  # fmt: skip


def test_published_rows_are_quoted_beside_ours() -> None:
    own = records("german+nifty", DP)
    for record in own:
        record |= {"majority": 0.7, "positive": 0.7}
    [table] = published_tables(own)
    rows = {row[0]: row[1:] for row in table.rows}
    # The constant answer is right for the larger class: F1 = 2·0.7 / 1.7.
    assert rows["constant answer"] == ["computed", "70.0", "50.0", "82.4", "0.0", "0.0"]
    assert rows["FairVGNN"] == ["quoted: FairVGNN's README", "70.2", "72.4", "82.1", "1.7", "0.9"]
    assert rows["FMP target=0"][0] == "this program"


def test_fairgnns_protocol_has_the_counts_of_the_papers_data_table(data_folder: str) -> None:
    data = by_name.from_files("nba+fairgnn", data_folder)
    stated = grids.printed()["statistics"]["nba"]
    assert int(data.train_mask.sum()) == stated["training_labels"]
    outside = ~(data.val_mask | data.test_mask)
    assert int(((data.sens >= 0) & outside).sum()) == stated["known_groups"]


def test_fairgnns_protocol_hides_groups_outside_evaluation() -> None:
    data = by_name.from_files("embedded:400")
    found = fairgnn(data, known_groups=30)
    masks = [found.train_mask, found.val_mask, found.test_mask]
    assert [int(mask.sum()) for mask in masks] == [200, 100, 100]
    assert int(torch.stack(masks).sum(0).max()) == 1
    seen = found.sens >= 0
    assert int((seen & found.train_mask).sum()) == 30
    assert torch.equal(found.sens[seen], data.sens[seen])
    assert bool(seen[found.val_mask | found.test_mask].all())
    assert bool((data.sens >= 0).all())
    # The oracle: a shuffled list of the labelled nodes, cut at a half and three quarters.
    nodes = list(range(400))
    random.Random(20).shuffle(nodes)
    assert set(found.test_mask.nonzero()[:, 0].tolist()) == set(nodes[300:])


def test_commands_are_complete_for_pokec(tmp_path: Path, monkeypatch, capsys) -> None:
    """One line makes the paper's table, on files of the form of Pokec's."""
    path = Path(__file__).parents[2] / "benchmarks" / "pokec_files.py"
    spec = importlib.util.spec_from_file_location("pokec_files", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    short = Setting(epochs=2, hidden=4, eval_every=2)
    monkeypatch.setattr(grids, "PRINTED", short)
    monkeypatch.setattr(grids, "QUICK", short)
    for name, cls in script.CLASSES.items():
        specs = grids.table1([name], splits=2)
        assert {spec.data for spec in specs} == {name, f"{name}+fairgnn"}
        monkeypatch.setattr(cls, "source", cls.source)  # restored afterwards
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        sys, "argv", ["pokec_files.py", str(tmp_path), "--share", "0.005", "--quick"]
    )
    with pytest.raises(SystemExit) as left:
        script.main()
    assert left.value.code == 0, capsys.readouterr().err
    found = compare.read(tmp_path / "table1" / "records.jsonl")
    assert not [record["failed"] for record in found if "failed" in record]
    assert len(paper.side_by_side(found)) == 4
    assert len(paper.table1_claims(found)) == 16
    page = (tmp_path / "table1" / "report.html").read_text("utf8")
    assert "Pokec-z" in page
