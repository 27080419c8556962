from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.analysis.theory import bias_enhancement, blocks, connection_probabilities
from fairmp.errors import InputError
from tests.analysis.theory.closed_forms import neighbourhood

COUNTEREXAMPLE = (20_000, 5e-4, 0.64, 0.5)
models = st.tuples(
    st.integers(100, 100_000), st.floats(1e-5, 0.02), st.floats(0, 1), st.floats(0.05, 0.95)
)


@settings(deadline=None)
@given(models)
def test_connection_probabilities_give_density_and_homophily_back(
    model: tuple[int, float, float, float],
) -> None:
    n, rho, eps, c = model
    p, q = connection_probabilities(n, rho, eps, c)
    inside, between = c**2 + (1 - c) ** 2, 2 * c * (1 - c)
    assert p * inside + q * between == pytest.approx(rho)
    assert p * inside == pytest.approx(rho * eps)


def test_counterexample_to_the_printed_condition() -> None:
    printed, corrected = (
        bias_enhancement(*COUNTEREXAMPLE, form=form) for form in ("printed", "corrected")
    )
    assert (printed, corrected) == pytest.approx((1.31, 0.91), abs=0.005)


@settings(deadline=None)
@given(models, st.floats(0.1, 3), st.integers(0, 10_000))
def test_row_forms_are_the_closed_ones(
    model: tuple[int, float, float, float], scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    means = scale * rng.standard_normal((2, 3))
    root = rng.standard_normal((3, 3))
    covariance = root @ root.T + 0.1 * np.eye(3)
    delta = means[0] - means[1]
    m = delta @ np.linalg.solve(covariance, delta)
    nu1, nu2, zeta1, zeta2 = neighbourhood(*model)
    printed = (nu1 - nu2) ** 2 * min(zeta1, zeta2)
    corrected = (nu1 - nu2) ** 2 * min(
        zeta1 / (1 + nu1 * (1 - nu1) * m), zeta2 / (1 + nu2 * (1 - nu2) * m)
    )
    common = {"means": means, "covariance": covariance}
    assert bias_enhancement(*model, form="printed", **common) == pytest.approx(
        printed, rel=1e-9, abs=1e-12
    )
    assert bias_enhancement(*model, **common) == pytest.approx(corrected, rel=1e-6, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(models, st.sampled_from(["row", "symmetric"]))
def test_corrected_condition_is_never_larger(
    model: tuple[int, float, float, float], normalisation: str
) -> None:
    printed = bias_enhancement(*model, form="printed", normalisation=normalisation)
    assert bias_enhancement(*model, normalisation=normalisation) <= printed * (1 + 1e-9)


def test_corrected_condition_equals_printed_for_close_groups() -> None:
    close = {"means": [[0.0, 1e-4], [1e-4, 0.0]]}
    printed = bias_enhancement(*COUNTEREXAMPLE, form="printed", **close)
    assert bias_enhancement(*COUNTEREXAMPLE, **close) == pytest.approx(printed, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(models)
def test_symmetric_is_row_where_degrees_are_equal(
    model: tuple[int, float, float, float],
) -> None:
    n, rho, eps, _ = model
    row, symmetric = (
        bias_enhancement(n, rho, eps, 0.5, form="printed", normalisation=normalisation)
        for normalisation in ("row", "symmetric")
    )
    assert symmetric == pytest.approx(row, rel=1e-9, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(models, st.sampled_from(["row", "symmetric"]))
def test_swapping_groups_changes_nothing(
    model: tuple[int, float, float, float], normalisation: str
) -> None:
    n, rho, eps, c = model
    means = np.array([[0.0, 2.0], [1.0, 0.5]])
    one = bias_enhancement(n, rho, eps, c, means=means, normalisation=normalisation)
    other = bias_enhancement(n, rho, eps, 1 - c, means=means[::-1], normalisation=normalisation)
    assert one == pytest.approx(other, rel=1e-6, abs=1e-12)


def test_arrays_agree_with_scalars() -> None:
    eps, c = np.linspace(0, 1, 7)[:, None], np.array([0.3, 0.5, 0.8])
    for normalisation in ("row", "symmetric"):
        table = bias_enhancement(5000, 2e-3, eps, c, normalisation=normalisation)
        assert table.shape == (7, 3)
        single = bias_enhancement(5000, 2e-3, eps[4, 0], c[2], normalisation=normalisation)
        assert table[4, 2] == pytest.approx(single)
    sizes, probabilities = blocks([1000, 2000], 2e-3, eps[:, :1], 0.5)
    assert sizes.shape == (7, 2, 2)
    assert probabilities.shape == (7, 2, 2, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((1, 0.1, 0.5, 0.5), r"n: 1 is below 2"),
        ((100, 0.0, 0.5, 0.5), r"rho: 0 is outside \(0, 1\]"),
        ((100, 1.5, 0.5, 0.5), r"rho: 1.5 is outside \(0, 1\]"),
        ((100, 0.1, -0.1, 0.5), r"eps: -0.1 is outside \[0, 1\]"),
        ((100, 0.1, 1.1, 0.5), r"eps: 1.1 is outside \[0, 1\]"),
        ((100, 0.1, 0.5, 0.0), r"c: 0 is outside \(0, 1\)"),
        ((100, 0.1, 0.5, 1.0), r"c: 1 is outside \(0, 1\)"),
        ((100, [0.1, np.nan], 0.5, 0.5), r"rho: nan is outside \(0, 1\]"),
        ((100, 0.6, 1.0, 0.5), r"makes p = 1.2, above 1; the largest density here is 0.5"),
        ((100, 0.3, 0.0, 0.1), r"makes q = 1.667, above 1; the largest density here is 0.18"),
    ],
)
def test_impossible_parameters_name_the_limit_they_break(model: tuple, message: str) -> None:
    for function in (connection_probabilities, bias_enhancement):
        with pytest.raises(InputError, match=message):
            function(*model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "guessed"}, r"form: 'guessed' is unknown"),
        ({"normalisation": "column"}, r"normalisation: 'column' is unknown"),
        ({"covariance": [[1, 2], [2, 1]]}, r"covariance: smallest eigenvalue -1 is not positive"),
        ({"means": [[0, 1], [0, 1]]}, r"means: both are equal"),
        ({"means": np.eye(3)}, r"means: shape \(3, 3\) is not two means"),
    ],
)
def test_wrong_choices_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bias_enhancement(*COUNTEREXAMPLE, **options)
