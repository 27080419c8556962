"""Measurement and theory: of a setting of the (n, ρ, ε, c) model, and of a real graph."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data import Data

from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.conditions import MEANS, Form, Normalisation, bias_enhancement
from fairmp.analysis.theory.prediction import Change, predicted_block_change, predicted_change
from fairmp.comparison import Record
from fairmp.errors import check_integer
from fairmp.metrics import mean_interval

QUANTITIES = ("gap", "parity", "information")
FORMS: tuple[Form, Form] = ("printed", "corrected")
COVARIANCES = {
    "identity": np.eye(2),
    "diagonal": np.diag([1.0, 2.0]),
    "different": np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.5], [0.5, 0.5]]]),
}


@dataclass(frozen=True)
class Setting:
    """A point of the (n, ρ, ε, c) model, its features, and how they are averaged."""

    n: int
    rho: float
    eps: float
    c: float
    covariance: str = "identity"  # a key of COVARIANCES
    separation: float = 1.0  # scales the means (0, 1) and (1, 0)
    steps: int = 1
    normalisation: Normalisation = "row"

    def model(self, **at: Any) -> dict[str, Any]:
        """Parameters of the model, or others ``at`` their place."""
        return {name: getattr(self, name) for name in ("n", "rho", "eps", "c")} | at

    @property
    def features(self) -> dict[str, Any]:
        """Means and covariances of the two groups' features."""
        means = self.separation * np.array(MEANS)
        return {"means": means, "covariances": COVARIANCES[self.covariance]}

    @property
    def averaging(self) -> dict[str, Any]:
        """How features are averaged."""
        return {"steps": self.steps, "normalisation": self.normalisation}

    def predicted(self, **at: Any) -> Change:
        """Change predicted by theory, of this model or of others."""
        return predicted_change(**self.model(**at), **self.features, **self.averaging)

    def condition(self, form: Form, **at: Any) -> Any:
        """Left-hand side of Theorem 2's condition; ``None`` where the covariances differ."""
        means, sigma = self.features.values()
        if sigma.ndim > 2:
            return None
        how: dict[str, Any] = {"form": form, "normalisation": self.normalisation}
        return bias_enhancement(**self.model(**at), means=means, covariance=sigma, **how)


def measure(setting: Setting, *, seeds: int = 5, seed: int = 0, series: str = "") -> Record:
    """Draw graphs of a setting: changes of the bias measured, their 95 % intervals, predicted."""
    check_integer("seeds", seeds, "an interval needs 2 or more", low=2)
    children = np.random.SeedSequence(seed).generate_state(seeds)
    drawn = {**setting.model(), **setting.features}
    graphs = (block_graph(**drawn, seed=int(child)) for child in children)
    changes = [measurement.measured_change(graph, **setting.averaging) for graph in graphs]
    theory, degree = setting.predicted(), setting.rho * (setting.n - 1)
    row = {"series": series, "seeds": seeds, **asdict(setting), "average_degree": degree}
    for quantity in QUANTITIES:
        found = mean_interval([float(getattr(change, quantity)) for change in changes])
        row[f"{quantity}_measured"] = found.mean
        row[f"{quantity}_interval"] = (found.high - found.low) / 2
        row[f"{quantity}_predicted"] = float(getattr(theory, quantity))
    return row | {form: setting.condition(form) for form in FORMS}


def sign(points: pd.DataFrame, quantity: str) -> Any:
    """+1 or −1 where the measured interval of a change excludes 0, else 0."""
    measured = points[f"{quantity}_measured"]
    return np.sign(measured).where(measured.abs() > points[f"{quantity}_interval"], 0)


def place(data: Data, *, ridge: float = 1e-2) -> dict[str, Any]:
    """Place a graph of two groups on the phase diagram; measure and predict one step's effect."""
    # Of its own features, standardised; with a ridge, as columns may be constant within a group.
    deviation = data.x.std(0)
    varied = deviation > 0
    x = (data.x[:, varied] - data.x[:, varied].mean(0)) / deviation[varied]
    graph = Data(x=x, edge_index=data.edge_index, sens=data.sens)
    moments, _ = measurement.group_moments(x, data.sens, ridge=ridge)
    changes = {
        "measured": measurement.measured_change(graph, ridge=ridge),
        "predicted": predicted_block_change(*measurement.block_counts(graph), **moments._asdict()),
    }
    parameters = measurement.graph_parameters(graph)
    names = ("n", "average_degree", "eps", "c", "balanced_eps")
    found = {"name": str(data.name), **{name: getattr(parameters, name) for name in names}}
    for quantity in ("parity", "information"):
        for how, change in changes.items():
            found[f"{quantity}_{how}"] = float(getattr(change, quantity))
    return found
