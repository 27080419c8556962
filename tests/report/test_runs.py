from __future__ import annotations

import pytest

from fairmp import FairClassifier
from fairmp.datasets import social_network
from fairmp.training.run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    data = social_network(n=200, average_degree=5)
    model = FairClassifier(epochs=1, backbone="mlp")
    model.fit(data, seed=0, bootstrap=0)
    return model.run_


def test_text_and_html_are_of_the_test_nodes(run: Run) -> None:
    assert str(run).startswith(f"Test nodes, epoch {run.history.best.epoch}: ")
    assert str(run).endswith(str(run.test))
    assert run.test._repr_html_() in run._repr_html_()


def test_plot_shows_rates_of_the_test_nodes(run: Run) -> None:
    widths = [patch.get_width() / 100 for patch in run.plot().patches]
    assert widths == pytest.approx([group.rates[1] for group in run.test.groups])
