"""Explanations as text, HTML and plot, and the people of the report."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from fairmp.report.explanations import typical_people
from fairmp.training.explanation import Explanation, Stages, explanations


def logits(margins: list[float]) -> torch.Tensor:
    return torch.tensor([[0.0, margin] for margin in margins], dtype=torch.float64)


@pytest.fixture
def people() -> list[Explanation]:
    own = logits([-1.0, 2.0, -0.5, 1.5, 0.2])
    neighbours = logits([0.5, 2.5, -0.7, 1.0, 0.1])
    corrected = logits([0.7, 2.7, -0.5, 0.8, -0.1])
    return explanations(Stages(own, neighbours, corrected), ["no", "yes"])


def test_parts_and_decisions_of_each_stage(people: list[Explanation]) -> None:
    first = people[0]
    assert (first.own, first.neighbours) == (-1.0, 1.5)
    assert first.logit == pytest.approx(0.7)
    assert first.decisions == ("no", "yes", "yes")
    assert first.to_dict()["logit"] == first.logit


def test_text_html_and_plot(people: list[Explanation]) -> None:
    text = str(people[0])
    assert "own data" in text
    assert "+1.50" in text
    assert "26.9 %" in text
    assert "<table" in people[0]._repr_html_()
    assert len(people[0].plot().patches) == 3
    plt.close("all")


def test_typical_people_are_the_middle_of_their_group_and_those_who_changed(
    people: list[Explanation],
) -> None:
    section = typical_people(people, np.array([0, 0, 1, 1, 1]), ["f", "m"])
    assert section is not None
    names = [row[0] for row in section.rows]
    assert names == ["f: typical", "m: typical", "f: neighbours decide"]
    # The median of three is the last person, whose decision the correction changes.
    assert section.rows[1][-1] == "yes → yes → no"
    assert typical_people(people, np.full(5, -1), ["f", "m"]) is None
