from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.metrics import Evaluation, evaluate
from fairmp.metrics.drift import Drift, Figure, compare
from fairmp.report.document import read
from fairmp.report.from_results import card
from fairmp.report.monitoring import HEADER, INTERVALS, UNCHANGED, figure_name, rows, verdict, write


def evaluation(shift: float, seed: int) -> Evaluation:
    rng = np.random.default_rng(seed)
    sens, y = rng.integers(0, 2, 2000), rng.integers(0, 2, 2000)
    odds = y - 0.5 + rng.normal(size=2000) + shift * sens
    names = {"class_names": ["no", "yes"], "group_names": ["f", "m"]}
    return evaluate(
        y, np.stack([0 * odds, odds], 1), sensitive_features=sens, bootstrap=50, **names
    )


@pytest.fixture(scope="module")
def drift() -> Drift:
    return compare(evaluation(0.0, 0), evaluation(1.0, 1))


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        (Figure("share", "f"), "share of f"),
        (Figure("rate", "f", "yes"), "rate of yes in f"),
        (Figure("accuracy"), "accuracy"),
        (Figure("dp"), "ΔDP"),
    ],
)
def test_figure_name(figure: Figure, name: str) -> None:
    assert figure_name(figure) == name


def test_verdict_names_what_changed(drift: Drift) -> None:
    assert "rate of yes in m" in verdict(drift)
    assert "scores of m" in verdict(drift)
    assert "in f" not in verdict(drift)
    same = evaluation(0.0, 0)
    assert verdict(compare(same, same)) == UNCHANGED


def test_interval_of_one_figure_is_told_from_the_verdict_on_all(drift: Drift) -> None:
    [accuracy] = [c for c in drift.figures if c.figure == Figure("accuracy")]
    assert INTERVALS not in str(replace(drift, figures=()))
    single = replace(accuracy, low=0.01, high=0.05, changed=False)
    assert INTERVALS in str(replace(drift, figures=(single,)))
    assert INTERVALS in replace(drift, figures=(single,))._repr_html_()
    assert INTERVALS not in str(replace(drift, figures=(replace(single, changed=True),)))


def test_rows_have_before_after_and_difference(drift: Drift) -> None:
    table = {row[0]: row for row in rows(drift)}
    assert all(len(row) == len(HEADER) for row in table.values())
    [change] = [c for c in drift.figures if c.figure == Figure("dp")]
    before, after, difference = (float(cell) for cell in table["ΔDP"][1:4])
    assert (before, after) == pytest.approx((100 * change.before, 100 * change.after), abs=0.051)
    assert difference == pytest.approx(100 * (change.after - change.before), abs=0.051)
    assert table["scores of m"][-1] == "changed"


def test_text_html_and_plot_show_every_figure(drift: Drift) -> None:
    names = [figure_name(change.figure) for change in drift.figures]
    assert all(name in str(drift) and name in drift._repr_html_() for name in names)
    axes = drift.plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    ends = [(100 * change.low, 100 * change.high) for change in drift.figures]
    assert [tuple(line.get_xdata()) for line in axes.lines[:-1:2]] == ends


def test_record_and_report_have_the_comparison(drift: Drift, tmp_path: Path) -> None:
    before, after = evaluation(0.0, 0), replace(evaluation(1.0, 1), notes=("a note",))
    command = "fairmp monitor run new.csv"
    content = write(drift, before, after, tmp_path, title="new", command=command)
    assert json.loads((tmp_path / "monitor.json").read_text(encoding="utf-8")) == content
    assert content["changed"]
    assert content["notes"] == ["a note"]
    assert content["training"] == before.to_dict()
    [dp] = [figure for figure in content["figures"] if figure["name"] == "ΔDP"]
    assert dp["figure"] == {"kind": "dp", "group": None, "class_name": None}
    assert dp["after"] == after.dp
    report = read(tmp_path)
    assert report["summary"] == content["verdict"]
    with pytest.raises(InputError, match="describes no model"):
        card(report)
