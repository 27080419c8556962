"""Settings of the (n, ρ, ε, c) model: bias under averaging, measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from torch_geometric.data import Data

from experiments.measured_bias import balanced_eps, measured_change
from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.conditions import (
    MEANS,
    Form,
    Normalisation,
    bias_enhancement,
    blocks,
)
from fairmp.analysis.theory.prediction import BiasChange, predicted_change
from fairmp.comparison import Record
from fairmp.errors import check_integer
from fairmp.metrics import mean_interval

FORMS: tuple[Form, Form] = ("printed", "corrected")
LITERAL = "as printed"
"""The printed condition, in the ν and ζ of the paper, whatever the operator."""
AGREEMENT_FORMS = {
    "symmetric": (LITERAL, *FORMS),
    "row": (LITERAL, "corrected"),  # the printed form is that of row averaging
}
OPERATORS: tuple[Normalisation, Normalisation] = ("symmetric", "row")
"""The paper's Ã first."""
QUANTITIES = ("gap", "parity", "fixed_parity", "information")
MANY_NEIGHBOURS = 20
"""Average degree from which errors of parity are counted together."""
COVARIANCES = {
    "identity": np.eye(2),
    "diagonal": np.diag([1.0, 2.0]),
    "different": np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.5], [0.5, 0.5]]]),
}


@dataclass(frozen=True)
class GraphSetting:
    """A point of the (n, ρ, ε, c) model, its features, and how they are averaged."""

    n: int
    rho: float
    eps: float
    c: float
    covariance: str = "identity"  # a key of COVARIANCES
    separation: float = 1.0  # scales the means (0, 1) and (1, 0)
    steps: int = 1
    normalisation: Normalisation = "symmetric"  # the paper's Ã

    @property
    def means(self) -> np.ndarray:
        """Means of the two groups' features."""
        return self.separation * np.array(MEANS)

    @property
    def covariances(self) -> np.ndarray:
        """Covariance of both groups' features, or one for each."""
        return COVARIANCES[self.covariance]

    def draw(self, seed: int) -> Data:
        """Draw a graph."""
        return block_graph(
            self.n,
            self.rho,
            self.eps,
            self.c,
            means=self.means,
            covariances=self.covariances,
            seed=seed,
        )

    def measured(self, graph: Data) -> BiasChange:
        """Change of the bias on a graph."""
        return measured_change(graph, steps=self.steps, normalisation=self.normalisation)

    def predicted(
        self, *, rho: ArrayLike | None = None, eps: ArrayLike | None = None
    ) -> BiasChange:
        """Change of the bias predicted by theory, here or at other densities or homophilies."""
        density = self.rho if rho is None else rho
        homophily = self.eps if eps is None else eps
        return predicted_change(
            *blocks(self.n, density, homophily, self.c),
            means=self.means,
            covariances=self.covariances,
            steps=self.steps,
            normalisation=self.normalisation,
        )

    def condition(
        self, form: Form, *, rho: ArrayLike | None = None, eps: ArrayLike | None = None
    ) -> Any:
        """Left-hand side of Theorem 2's condition; ``None`` where the covariances differ."""
        if self.covariances.ndim > 2:
            return None
        return bias_enhancement(
            self.n,
            self.rho if rho is None else rho,
            self.eps if eps is None else eps,
            self.c,
            form=form,
            normalisation=self.normalisation,
            means=self.means,
            covariance=self.covariances,
        )


def setting_of(points: pd.DataFrame) -> GraphSetting:
    """Setting of the first of some measured points."""
    [first] = points.head(1).to_dict("records")
    return GraphSetting(**{field.name: first[field.name] for field in fields(GraphSetting)})


def measure(setting: GraphSetting, *, seeds: int = 5, seed: int = 0, series: str = "") -> Record:
    """Draw graphs of a setting: changes of the bias measured, their 95 % intervals, predicted."""
    check_integer("seeds", seeds, "an interval needs 2 or more", low=2)
    graph_seeds = np.random.SeedSequence(seed).generate_state(seeds)
    measured = [setting.measured(setting.draw(int(graph_seed))) for graph_seed in graph_seeds]
    predicted = setting.predicted()
    point: Record = {"series": series, "seeds": seeds, **asdict(setting)}
    point["average_degree"] = setting.rho * (setting.n - 1)
    for quantity in QUANTITIES:
        interval = mean_interval([float(getattr(change, quantity)) for change in measured])
        point[f"{quantity}_measured"] = interval.mean
        point[f"{quantity}_interval"] = (interval.high - interval.low) / 2
        point[f"{quantity}_predicted"] = float(getattr(predicted, quantity))
    for form in FORMS:
        point[form] = setting.condition(form)
    point[LITERAL] = replace(setting, normalisation="row").condition("printed")
    return point


