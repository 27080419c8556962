from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from experiments import grids, paper, runtime
from tests.experiments.records import DP, records


def test_running_times_are_compared_by_direction() -> None:
    runs = records("pokec-n", DP)
    claims = runtime.claims(runs)
    verdicts = {claim.text: (claim.printed, claim.verdict) for claim in claims}
    assert verdicts == {
        "FMP takes more time than MLP": ("×1.47", paper.HOLDS),
        "FMP takes less time than APPNP": ("×0.36", paper.FAILS),
    }


def test_times_that_overlap_are_undecided_and_one_run_is_not_judged() -> None:
    runs = records("pokec-n", {"MLP": 0.05, "FMP": 0.001})
    for number, run in enumerate(runs):
        run["run"]["seconds"] = 1.0 + 0.1 * (number % 3)
    assert [claim.verdict for claim in runtime.claims(runs)] == [paper.OPEN]
    one_each = [runs[0], runs[5]]
    assert [claim.verdict for claim in runtime.claims(one_each)] == [paper.UNJUDGED]


def test_fmp_as_printed_is_timed_beside_the_projection() -> None:
    claims = runtime.claims(records("pokec-n", DP | {"FMP (paper)": 0.05}))
    printed = {claim.text: claim.printed for claim in claims}
    assert printed["FMP (paper) takes more time than MLP"] == "×1.47"


def test_command_times_every_network(
    experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "runtime", partial(grids.runtime, epochs=4))
    status, out, err = experiments("runtime --quick --data embedded:240 --out r")
    assert status == 0, err
    assert "38 runs, one at a time" in err
    [mlp] = [line for line in out.splitlines() if line.strip().startswith("MLP")]
    assert "×1.0" in mlp
    for solver in grids.PAPERS_SOLVERS:
        assert any(line.strip().startswith(f"FMP ({solver})") for line in out.splitlines())
    assert (tmp_path / "r" / "records.jsonl").exists()
