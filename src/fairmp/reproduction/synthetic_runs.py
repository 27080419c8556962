"""One setting of the (n, ρ, ε, c) model: measured on drawn graphs, predicted by theory."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.conditions import MEANS, Form, Normalisation, bias_enhancement
from fairmp.analysis.theory.measurement import measured_change
from fairmp.analysis.theory.prediction import predicted_change
from fairmp.errors import InputError

QUANTITIES = ("gap", "parity", "information")
COVARIANCES = {
    "identity": np.eye(2),
    "diagonal": np.diag([1.0, 2.0]),
    "different": np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.5], [0.5, 0.5]]]),
}


@dataclass(frozen=True)
class Setting:
    """One point of the (n, ρ, ε, c) model with its features and what is done to them.

    ``covariance`` names one of ``COVARIANCES``; ``separation`` scales the means (0, 1) and (1, 0).
    """

    n: int
    rho: float
    eps: float
    c: float
    covariance: str = "identity"
    separation: float = 1.0
    steps: int = 1
    normalisation: Normalisation = "row"

    @property
    def average_degree(self) -> float:
        """Neighbours of a node, on average."""
        return self.rho * (self.n - 1)

    @property
    def means(self) -> np.ndarray:
        """The two groups' means."""
        return self.separation * np.array(MEANS)

    def condition(self, form: Form) -> float | None:
        """Left-hand side of Theorem 2's condition; none where the covariances differ."""
        covariance = COVARIANCES[self.covariance]
        if covariance.ndim > 2:
            return None
        value = bias_enhancement(
            self.n,
            self.rho,
            self.eps,
            self.c,
            form=form,
            normalisation=self.normalisation,
            means=self.means,
            covariance=covariance,
        )
        return float(value)


@dataclass(frozen=True)
class Reading:
    """A change (after − before): measured mean, half-width of its 95 % interval, and theory's."""

    measured: float
    interval: float
    predicted: float

    @property
    def covered(self) -> bool:
        """Whether theory's value lies in the measured interval."""
        return abs(self.measured - self.predicted) <= self.interval

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes 0, else 0."""
        return int(np.sign(self.measured)) if abs(self.measured) > self.interval else 0


@dataclass(frozen=True)
class Point:
    """What was measured at one setting, and what theory says."""

    series: str
    setting: Setting
    seeds: int
    gap: Reading
    parity: Reading
    information: Reading
    printed: float | None
    corrected: float | None


def measure(setting: Setting, *, seeds: int = 5, seed: int = 0, series: str = "") -> Point:
    """Draw ``seeds`` graphs of a setting, average over neighbours, and hold theory against it.

    The interval is Student's, over the graphs.

    Example:
        >>> point = measure(Setting(n=1000, rho=0.02, eps=0.9, c=0.5), seeds=3)
        >>> point.information.sign, point.information.predicted > 0, point.corrected > 1
        (1, True, True)
    """
    from scipy.stats import t

    if seeds < 2:
        raise InputError("seeds", f"{seeds} gives no interval", "give 2 or more")
    covariances = COVARIANCES[setting.covariance]
    changes = []
    for child in np.random.SeedSequence(seed).generate_state(seeds):
        data = block_graph(
            setting.n,
            setting.rho,
            setting.eps,
            setting.c,
            means=setting.means,
            covariances=covariances,
            seed=int(child),
        )
        changes.append(
            measured_change(data, steps=setting.steps, normalisation=setting.normalisation)
        )
    theory = predicted_change(
        setting.n,
        setting.rho,
        setting.eps,
        setting.c,
        means=setting.means,
        covariances=covariances,
        steps=setting.steps,
        normalisation=setting.normalisation,
    )
    width = float(t.ppf(0.975, seeds - 1)) / np.sqrt(seeds)
    readings = {}
    for quantity in QUANTITIES:
        values = np.array([getattr(change, quantity) for change in changes])
        readings[quantity] = Reading(
            float(values.mean()),
            float(width * values.std(ddof=1)),
            float(getattr(theory, quantity)),
        )
    return Point(
        series,
        setting,
        seeds,
        **readings,
        printed=setting.condition("printed"),
        corrected=setting.condition("corrected"),
    )


def record(point: Point) -> dict[str, object]:
    """Flatten a point into one JSON-ready record.

    Example:
        >>> row = record(measure(Setting(n=500, rho=0.02, eps=0.9, c=0.5), seeds=2))
        >>> row["eps"], sorted(key for key in row if key.startswith("gap"))
        (0.9, ['gap_interval', 'gap_measured', 'gap_predicted'])
    """
    row: dict[str, object] = {"series": point.series, "seeds": point.seeds}
    row |= asdict(point.setting) | {"average_degree": point.setting.average_degree}
    for quantity in QUANTITIES:
        reading = asdict(getattr(point, quantity))
        row |= {f"{quantity}_{name}": value for name, value in reading.items()}
    return row | {"printed": point.printed, "corrected": point.corrected}
