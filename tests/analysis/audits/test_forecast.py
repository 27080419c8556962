from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from fairmp import audit
from fairmp.analysis.theory.block_model import block_graph


@pytest.mark.parametrize(("eps", "rises"), [(0.9, True), (0.5, False)])
def test_prediction_and_measurement_agree_on_a_block_model(eps, rises):
    result = audit(block_graph(4000, 0.01, eps, 0.5, seed=0), steps=1)
    before, after = result.row
    assert result.forecast.before == pytest.approx(before.predictability, abs=0.03)
    assert result.forecast.after == pytest.approx(after.predictability, abs=0.05)
    assert (result.forecast.corrected > 1) is rises
    assert (after.predictability > before.predictability) is rises
    assert result.forecast.m == pytest.approx(2, abs=0.2)
    verb = "raises" if rises else "lowers"
    line = next(line for line in result.verdict() if "theory predicts" in line)
    assert line.count(f"{verb} the bias") == 2
    assert ("Message passing adds bias" in " ".join(result.verdict())) is rises


def test_counterexample_to_the_printed_condition():
    result = audit(block_graph(20_000, 5e-4, 0.64, 0.5, seed=0), steps=1)
    assert result.forecast.printed > 1 > result.forecast.corrected
    assert result.forecast.after < result.forecast.before
    assert result.row[1].predictability < result.row[0].predictability


def test_condition_is_missing_for_three_groups() -> None:
    sens = torch.arange(300) % 3
    x = torch.randn(300, 4) + sens[:, None]
    edges = torch.randint(0, 300, (2, 1500))
    forecast = audit(Data(x=x, edge_index=edges, sens=sens), steps=1).forecast
    assert forecast.before is not None
    assert (forecast.m, forecast.printed, forecast.corrected) == (None, None, None)
    assert "two groups" in forecast.missing
