"""What ``print`` and a notebook show of results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import pytest

from fairmp import debias
from fairmp.analysis.audits import Audit
from fairmp.display import Displayed, bar
from fairmp.metrics import Evaluation
from fairmp.metrics.drift import Drift
from fairmp.training.run import Run

RNG = np.random.default_rng(0)
SENS, Y = RNG.integers(0, 2, 300), RNG.integers(0, 2, 300)
P = 1 / (1 + np.exp(-RNG.normal(size=300) - SENS))


def widths(ax: object) -> list[float]:
    return [patch.get_width() / 100 for patch in ax.patches]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Number(Displayed, renderer=__name__):
    """A result whose renderer is this module."""

    value: int


class Special(Number):
    """A result that inherits its renderer."""


def text(number: Number) -> str:
    return f"the number {number.value}"


def html(number: Number) -> str:
    return f"<b>{number.value}</b>"


def plot(number: Number, ax: object) -> object:
    return ax, number.value


@pytest.mark.parametrize("kind", [Number, Special])
def test_renderer_shows_result_and_subclasses(kind: type[Number]) -> None:
    number = kind(3)
    assert str(number) == "the number 3"
    assert number._repr_html_() == "<b>3</b>"
    assert number.plot() == (None, 3)
    assert number.plot("axes") == ("axes", 3)  # type: ignore[arg-type]


def test_renderer_is_imported_when_a_result_is_shown() -> None:
    code = """
import sys
from fairmp.metrics import evaluate
result = evaluate([1, 0], [[0.2, 0.8], [0.7, 0.3]], sensitive_features=[0, 1], bootstrap=0)
assert "fairmp.report" not in sys.modules
print(result)
assert "fairmp.report.evaluations" in sys.modules
assert not {"torch_geometric", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 nodes")


@pytest.mark.parametrize("kind", [Evaluation, Audit, Drift, Run])
def test_every_renderer_has_its_functions(kind: type[Displayed]) -> None:
    module = import_module(kind._renderer)
    assert all(callable(getattr(module, name)) for name in ("text", "html", "plot"))


def test_debias_result() -> None:
    result = debias(P, SENS, target=0.02, y=Y, full_output=True)
    page = result._repr_html_()
    assert page.count("<table>") == 2
    assert "demographic parity" in page
    expected = [(P[g == SENS] > 0.5).mean() for g in (0, 1)]
    expected += [(np.asarray(result.predictions)[g == SENS] > 0.5).mean() for g in (0, 1)]
    ax = result.plot()
    assert widths(ax) == pytest.approx(expected)
    assert [label.get_text() for label in ax.get_legend().get_texts()] == ["before", "after"]


@pytest.mark.parametrize("show", [True, False, None])
def test_bar_writes_to_standard_error_if_shown(
    show: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with bar(2, "counting", show=show) as advance:
        advance("one")
        advance("two")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert bool(captured.err) is bool(show)


@dataclass(frozen=True, repr=False)
class Summarised(Displayed, renderer=__name__, summary=("share", "name")):
    """A result with a short ``repr``."""

    share: float
    name: str
    rows: tuple[int, ...]


def test_repr_shows_the_summary_only() -> None:
    assert repr(Summarised(1 / 3, "a", (1, 2))) == "Summarised(share=0.3333, name='a')"


def test_repr_of_results_is_short() -> None:
    from fairmp import audit, evaluate
    from fairmp.datasets import social_network

    data = social_network(n=200, average_degree=6)
    for result in (evaluate(Y, P, sensitive_features=SENS, bootstrap=0), audit(data)):
        assert len(repr(result)) < 200
