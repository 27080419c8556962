"""Message passing on synthetic graphs, measurement against theory: ``fairmp reproduce synthetic``.

* ``panels``: change of the demographic-parity gap under one step of averaging, against homophily;
* ``agreement``: how often each form of Theorem 2's condition agrees with measurement;
* ``phase``: for which homophily and average degree averaging adds bias, and where real graphs lie;
* ``depth``: the same question after one to four steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data import Data

from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.conditions import MEANS, Form, Normalisation, bias_enhancement
from fairmp.analysis.theory.prediction import Change, predicted_block_change, predicted_change
from fairmp.comparison import Record
from fairmp.comparison.page import Content
from fairmp.errors import check_integer
from fairmp.metrics import mean_interval
from fairmp.metrics.evaluation import json_safe
from fairmp.outputs import write_json
from fairmp.report import Section
from fairmp.report.figures import COLOURS, embedded, figure
from fairmp.report.formats import Table, write_records
from fairmp.reproduction import paper
from fairmp.reproduction.paper import sign

FORMS: tuple[Form, Form] = ("printed", "corrected")
COVARIANCES = {
    "identity": np.eye(2),
    "diagonal": np.diag([1.0, 2.0]),
    "different": np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.5], [0.5, 0.5]]]),
}
BLUE, VERMILION, GREEN, BLACK = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
LABELS = {
    "gap": "change of ‖mean difference‖",
    "parity": "change of ΔDP (points)",
    "information": "change of bias (nats)",
}
TITLES = {
    "density": ("density", "rho", "ρ"),
    "nodes": ("number of nodes", "n", "n"),
    "ratio": ("group ratio", "c", "c"),
}
ROWS = {"identity": "Σ = I", "diagonal": "Σ = diag(1, 2)", "different": "Σ₁ ≠ Σ₂"}


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
    for quantity in LABELS:
        found = mean_interval([float(getattr(change, quantity)) for change in changes])
        row[f"{quantity}_measured"] = found.mean
        row[f"{quantity}_interval"] = (found.high - found.low) / 2
        row[f"{quantity}_predicted"] = float(getattr(theory, quantity))
    return row | {form: setting.condition(form) for form in FORMS}


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


CENTRE = Setting(n=10_000, rho=1e-3, eps=0.5, c=0.5)
COUNTEREXAMPLE = Setting(n=20_000, rho=5e-4, eps=0.64, c=0.5)
FIGURES = {
    "panels_parity": ("ΔDP against homophily", "Markers are measured, lines are predicted."),
    "panels_information": ("Bias against homophily", "In nats, after one step of averaging."),
    "agreement": ("Each condition against measurement", "Lower left and upper right agree."),
    "phase": ("The phase diagram", "Where one step of averaging adds bias, and real graphs."),
    "depth": ("More than one step", "The same question after one to four steps."),
}
RIGHT = (
    "A form is right when it agrees with measurement. It matters most near the threshold, where "
    "the printed or the corrected condition lies between ½ and 2."
)
AGREEMENT = {
    "form": "{form}",
    "right": "{agree:.1%}",
    "right near the threshold": "{agree_border:.1%}",
    "false alarms": "{false_alarms}",
    "misses": "{misses}",
    "decided": "{decided} of {points}",
}
GRAPHS = {
    "graph": "{name}",
    "nodes": "{n:,}",
    "average degree": "{average_degree:.1f}",
    "homophily": "{eps:.3f}",
    "balanced": "{balanced_eps:.3f}",
    "ΔDP measured": "{parity_measured:+.1%}",
    "predicted": "{parity_predicted:+.1%}",
}


def designs(quick: bool = False) -> dict[str, tuple[int, list[tuple[str, Setting]]]]:
    """Experiments by name: graphs drawn per setting, and the settings with their series."""
    densities = (3e-4, 1e-3, 3e-3) if quick else (1e-4, 1e-3, 1e-2)
    nodes = (2_000, 5_000, 10_000) if quick else (1_000, 10_000, 30_000)
    varied = [
        *(("density", replace(CENTRE, rho=rho)) for rho in densities),
        *(("nodes", replace(CENTRE, n=n)) for n in nodes),
        *(("ratio", replace(CENTRE, c=c)) for c in (0.5, 0.7, 0.9)),
    ]
    panels = [
        (series, replace(setting, eps=float(eps), covariance=name))
        for name in COVARIANCES
        for series, setting in varied
        for eps in np.linspace(0.0, 1.0, 5 if quick else 21)
    ]
    n = 3_000 if quick else 10_000
    agreement = [
        ("agreement", Setting(n, degree / (n - 1), float(eps), c, separation=separation))
        for degree in ((3, 5, 8, 12, 20, 35, 60) if quick else (3, 5, 8, 12, 20, 35, 60, 100))
        for eps in np.linspace(0.05, 0.95, 6 if quick else 12)
        for c in (0.5, 0.65, 0.8)
        for separation in (1.0, 2.0)
    ]
    n = 4_000 if quick else 10_000
    phase = [
        ("phase", Setting(n, float(degree) / (n - 1), float(eps), 0.5))
        for degree in np.geomspace(2, 100, 6 if quick else 12)
        for eps in np.linspace(0, 1, 11 if quick else 21)
    ]
    start = replace(COUNTEREXAMPLE, n=10_000, rho=1e-3) if quick else COUNTEREXAMPLE
    normalisations: tuple[Normalisation, ...] = ("row", "symmetric")
    depth = [
        ("depth", replace(start, eps=eps, steps=steps, normalisation=normalisation))
        for normalisation in normalisations
        for eps in (0.55, 0.64, 0.8)
        for steps in (1, 2, 3, 4)
    ]
    return {
        "panels": (3 if quick else 10, panels),
        "agreement": (2 if quick else 5, agreement),
        "phase": (2 if quick else 3, phase),
        "depth": (2 if quick else 10, depth),
    }


def measure_all(
    seeds: int,
    settings: Sequence[tuple[str, Setting]],
    seed: int = 0,
    progress: Callable[[str], None] = lambda series: None,
) -> pd.DataFrame:
    """Measure the settings of an experiment; ``progress`` is called with the series of each."""
    points = []
    for number, (series, setting) in enumerate(settings, start=1):
        points.append(measure(setting, seeds=seeds, seed=seed + number, series=series))
        progress(series)
    return pd.DataFrame(points)


def agreement_table(points: pd.DataFrame) -> list[dict[str, object]]:
    """Count how often each form agrees with the measured sign of the bias's change."""
    measured = sign(points, "information")  # 0 where the interval contains 0: not decided
    decided = (measured != 0) & points["printed"].notna()
    near = decided & ((points[list(FORMS)] > 0.5) & (points[list(FORMS)] < 2)).any(axis=1)
    forms = {str(form): points[form] > 1 for form in FORMS}
    forms["prediction"] = points["information_predicted"] > 0
    rows: list[dict[str, object]] = []
    for form, adds in forms.items():
        wrong = decided & (adds != (measured > 0))
        row: dict[str, object] = {"form": form, "points": len(points)}
        row |= {"decided": int(decided.sum()), "border": int(near.sum())}
        row["agree"] = 1 - wrong.sum() / max(decided.sum(), 1)
        row["agree_border"] = 1 - (wrong & near).sum() / max(near.sum(), 1)
        row["false_alarms"], row["misses"] = int((wrong & adds).sum()), int((wrong & ~adds).sum())
        rows.append(row)
    return rows


