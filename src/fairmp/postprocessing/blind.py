r"""The blind rule: fair decisions that read nobody's group.

Let :math:`p_c = P(y=c \mid x)` and :math:`a_g = P(s=g \mid x)` be calibrated probabilities that a
node's own group does not enter. Among all rules that do not read the group, the most accurate one
within a target of demographic parity decides the class

.. math::
    \arg\max_c \; p_c - \sum_g u_{gc} \, a_g / \pi_g , \qquad \sum_g u_{gc} = 0 ,

where :math:`\pi_g` is the share of group g. For two groups and two classes u is one number λ:
class 1 is decided where :math:`p_1 - ½ > λ b` with :math:`b = a_1/π_1 - a_0/π_0`. Criteria on
labels compare groups among the nodes of a true class y, and replace :math:`a_g/π_g` by
:math:`P(s=g, y \mid x) / P(s=g, y) = p_y \, a_{g \mid y} / π_{gy}`.

:func:`find_blind_rule` sizes u so that the gap between the *true* groups of the fitting nodes meets
the target; :meth:`BlindRule.apply` needs no group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax

from fairmp.errors import InputError, check_number
from fairmp.metrics.evaluation import canonical
from fairmp.nn.cuts import ROUNDING
from fairmp.nn.decisions import TARGET_HINT

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SMOOTHING = 0.02  # temperature at which the multipliers of several groups or classes are found
CORNER = 1e-4  # rounds the corner of |u|
PATH = (*np.geomspace(1, 0.02, 10), 0.0)  # targets of estimated groups, relative to the gap
REFINEMENTS = 12  # further steps, on the rates of true groups

Gap = Callable[[Floats], float]  # between true groups, of multipliers


@dataclass(frozen=True)
class BlindRule:
    """Multipliers of the estimated groups.

    Attributes:
        criterion: what is equalised.
        labels: true classes among whose nodes groups are compared (L); −1 for all nodes.
        shares: of each group among the fitting nodes, or of group and label (L×G).
        multipliers: u (L×G×C); those of a label sum to 0 over the groups.
    """

    kind: ClassVar[str] = "blind"
    criterion: str
    labels: tuple[int, ...]
    shares: Floats
    multipliers: Floats

    def scores(self, p: Floats, a: Floats) -> Floats:
        """What is maximised: probabilities less the price of each class (n×C).

        Args:
            p: calibrated probabilities of the classes (n×C).
            a: calibrated probabilities of the groups (n×G), or of the groups given each true class
                (n×C×G).
        """
        return np.asarray(p - self.prices(p, a))

    def prices(self, p: Floats, a: Floats) -> Floats:
        """What each class costs a node (n×C); proportional to the multipliers."""
        prices = np.zeros_like(p)
        for label, shares, u in zip(self.labels, self.shares, self.multipliers, strict=True):
            prices += relevance(p, a, label, shares) @ u
        return prices

    def apply(self, p: Floats, a: Floats) -> Floats:
        """Probabilities whose largest entries are the decisions (n×C); no group is read."""
        scores = self.scores(p, a)
        scores += (1 - scores.sum(1, keepdims=True)) / scores.shape[1]
        fair = np.maximum(scores, 0.0)
        return np.asarray(fair / fair.sum(1, keepdims=True))

    def predict(self, p: Floats, a: Floats) -> Integers:
        """The decisions (n)."""
        return np.asarray(self.scores(p, a).argmax(1))

    def to_dict(self) -> dict[str, Any]:
        """The rule as plain JSON values."""
        return {
            "type": self.kind,
            "criterion": self.criterion,
            "labels": list(self.labels),
            "shares": self.shares.tolist(),
            "multipliers": self.multipliers.tolist(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], groups: int, classes: int) -> BlindRule:
        """Rebuild what :meth:`to_dict` described; raise ``ValueError`` where it is damaged."""
        criterion = canonical(str(record["criterion"]))
        labels = labels_of(criterion, classes)
        shares = np.array(record["shares"], dtype=np.float64)
        multipliers = np.array(record["multipliers"], dtype=np.float64)
        if record["labels"] != list(labels):
            raise ValueError(f"labels are not {list(labels)}")
        if shares.shape != (len(labels), groups) or not ((shares > 0) & (shares <= 1)).all():
            raise ValueError("shares are not in (0, 1]")
        shape = (len(labels), groups, classes)
        if multipliers.shape != shape or not np.isfinite(multipliers).all():
            raise ValueError(f"multipliers are not {shape} finite numbers")
        return cls(criterion, labels, shares, multipliers)


@dataclass(frozen=True)
class BlindFit:
    """A blind rule, and what it does on the fitting nodes.

    Attributes:
        rule: applies to any node.
        gap_before: of the plain decisions, between the two true groups farthest apart.
        gap: of the rule's decisions.
    """

    rule: BlindRule
    gap_before: float
    gap: float


def labels_of(criterion: str, classes: int) -> tuple[int, ...]:
    """The true classes among whose nodes a criterion compares groups; −1 for all nodes."""
    name = canonical(criterion)
    if name == "demographic_parity":
        return (-1,)
    if name == "equal_opportunity" and classes == 2:
        return (1,)
    if name == "false_positive_rate_parity" and classes == 2:
        return (0,)
    return tuple(range(classes))


def relevance(p: Floats, a: Floats, label: int, shares: Floats) -> Floats:
    """How much a node counts for the rate of each group (n×G): a_g/π_g, or with the label."""
    if label < 0:
        groups = a if a.ndim == 2 else (p[:, :, None] * a).sum(1)
        return np.asarray(groups / shares)
    given_label = a if a.ndim == 2 else a[:, label]
    return np.asarray(p[:, label, None] * given_label / shares)


@dataclass(frozen=True)
class Cell:
    """Nodes among which true groups are compared, and the classes that are."""

    label: int
    weights: Floats  # mean over the nodes of each group (G×n)
    columns: NDArray[np.bool_]  # C

    @property
    def people(self) -> Integers:
        """Number of nodes of each group (G)."""
        return np.asarray((self.weights > 0).sum(1))


def find_blind_rule(
    p: Floats,
    a: Floats,
    group: Integers,
    y: Integers | None = None,
    *,
    criterion: str = "demographic_parity",
    target: float = 0.0,
) -> BlindFit:
    """Find the smallest multipliers whose gap between true groups is within the target.

    Two groups and two classes have one number, found exactly among the values at which nodes change
    sides (criteria on one label likewise). Otherwise the multipliers follow the path of the
    closest rule for estimated groups, as the target of these shrinks, up to the first whose gap
    between true groups is within the target.

    Args:
        p: calibrated probabilities of the classes (n×C); out of fold, where they were fitted on the
            same nodes.
        a: calibrated probabilities of the groups, which the node's own group did not enter (n×G),
            or those given each true class (n×C×G).
        group: true groups (n); −1 where unknown, such nodes do not count.
        y: true classes (n), −1 where unknown; needed for criteria on labels.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"``,
            ``"false_positive_rate_parity"`` or ``"equalized_odds"``.
        target: the largest gap accepted, 0.02 for two points.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> group = np.arange(2000) % 2
        >>> hint = rng.normal(size=2000) + group
        >>> a1 = 1 / (1 + np.exp(-hint + 0.5))
        >>> p1 = 1 / (1 + np.exp(-rng.normal(size=2000) - hint / 2))
        >>> p, a = np.stack([1 - p1, p1], 1), np.stack([1 - a1, a1], 1)
        >>> fit = find_blind_rule(p, a, group, target=0.02)
        >>> round(fit.gap_before, 2), round(fit.gap, 2)
        (0.18, 0.02)
    """
    check_number("target", target, TARGET_HINT, low=0, high=1)
    name, classes = canonical(criterion), p.shape[1]
    cells = compared_cells(name, p, a, group, y)
    shares = np.array([_shares(cell, p, a) for cell in cells])
    labels = tuple(cell.label for cell in cells)

    def rule(u: Floats) -> BlindRule:
        return BlindRule(name, labels, shares, u)

    def gap(u: Floats) -> float:
        return _largest_gap(cells, rule(u).predict(p, a), classes)

    u = np.zeros((len(cells), a.shape[-1], classes))
    before = gap(u)
    if before > target + ROUNDING:
        if classes == 2 and len(cells) == 1 and a.shape[-1] == 2:
            path = blind_path(p, a, cells[0], shares[0])
            u = path.multipliers(path.smallest_within(target))
        else:
            u = _along_path(p, a, cells, shares, target, gap)
    return BlindFit(rule(u), before, gap(u))


def compared_cells(
    criterion: str, p: Floats, a: Floats, group: Integers, y: Integers | None
) -> list[Cell]:
    """What a criterion compares; cells without two groups are left out."""
    n, classes = p.shape
    if a.shape[:1] != (n,) or a.ndim not in (2, 3) or (a.ndim == 3 and a.shape[1] != classes):
        hint = f"give {n} rows of probabilities of the groups (n×G or n×C×G)"
        raise InputError("a", f"shape {a.shape}", hint)
    if len(group) != n or int(group.max(initial=-1)) >= a.shape[-1]:
        hint = f"give one of the {a.shape[-1]} groups per node, -1 where unknown"
        raise InputError("group", f"{len(group)} groups up to {group.max(initial=-1)}", hint)
    labels = labels_of(criterion, classes)
    if labels != (-1,) and (y is None or not (y >= 0).any()):
        raise InputError("y", "missing", f"{criterion} is found on labelled nodes")
    cells = []
    for label in labels:
        rows = (group >= 0) if label < 0 else (group >= 0) & (y == label)
        counts = np.bincount(group[rows], minlength=a.shape[-1])
        if (counts > 0).sum() < 2:
            continue
        members = rows & (group == np.arange(a.shape[-1])[:, None])
        weights = members / np.maximum(counts, 1)[:, None]
        columns = np.ones(classes, dtype=bool)
        if criterion == "equal_opportunity":
            columns = np.arange(classes) == label
        elif criterion == "false_positive_rate_parity":
            columns = np.arange(classes) != label
        cells.append(Cell(label, weights, columns))
    if len(cells) < len(labels):
        where = "nodes" if labels == (-1,) else "labelled nodes of every class it is about"
        raise InputError("group", "fewer than two", f"{criterion} needs {where} of two groups")
    return cells


def _shares(cell: Cell, p: Floats, a: Floats) -> Floats:
    """The estimated share of each group, and label, among nodes of known group."""
    known_mask = (cell.weights > 0).any(0) if cell.label < 0 else slice(None)
    estimated = relevance(p, a, cell.label, np.ones(a.shape[-1]))[known_mask].mean(0)
    return np.asarray(np.maximum(estimated, 1e-12))


def _largest_gap(cells: Sequence[Cell], decided: Integers, classes: int) -> float:
    one_hot = np.eye(classes)[decided]
    gaps = []
    for cell in cells:
        present = cell.weights.any(1)
        rates = cell.weights[present] @ one_hot
        gaps.append(np.ptp(rates[:, cell.columns], axis=0).max())
    return float(max(gaps))


# Two groups and two classes: one number, and a node changes sides at one value of it.


@dataclass(frozen=True)
class BlindPath:
    """The decisions p₁ − p₀ > 2λb of all λ: each person changes sides at one λ only.

    Attributes:
        cuts: values of λ between which no decision changes (K).
        gaps: rate of group 1 less that of group 0 on the fitting nodes, at each (K).
    """

    cuts: Floats
    gaps: Floats

    def smallest_within(self, limit: float) -> float:
        """The λ nearest to 0 whose gap is within a limit; else one of the smallest gap."""
        excess = np.maximum(np.abs(self.gaps) - limit - ROUNDING, 0.0)
        return float(self.cuts[np.lexsort((np.abs(self.cuts), excess))[0]])

    def multipliers(self, lam: float) -> Floats:
        """λ as multipliers of a rule (1×2×2)."""
        return lam * np.array([[[1.0, -1.0], [-1.0, 1.0]]])


def blind_path(p: Floats, a: Floats, cell: Cell, shares: Floats) -> BlindPath:
    """The gap between two true groups along the blind rules of two classes."""
    counted = relevance(p, a, cell.label, shares)
    # The price of class 1 is λb, that of class 0 is −λb.
    margin, b = p[:, 1] - p[:, 0], 2 * (counted[:, 1] - counted[:, 0])
    nodes = (cell.weights > 0).any(0)
    margin, b, weight = margin[nodes], b[nodes], (cell.weights[1] - cell.weights[0])[nodes]
    moves = np.abs(b) > 1e-12
    change = margin[moves] / b[moves]
    # Below every change, those of positive b are decided class 1, and leave it as λ grows.
    order = np.argsort(change)
    steps = np.where(b[moves] > 0, -1.0, 1.0)[order] * weight[moves][order]
    start = weight[moves][b[moves] > 0].sum() + weight[~moves][margin[~moves] > 0].sum()
    ends = change[order]
    last_of_ties = np.append(ends[1:] > ends[:-1], True) if len(ends) else np.zeros(0, dtype=bool)
    gaps = np.append(start, (start + steps.cumsum())[last_of_ties])
    ends = ends[last_of_ties]
    middles = (ends[1:] + ends[:-1]) / 2
    outer = (ends[:1] - 1, ends[-1:] + 1) if len(ends) else (np.zeros(1), np.zeros(0))
    cuts = np.concatenate([outer[0], middles, outer[1]])
    # At λ = 0 itself, where a node of equal probabilities is decided class 0.
    cuts = np.append(cuts, 0.0)
    gaps = np.append(gaps, weight[margin > 0].sum())
    return BlindPath(cuts, gaps)


# Several groups, classes or labels: the path of the closest rule for estimated groups.


def _along_path(
    p: Floats, a: Floats, cells: list[Cell], shares: Floats, target: float, gap: Gap
) -> Floats:
    """The first multipliers of the path whose gap between true groups is within the target."""
    dual = _EstimatedDual.of(p, a, cells, shares)
    u = np.zeros((len(cells), a.shape[-1], p.shape[1]))
    best, largest = u, max(gap(u), target)
    smallest = largest
    error = np.zeros_like(u)
    for part in (*PATH, *[0.0] * REFINEMENTS):
        u = dual.closest(part * largest, u, error)
        if gap(u) < smallest:
            best, smallest = u, gap(u)
        if smallest <= target + ROUNDING:
            return best
        if not part:
            # From here on, rates of estimated groups are corrected by those of true ones.
            error = dual.estimated_rates(u) - dual.true_rates(u)
    return best


@dataclass(frozen=True)
class _EstimatedDual:
    """The problem of the most accurate rule, with estimated groups."""

    p: Floats  # n×C
    counted: list[Floats]  # how much nodes count for the rate of each group, by cell (n×G)
    cells: list[Cell]
    allowed: NDArray[np.bool_]  # multipliers that are not 0 (L×1×C)

    @classmethod
    def of(cls, p: Floats, a: Floats, cells: list[Cell], shares: Floats) -> _EstimatedDual:
        counted = [
            relevance(p, a, cell.label, row) for cell, row in zip(cells, shares, strict=True)
        ]
        return cls(p, counted, cells, np.array([cell.columns for cell in cells])[:, None, :])

    def scores(self, u: Floats) -> Floats:
        prices = [part @ table for part, table in zip(self.counted, u, strict=True)]
        return np.asarray(self.p - np.sum(prices, axis=0))

    def estimated_rates(self, u: Floats) -> Floats:
        """Smoothed rates of estimated groups (L×G×C)."""
        q = softmax(self.scores(u) / SMOOTHING, axis=1)
        return np.stack([part.T @ q / len(q) for part in self.counted])

    def true_rates(self, u: Floats) -> Floats:
        """Rates of decisions of true groups (L×G×C)."""
        decided = np.eye(self.p.shape[1])[self.scores(u).argmax(1)]
        return np.stack([cell.weights @ decided for cell in self.cells])

    def centred(self, v: Floats, shape: tuple[int, ...]) -> Floats:
        """Multipliers that sum to 0 over the groups."""
        u = v.reshape(shape) * self.allowed
        return np.asarray(u - u.mean(1, keepdims=True))

    def closest(self, target: float, start: Floats, error: Floats) -> Floats:
        """Minimise the smoothed dual: E max_c (p_c − price_c) + target/2 · Σ|u|, Σ_g u = 0.

        ``error`` is subtracted from the rates of the estimated groups.
        """
        shape = start.shape

        def loss(v: Floats) -> tuple[float, Floats]:
            u = self.centred(v, shape)
            size = np.sqrt(u**2 + CORNER**2)
            value = SMOOTHING * logsumexp(self.scores(u) / SMOOTHING, axis=1).mean()
            value += target / 2 * size.sum() + (error * u).sum()
            slope = error - self.estimated_rates(u) + target / 2 * u / size
            return float(value), self.centred(slope, shape).ravel()

        options = {"maxiter": 200}
        result = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return self.centred(np.asarray(result.x), shape)
