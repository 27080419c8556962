"""Measurement and theory: of a setting of the (n, ρ, ε, c) model, and of a real graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch_geometric.data import Data

from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.conditions import MEANS, Form, Normalisation, bias_enhancement
from fairmp.analysis.theory.prediction import Change, predicted_block_change, predicted_change
from fairmp.errors import check_integer
from fairmp.metrics import mean_interval

QUANTITIES = ("gap", "parity", "information")
COVARIANCES = {
    "identity": np.eye(2),
    "diagonal": np.diag([1.0, 2.0]),
    "different": np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.5], [0.5, 0.5]]]),
}


@dataclass(frozen=True)
class Setting:
    """A point of the (n, ρ, ε, c) model, its features, and how they are averaged.

    ``covariance`` is a key of ``COVARIANCES``; ``separation`` scales the means (0, 1) and (1, 0).
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
        """Expected number of neighbours."""
        return self.rho * (self.n - 1)

    @property
    def means(self) -> np.ndarray:
        """Mean features of the two groups."""
        return self.separation * np.array(MEANS)

    def predicted(self, eps: float | np.ndarray | None = None) -> Change:
        """Change predicted by theory, at this homophily or at others."""
        model = (self.n, self.rho, self.eps if eps is None else eps, self.c)
        how: dict[str, Any] = {"steps": self.steps, "normalisation": self.normalisation}
        sigma = COVARIANCES[self.covariance]
        return predicted_change(*model, means=self.means, covariances=sigma, **how)

    def condition(self, form: Form) -> float | None:
        """Left-hand side of Theorem 2's condition; ``None`` where the covariances differ."""
        model, sigma = (self.n, self.rho, self.eps, self.c), COVARIANCES[self.covariance]
        if sigma.ndim > 2:
            return None
        how: dict[str, Any] = {"form": form, "normalisation": self.normalisation}
        return float(bias_enhancement(*model, means=self.means, covariance=sigma, **how))


@dataclass(frozen=True)
class Reading:
    """A change (after − before): measured mean, half-width of its 95 % interval, and prediction."""

    measured: float
    interval: float
    predicted: float

    @property
    def covered(self) -> bool:
        """Whether the measured interval contains the prediction."""
        return abs(self.measured - self.predicted) <= self.interval

    @property
    def sign(self) -> int:
        """+1 or −1 where the interval excludes 0, else 0."""
        return int(np.sign(self.measured)) if abs(self.measured) > self.interval else 0


@dataclass(frozen=True)
class Point:
    """Measurement and theory at one setting."""

    series: str
    setting: Setting
    seeds: int
    gap: Reading
    parity: Reading
    information: Reading
    printed: float | None
    corrected: float | None

    def to_dict(self) -> dict[str, object]:
        """Return a flat record of JSON types."""
        row: dict[str, object] = {"series": self.series, "seeds": self.seeds}
        row |= asdict(self.setting) | {"average_degree": self.setting.average_degree}
        for quantity in QUANTITIES:
            reading = asdict(getattr(self, quantity))
            row |= {f"{quantity}_{name}": value for name, value in reading.items()}
        return row | {"printed": self.printed, "corrected": self.corrected}


def measure(setting: Setting, *, seeds: int = 5, seed: int = 0, series: str = "") -> Point:
    """Draw ``seeds`` graphs of a setting, average over neighbours, and compare with theory.

    The interval over graphs is Student's.
    """
    check_integer("seeds", seeds, "an interval needs 2 or more", low=2)
    model = (setting.n, setting.rho, setting.eps, setting.c)
    features: dict[str, Any] = {"means": setting.means}
    features["covariances"] = COVARIANCES[setting.covariance]
    how: dict[str, Any] = {"steps": setting.steps, "normalisation": setting.normalisation}
    children = np.random.SeedSequence(seed).generate_state(seeds)
    graphs = (block_graph(*model, **features, seed=int(child)) for child in children)
    changes = [measurement.measured_change(graph, **how) for graph in graphs]
    theory = setting.predicted()
    readings = {}
    for quantity in QUANTITIES:
        found = mean_interval([float(getattr(change, quantity)) for change in changes])
        half = (found.high - found.low) / 2
        readings[quantity] = Reading(found.mean, half, float(getattr(theory, quantity)))
    printed, corrected = setting.condition("printed"), setting.condition("corrected")
    return Point(series, setting, seeds, **readings, printed=printed, corrected=corrected)


def place(data: Data, *, ridge: float = 1e-2) -> dict[str, Any]:
    """Place a graph of two groups on the phase diagram, and predict the effect of one step.

    ``parity`` and ``information`` are changes (after − before) for the graph's own features,
    standardised; ``ridge`` is added to their covariances, as real columns are often constant within
    a group. Predictions assume normal features and a block model with the graph's own moments and
    edge probabilities.
    """
    deviation = data.x.std(0)
    varied = deviation > 0
    x = (data.x[:, varied] - data.x[:, varied].mean(0)) / deviation[varied]
    graph = Data(x=x, edge_index=data.edge_index, sens=data.sens)
    moments, _ = measurement.group_moments(x, data.sens, ridge=ridge)
    measured = measurement.measured_change(graph, ridge=ridge)
    predicted = predicted_block_change(
        *measurement.block_counts(graph), means=moments.means, covariances=moments.covariances
    )
    parameters = measurement.graph_parameters(graph)
    names = ("n", "average_degree", "eps", "c", "balanced_eps")
    return {
        "name": str(data.name),
        **{name: getattr(parameters, name) for name in names},
        **{
            f"{quantity}_{how}": float(getattr(change, quantity))
            for quantity in ("parity", "information")
            for how, change in (("measured", measured), ("predicted", predicted))
        },
    }