def coverage(points: pd.DataFrame, quantity: str) -> float:
    """Share of points whose measured interval contains the prediction; it should be 0.95."""
    error = points[f"{quantity}_measured"] - points[f"{quantity}_predicted"]
    return float((error.abs() <= points[f"{quantity}_interval"]).mean())


def run(
    folder: Path,
    quick: bool = False,
    seed: int = 0,
    graphs: Iterable[Data] = (),
    progress: Callable[[str], None] = lambda series: None,
) -> dict[str, Any]:
    """Run every experiment; write records, figures and the summary that is returned."""
    places = [place(graph) for graph in graphs]
    folder.mkdir(parents=True, exist_ok=True)
    plans = designs(quick).items()
    results = {name: measure_all(*design, seed, progress) for name, design in plans}
    seeds = 5 if quick else 20
    witness = measure(COUNTEREXAMPLE, seeds=seeds, seed=seed, series="counterexample")
    spots = [(spot["name"], spot["balanced_eps"], spot["average_degree"]) for spot in places]
    drawn = {"phase": draw_phase(results["phase"], spots)}
    drawn["agreement"] = draw_agreement(results["agreement"])
    drawn["depth"] = draw_depth(results["depth"])
    for quantity in ("parity", "information"):
        drawn[f"panels_{quantity}"] = draw_panels(results["panels"], quantity)
    for name, fig in drawn.items():
        fig.savefig(folder / f"{name}.png", dpi=160)
    every = pd.concat([*results.values(), pd.DataFrame([witness])])
    write_records(json_safe(every.to_dict("records")), folder)
    equal = results["agreement"][results["agreement"]["c"] == 0.5]
    summary: dict[str, Any] = {
        "agreement": agreement_table(results["agreement"]),
        "agreement_equal_groups": agreement_table(equal),
        "coverage": {q: coverage(results["agreement"], q) for q in LABELS},
        "counterexample": witness,
        "graphs": places,
    }
    summary["claims"] = [vars(c) for c in paper.synthetic_claims(summary, results["panels"])]
    write_json(folder / "summary.json", summary)
    return summary


