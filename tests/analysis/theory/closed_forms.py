"""Closed forms of docs/theory.md that the package computes otherwise."""

from __future__ import annotations

from typing import NamedTuple

from fairmp.analysis.theory import connection_probabilities


class Neighbourhood(NamedTuple):
    """Share ν of the first group and number ζ of terms in a node's average, by its group."""

    nu1: float
    nu2: float
    zeta1: float
    zeta2: float


def neighbourhood(n: int, rho: float, eps: float, c: float) -> Neighbourhood:
    p, q = connection_probabilities(n, rho, eps, c)
    first, second = (1 - c) * n, c * n
    zeta1, zeta2 = (first - 1) * p + 1 + second * q, (second - 1) * p + 1 + first * q
    return Neighbourhood(((first - 1) * p + 1) / zeta1, first * q / zeta2, zeta1, zeta2)
