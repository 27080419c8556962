"""What a correction changed, measured."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from fairmp import debias
from fairmp.metrics.evaluation import CRITERIA
from tests.postprocessing.test_debiaser import gap
from tests.postprocessing.test_solver import Outside, debias_fully, of_sklearn


@pytest.fixture(scope="module")
def outside() -> Outside:
    return of_sklearn(0)


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_result_has_gaps_of_decisions_and_of_probabilities(outside: Outside, on: str) -> None:
    p, _, sens = outside
    result = debias_fully(p, sens, target=0.02, on=on)
    (criterion,) = result.criteria
    assert (result.on, criterion.target) == (on, 0.02)
    rates = [[(q[sens == g, 1] > 0.5).mean() for g in (0, 1)] for q in (p, result.predictions)]
    means = [[q[sens == g, 1].mean() for g in (0, 1)] for q in (p, result.predictions)]
    assert criterion.decisions_before == pytest.approx(np.ptp(rates[0]))
    assert criterion.decisions_after == pytest.approx(np.ptp(rates[1]))
    assert criterion.before == pytest.approx(np.ptp(means[0]))
    assert criterion.after == pytest.approx(np.ptp(means[1]), abs=1e-6)
    closed = criterion.decisions_after if on == "decisions" else criterion.after
    assert closed <= 0.02 + 1 / 500


def test_result_measures_what_changed(outside: Outside) -> None:
    p, y, sens = outside
    partly_known = np.where(np.arange(len(y)) % 4 == 0, -1, sens)
    label = np.where(np.arange(len(y)) < 800, y, -1)
    inside = np.arange(len(y)) < 1200
    result = debias_fully(
        pd.DataFrame(p, columns=["no", "yes"]), partly_known, population=inside, y=label,
        criterion="equal_opportunity", target=0.02, class_names=["no", "yes"], on="probabilities",
    )  # fmt: skip
    q = result.predictions.to_numpy()
    changed = p.argmax(1) != q.argmax(1)
    assert (result.nodes, result.labelled) == (1200, 800)
    assert (result.changed, result.changed_outside) == (changed[:1200].sum(), changed[1200:].sum())
    (held,) = result.criteria
    on = inside & (label == 1) & (partly_known >= 0)
    tpr = [q[on & (partly_known == g), 1].mean() for g in (0, 1)]
    assert held.after == pytest.approx(abs(tpr[1] - tpr[0]))
    assert held.nodes == on.sum()
    there = held.unlabelled
    assert there is not None
    free = inside & (label < 0) & (partly_known >= 0)
    assert there.nodes == free.sum()
    true = [q[free & (partly_known == g) & (y == 1), 1].mean() for g in (0, 1)]
    assert there.reliable
    assert there.after == pytest.approx(abs(true[1] - true[0]), abs=0.03)
    assert there.interval is not None
    assert there.interval[0] <= there.after <= there.interval[1]
    assert held.interval is not None
    by_name = {group.group: group for group in result.groups}
    assert set(by_name) == {"0", "1", "unknown"}
    assert by_name["unknown"].changed == 0
    group = by_name["1"]
    mine = inside & (partly_known == 1)
    assert group.nodes == mine.sum()
    assert group.decided_after[1] == pytest.approx((q[mine].argmax(1) == 1).mean())
    assert group.mean_before[1] == pytest.approx(p[mine, 1].mean())
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["nodes"] == 1200


def test_result_lists_gaps_that_grew() -> None:
    # Base rates differ, so parity opens the gap of equal opportunity.
    rng = np.random.default_rng(0)
    sex = np.where(rng.random(4000) < 0.5, "f", "m")
    y = (rng.random(4000) < np.where(sex == "m", 0.7, 0.3)).astype(int)
    p = 1 / (1 + np.exp(-2 * (2 * y - 1) - rng.normal(size=4000)))
    result = debias(p, sex, y=y, full_output=True)
    by_name = {criterion.criterion: criterion for criterion in result.others}
    assert set(by_name) == set(CRITERIA) - {"demographic_parity"}
    opened = {criterion["criterion"]: criterion for criterion in result.opened}
    eo = by_name["equal_opportunity"]
    assert eo.decisions_after > eo.decisions_before + 0.02
    assert opened["equal_opportunity"]["after"] == eo.decisions_after
    assert "demographic_parity" not in opened
    assert result.to_dict()["opened"][0]["criterion"] in by_name
    men = next(group for group in result.groups if group.group == "m")
    parts = [(sex == "m") & (y == label) for label in (0, 1)]
    assert men.labelled == tuple(part.sum() for part in parts)
    assert men.fpr_after[1] == pytest.approx((result.predictions > 0.5)[parts[0]].mean())
    assert men.tpr_after[1] == pytest.approx((result.predictions > 0.5)[parts[1]].mean())


def test_unlabelled_estimate_is_calibrated_or_withheld() -> None:
    rng = np.random.default_rng(3)
    n = 6000
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    x = rng.normal(size=n)
    truth = 1 / (1 + np.exp(-(1.5 * x + 0.8 * (sex == "m") - 0.4)))
    y = (rng.random(n) < truth).astype(int)
    # Scores three times too certain, and shifted.
    p = 1 / (1 + np.exp(-3 * (1.5 * x + 0.8 * (sex == "m") - 0.4) + 2))
    labels = np.where(np.arange(n) < 2000, y, -1)
    correct = partial(debias, y=labels, on="probabilities", full_output=True)
    result = correct(p, sex, criterion="equal_opportunity")
    (criterion,) = result.criteria
    there = criterion.unlabelled
    assert there is not None
    hidden = (np.arange(n) >= 2000) & (y == 1)
    for q, estimate in ((p, there.before), (result.predictions, there.after)):
        assert estimate == pytest.approx(gap(q, sex, hidden), abs=0.04)
    assert criterion.interval is not None
    assert criterion.interval[0] <= criterion.after <= criterion.interval[1]
    # Scores that are upside down in one group cannot be calibrated by a temperature and biases.
    odd = np.where(sex == "f", 1 - p, p)
    result = correct(odd, sex, criterion="eo", target=0.1)
    assert result.criteria[0].unlabelled is not None
    assert not result.criteria[0].unlabelled.reliable
    assert np.isnan(result.criteria[0].unlabelled.after)