@dataclass(frozen=True)
class Design:
    """An experiment: settings, each with the series it belongs to, and graphs per setting."""

    seeds: int
    settings: Sequence[tuple[str, GraphSetting]]


def measure_all(
    design: Design, seed: int = 0, progress: Callable[[str], None] = lambda series: None
) -> pd.DataFrame:
    """Measure the settings of an experiment; ``progress`` is called with the series of each."""
    points = []
    for number, (series, setting) in enumerate(design.settings, start=1):
        points.append(measure(setting, seeds=design.seeds, seed=seed + number, series=series))
        progress(series)
    return pd.DataFrame(points)


def place(data: Data, *, ridge: float = 1e-2) -> Record:
    """Place a graph of two groups on the phase diagram; measure and predict one step's effect.

    The graph's own features are standardised; a ridge allows columns that are constant in a group.
    """
    deviation = data.x.std(0)
    varied = deviation > 0
    x = (data.x[:, varied] - data.x[:, varied].mean(0)) / deviation[varied]
    graph = Data(x=x, edge_index=data.edge_index, sens=data.sens)
    moments = measurement.measured_moments(x, data.sens, ridge=ridge)
    model = measurement.graph_parameters(graph)
    spot: Record = {
        "name": str(data.name),
        "n": model.n,
        "average_degree": model.rho * (model.n - 1),
        "eps": model.eps,
        "c": model.c,
        "balanced_eps": balanced_eps(model),
    }
    for operator in OPERATORS:
        measured = measured_change(graph, ridge=ridge, normalisation=operator)
        predicted = predicted_change(
            *measurement.block_counts(graph),
            means=moments.means,
            covariances=moments.covariances,
            normalisation=operator,
        )
        for quantity in ("parity", "information"):
            spot[f"{quantity}_measured_{operator}"] = float(getattr(measured, quantity))
            spot[f"{quantity}_predicted_{operator}"] = float(getattr(predicted, quantity))
    return spot


def sign(points: pd.DataFrame, quantity: str) -> pd.Series:
    """+1 or −1 where the measured interval of a change excludes 0, else 0."""
    measured = points[f"{quantity}_measured"]
    decided = measured.abs() > points[f"{quantity}_interval"]
    return pd.Series(np.sign(measured).where(decided, 0))


def agreement_by_operator(points: pd.DataFrame) -> list[dict[str, Any]]:
    """:func:`agreement_table` for each normalisation, which its rows name."""
    return [
        {"normalisation": str(normalisation), **row}
        for normalisation, group in points.groupby("normalisation", sort=False)
        for row in agreement_table(group, AGREEMENT_FORMS[str(normalisation)])
    ]


def agreement_table(
    points: pd.DataFrame, forms: Sequence[str] = (LITERAL, "corrected")
) -> list[dict[str, Any]]:
    """Count how often each form agrees with the measured sign of the bias's change."""
    measured = sign(points, "information")
    decided = (measured != 0) & points["printed"].notna()
    conditions = points[list(FORMS)]
    near = decided & ((conditions > 0.5) & (conditions < 2)).any(axis=1)
    predictions = {form: points[form] > 1 for form in forms}
    predictions["prediction"] = points["information_predicted"] > 0
    rows = []
    for form, adds_bias in predictions.items():
        wrong = decided & (adds_bias != (measured > 0))
        rows.append(
            {
                "form": form,
                "points": len(points),
                "decided": int(decided.sum()),
                "border": int(near.sum()),
                "agree": 1 - wrong.sum() / max(decided.sum(), 1),
                "agree_border": 1 - (wrong & near).sum() / max(near.sum(), 1),
                "false_alarms": int((wrong & adds_bias).sum()),
                "misses": int((wrong & ~adds_bias).sum()),
            }
        )
    return rows


def coverage(points: pd.DataFrame, quantity: str) -> float:
    """Share of points whose measured interval contains the prediction; it should be 0.95."""
    error = points[f"{quantity}_measured"] - points[f"{quantity}_predicted"]
    return float((error.abs() <= points[f"{quantity}_interval"]).mean())


def parity_error(points: pd.DataFrame) -> dict[str, float]:
    """Median distance of the predicted change of parity from the measured one, by degree."""
    errors = (points["parity_measured"] - points["parity_predicted"]).abs()
    degrees = points["average_degree"].round().clip(upper=MANY_NEIGHBOURS)
    medians = errors.groupby(degrees).median().items()
    return {
        f"{degree:.0f} or more" if degree == MANY_NEIGHBOURS else f"{degree:.0f}": float(median)
        for degree, median in medians
    }
