from __future__ import annotations

from pathlib import Path

import pytest

from experiments import grids, paper, table1
from fairmp.comparison.grid import Setting
from tests.experiments.records import DP, records

TINY = "--quick --data embedded:240 --out r --splits 1 --workers 1"


def test_side_by_side_and_claims() -> None:
    runs = records("nba", DP)
    [table] = table1.side_by_side(runs)
    fair = next(row for row in table.rows if row[0] == "FMP (projection)")
    assert fair[1:4] == ["none", "73.3 ± 1.9 sd", "69.9 ± 0.2"]  # made up, without a mode
    verdicts = {claim.text: claim.verdict for claim in table1.claims(runs)}
    assert verdicts == {
        "FMP has the smallest ΔDP": paper.HOLDS,
        "FMP has the smallest ΔEO": paper.HOLDS,
        "FMP is as accurate as an MLP, within a point": paper.HOLDS,
        "Graph networks have a larger ΔDP than an MLP": paper.HOLDS,
    }
    worse = records(
        "german", DP | {"FMP": 0.2, "GCN": 0.01, "GAT": 0.01, "SGC": 0.01, "APPNP": 0.01}
    )
    assert table1.side_by_side(worse) == []  # the paper does not have it
    claims = {claim.text: claim for claim in table1.claims(worse)}
    assert claims["FMP has the smallest ΔDP"].verdict == paper.FAILS
    assert claims["Graph networks have a larger ΔDP than an MLP"].verdict == paper.FAILS
    assert claims["FMP has the smallest ΔDP"].printed == "–"


def test_fmp_as_printed_is_beside_the_papers_figures() -> None:
    [table] = table1.side_by_side(records("nba", {"MLP": 0.05, "FMP": 0.0, "FMP (paper)": 0.06}))
    rows = {name: cells for name, *cells in table.rows}
    assert "plain propagation" not in rows  # it was not run
    assert rows["FMP (paper)"][1] == rows["FMP (projection)"][1] == "73.3 ± 1.9 sd"
    assert rows["FMP (paper)"][4].startswith("6.")
    assert rows["GCN"][0] == rows["GCN"][2] == "–"


def test_claims_are_undecided_where_splits_disagree() -> None:
    noisy = records("nba", dict.fromkeys(DP, 0.05), noise=0.05)
    verdicts = [claim.verdict for claim in table1.claims(noisy)]
    assert verdicts[0] == paper.OPEN


def test_command_writes_tables_and_refuses_records_of_another_experiment(
    experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "QUICK", Setting(epochs=3, hidden=8, pretrain=1))
    status, out, err = experiments(f"table1 {TINY}")
    assert status == 0, err
    assert "FMP target=0" in out
    assert "- FMP has the smallest ΔDP (embedded network): " in out
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert {"records.jsonl", "report.html", "table.md", "table.tex", "table.csv"} <= names
    assert "tradeoff-embedded-network.png" in names
    page = (tmp_path / "r" / "report.html").read_text("utf8")
    assert f"python -m experiments table1 {TINY}" in page
    lines = (tmp_path / "r" / "records.jsonl").read_bytes()
    status, _, err = experiments(f"table1 {TINY}")
    assert status == 0
    assert "0 to go" in err
    assert (tmp_path / "r" / "records.jsonl").read_bytes() == lines
    status, _, err = experiments(f"pareto {TINY}")
    assert status == 2
    assert "records of another run" in err


def test_command_without_any_files_is_one_line(experiments, tmp_path: Path) -> None:
    status, _, err = experiments("table1 --out r")
    assert status == 2
    assert err.splitlines()[-1].startswith("experiments: --data: ")
    assert not (tmp_path / "r").exists()
