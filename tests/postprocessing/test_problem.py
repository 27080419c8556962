"""The parts of a problem are checked and brought together."""

from __future__ import annotations

import numpy as np
import pytest

from fairmp.errors import InputError
from fairmp.postprocessing.predictions import attributes, read_scores
from fairmp.postprocessing.problem import Problem, read_problem

P = np.array([0.2, 0.4, 0.6, 0.9])


def problem(**arguments: object) -> Problem:
    settings = {"y": None, "class_names": None, "sample_weight": None} | arguments
    return read_problem(read_scores(P), attributes([0, 0, 1, 1], 4), **settings)  # type: ignore[arg-type]


def test_read_problem_fills_in_defaults() -> None:
    plain = problem()
    assert plain.classes == ("0", "1")
    assert plain.y.tolist() == [-1] * 4
    assert plain.population.all()
    assert not plain.is_weighted
    assert plain.logits is plain.scores.logits


def test_read_problem_reads_names_weights_and_population() -> None:
    found = problem(
        y=["no", "yes", "", "no"], sample_weight=[1, 2, 1, 1], population=np.arange(4) > 0
    )
    assert found.classes == ("no", "yes")
    assert found.y.tolist() == [0, 1, -1, 0]
    assert found.is_weighted
    assert found.population.tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"y": [0, 1]}, "y"),
        ({"y": [0, 1, 2, 0]}, "y"),
        ({"class_names": ["a", "b", "c"]}, "class_names"),
        ({"sample_weight": [1, -1, 1, 1]}, "sample_weight"),
        ({"population": [True]}, "population"),
    ],
)
def test_read_problem_names_wrong_arguments(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(InputError) as error:
        problem(**arguments)
    assert error.value.argument == argument