def witness_text(summary: dict[str, Any]) -> str:
    """Describe the counterexample in a sentence."""
    return (
        "The counterexample: the printed condition gives {printed:.2f}, the corrected one "
        "{corrected:.2f}; the bias changes by {information_measured:+.3f} ± "
        "{information_interval:.3f} nats (predicted {information_predicted:+.3f})."
    ).format(**summary["counterexample"])


def content(summary: dict[str, Any], folder: Path) -> Content:
    """Content of the page, from the summary and the figures in the folder."""
    forms = _table("Agreement of each form with measurement", AGREEMENT, summary["agreement"])
    claims = paper.claims_table(paper.Claim(**row) for row in summary["claims"])
    pictures = [
        Section(title, svg=embedded(folder / f"{name}.png", title), caption=caption)
        for name, (title, caption) in FIGURES.items()
    ]
    graphs: Any = Section("Real graphs", text=["No data set's files were found."])
    if summary["graphs"]:
        graphs = _table("Real graphs", GRAPHS, summary["graphs"])
    text = f"{witness_text(summary)} {RIGHT}"
    parts = [forms, claims, *pictures, graphs]
    return "Message passing on synthetic graphs", text, parts


def _table(title: str, formats: dict[str, str], rows: Sequence[dict[str, Any]]) -> Table:
    """One row per dictionary, formatted by the text of each column."""
    texts = [[text.format(**row) for text in formats.values()] for row in rows]
    return Table(title, list(formats), texts)


