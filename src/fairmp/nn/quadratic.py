r"""Small dense problems of Newton's method: a quadratic with a penalty, and linear systems.

Hessians of the dual leave some directions undetermined (a constant added to every class, a dual
proportional to group sizes), so nothing here inverts one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Array = NDArray[np.float64]

RIDGE = 1e-10  # smallest curvature, in a row whose classes' curvatures sum to 1
FLAT = 1e-12  # curvature, in nodes, below which a gap is taken not to move


def penalised_minimum(
    hessian: Array, linear: Array, basis: Array, moves: Array, penalty: float
) -> Array:
    r"""Minimise :math:`½x^⊤Hx - b^⊤x + \mathrm{penalty}·\sum w` over x = moves·w, w ≥ 0.

    With H = BBᵀ and b = B·aim, its dual is the point nearest to aim at which no move gains more
    than the penalty. That is a least-distance problem, which non-negative least squares solve
    (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23).

    Args:
        hessian: H.
        linear: b.
        basis: columns that span the directions in which H curves, and b.
        moves: columns that x is made of.
        penalty: of each move.
    """
    orthonormal, _ = np.linalg.qr(basis)
    values, vectors = np.linalg.eigh(orthonormal.T @ hessian @ orthonormal)
    root = (orthonormal @ vectors) * np.sqrt(np.maximum(values, RIDGE))
    aim = np.linalg.lstsq(root, linear, rcond=None)[0]
    distance, gains = float(np.linalg.norm(aim)), root.T @ moves
    # The nearest point is no farther from 0 than aim: other moves never gain their penalty.
    useful = np.linalg.norm(gains, axis=0) * distance > penalty
    if not useful.any():
        return np.zeros_like(linear)
    gains, moves = gains[:, useful], moves[:, useful]
    # In units of the distance, and of the size of a move's gain.
    sizes = np.linalg.norm(gains, axis=0)
    excess = (aim @ gains - penalty) / (sizes * distance)
    system = np.vstack([-gains / sizes, excess])
    multipliers, _ = nnls(system, np.eye(len(system))[-1])
    weights = multipliers / (1 - excess @ multipliers) * distance / sizes
    return np.asarray(moves @ weights)


def pseudo_solve(h: Array, b: Array) -> Array:
    """Solve Hx = b for a symmetric H that may leave some directions undetermined, and x 0 there."""
    x, diagonal = np.zeros_like(b), np.diag(h)
    # Where every node is certain nothing moves, and rounding would decide how much.
    moves = diagonal > FLAT
    if moves.any():
        # Equal diagonals first: a class that is rarely predicted is small, not undetermined.
        root = np.sqrt(diagonal[moves])
        values, vectors = np.linalg.eigh(h[np.ix_(moves, moves)] / np.outer(root, root))
        keep = values > 1e-12 * float(values.max())
        inverse = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
        x[moves] = (vectors @ (inverse * (vectors.T @ (b[moves] / root)))) / root
    return x


def complement(constraints: Array, held: NDArray[np.bool_]) -> Array:
    """Orthonormal columns that span the held entries orthogonal to the constraints."""
    # A column per constraint at most, over entries of its own: classes do not mix.
    columns, unconstrained = [], held.copy()
    for constraint in constraints.T:
        inside = np.flatnonzero(held & (constraint != 0))
        unconstrained[inside] = False
        if inside.size > 1:
            q, _ = np.linalg.qr(constraint[inside, None], mode="complete")
            block = np.zeros((held.size, inside.size - 1))
            block[inside] = q[:, 1:]
            columns.append(block)
    return np.concatenate([np.eye(held.size)[:, unconstrained], *columns], 1)


def span(gram: Array) -> Array:
    """Orthonormal columns that span the range of a symmetric matrix."""
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors[:, values > 1e-10 * values.max()])