def draw_panels(points: pd.DataFrame, quantity: str) -> Any:
    """Change under one step against homophily, one row per covariance."""
    names = list(points["covariance"].unique())
    fig, axes = figure(8.6, 2.6 * len(names) + 0.4, nrows=len(names), ncols=3, squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for axis, (series, (title, field, symbol)) in zip(row, TITLES.items(), strict=True):
            here = points[(points["series"] == series) & (points["covariance"] == name)]
            _curves(axis, here, quantity, field, symbol)
            _finish(axis, title if row is axes[0] else "")
        row[0].set_ylabel(f"{ROWS[name]}\n{LABELS[quantity]}")
    for axis in axes[-1]:
        axis.set_xlabel("sensitive homophily ε")
    return fig


def draw_agreement(points: pd.DataFrame) -> Any:
    """Measured change of the bias against each condition's value."""
    fig, axes = figure(8, 3.4, ncols=2)
    for axis, form in zip(axes, FORMS, strict=True):
        shown = points[points[form].notna()]
        value, change = shown[form], shown["information_measured"]
        decided, wrong = sign(shown, "information") != 0, (value > 1) != (change > 0)
        for mask, colour, marker, label in (
            (~decided, "0.75", "o", "undecided"),
            (decided & ~wrong, BLUE, "o", "agrees"),
            (decided & wrong, VERMILION, "X", "disagrees"),
        ):
            style = {"color": colour, "label": f"{label}: {int(mask.sum())}"}
            axis.plot(value[mask], change[mask], marker, markersize=3.5, markeredgewidth=0, **style)
        axis.axvline(1, color="0.6", linewidth=0.8, zorder=0)
        axis.set(xscale="log", xlabel="left-hand side of the condition")
        _finish(axis, f"{form} condition", loc="upper left")
    axes[0].set_ylabel("measured " + LABELS["information"])
    return fig


def draw_phase(points: pd.DataFrame, graphs: Iterable[tuple[str, float, float]] = ()) -> Any:
    """Where one step of averaging adds bias; graphs are (name, homophily, degree)."""
    fig, axis = figure(6.4, 4.4)
    places = list(graphs)
    grid = points.pivot(index="average_degree", columns="eps", values="information_measured")
    eps, degree = grid.columns.to_numpy(), grid.index.to_numpy()
    # Colours beyond twice the median change would only hide the threshold.
    limit = 2 * float(np.median(np.abs(grid.to_numpy())))
    shades = {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit, "shading": "nearest"}
    mesh = axis.pcolormesh(eps, degree, grid, **shades)
    fig.colorbar(mesh, ax=axis, label="measured " + LABELS["information"])

    setting = _setting(points)
    lowest, highest = degree[0], max([degree[-1], *(d for _, _, d in places)])
    x, y = np.meshgrid(np.linspace(0, 1, 101), np.geomspace(lowest, highest, 60))
    model = {"rho": y / (setting.n - 1), "eps": x}
    for style, colour, label, value in (
        ("--", VERMILION, "printed condition", setting.condition("printed", **model) - 1),
        ("-", BLACK, "corrected condition", setting.condition("corrected", **model) - 1),
        (":", GREEN, "prediction", setting.predicted(**model).information),
    ):
        axis.contour(x, y, value, levels=[0.0], colors=[colour], linestyles=[style], linewidths=1.6)
        axis.plot([], [], style, color=colour, label=label)
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6}
    offset = {"xytext": (-5, 5), "textcoords": "offset points", "ha": "right"}
    for name, *place in places:
        axis.plot(*place, "o", color=BLACK, markersize=4)
        axis.annotate(name, place, fontsize=8, bbox=box, **offset)
    axis.set(xlabel="sensitive homophily ε", ylabel="average degree (neighbours)", yscale="log")
    axis.set(xlim=(0, 1), ylim=(lowest, 1.15 * highest))
    axis.legend(fontsize=8, loc="lower center")
    return fig


def draw_depth(points: pd.DataFrame) -> Any:
    """Change of the bias after one and more steps, row and symmetric side by side."""
    fig, axes = figure(8, 3.2, ncols=2)
    for axis, normalisation in zip(axes, ("row", "symmetric"), strict=True):
        here = points[points["normalisation"] == normalisation]
        _curves(axis, here, "information", "eps", "ε", against="steps")
        axis.set(xticks=sorted(here["steps"].unique()), xlabel="steps of averaging")
        axis.margins(y=0.2)
        _finish(axis, f"{normalisation} normalisation", ncols=3, loc="upper center")
    axes[0].set_ylabel(LABELS["information"])
    return fig


def _curves(
    axis: Any, points: pd.DataFrame, quantity: str, field: str, symbol: str, against: str = "eps"
) -> None:
    """Measured means with their 95 % intervals, and predictions as lines, by a field's value."""
    unit = 100.0 if quantity == "parity" else 1.0
    for colour, (value, line) in zip(COLOURS, points.groupby(field), strict=False):
        curve, theory = line[against].to_numpy(), line[f"{quantity}_predicted"]
        if against == "eps":
            curve = np.linspace(curve.min(), curve.max(), 201)
            theory = getattr(_setting(line).predicted(eps=curve), quantity)
        axis.plot(curve, unit * theory, "-", color=colour, linewidth=1.1)
        means, half = (unit * line[f"{quantity}_{name}"] for name in ("measured", "interval"))
        style = {"fmt": "o", "markersize": 3, "elinewidth": 0.8, "capsize": 1.5, "color": colour}
        axis.errorbar(line[against], means, yerr=half, label=f"{symbol} = {value:g}", **style)


def _finish(axis: Any, title: str, **legend: Any) -> None:
    axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_title(title, fontsize=10)
    axis.legend(**{"fontsize": 8, "frameon": False} | legend)


def _setting(points: pd.DataFrame) -> Setting:
    """Setting of the first point."""
    [first] = points.head(1).to_dict("records")
    return Setting(**{own.name: first[own.name] for own in fields(Setting)})
