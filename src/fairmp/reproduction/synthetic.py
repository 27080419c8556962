"""Message passing on synthetic graphs, measurement against theory: ``fairmp reproduce synthetic``.

* ``panels``: change of the demographic-parity gap under one step of averaging, against homophily;
* ``agreement``: how often each form of Theorem 2's condition agrees with measurement;
* ``phase``: for which homophily and average degree averaging adds bias, and where real graphs lie;
* ``depth``: the same question after one to four steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data import Data

from fairmp.analysis.theory.conditions import Normalisation
from fairmp.comparison.page import Content
from fairmp.metrics.evaluation import json_safe
from fairmp.outputs import write_json
from fairmp.report import Section
from fairmp.report.figures import embedded
from fairmp.report.formats import Table, write_records
from fairmp.reproduction import paper
from fairmp.reproduction import synthetic_figures as figures
from fairmp.reproduction.synthetic_runs import COVARIANCES, FORMS, Setting, measure, place, sign

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
    drawn = {"phase": figures.phase(results["phase"], spots)}
    drawn["agreement"] = figures.agreement(results["agreement"])
    drawn["depth"] = figures.depth(results["depth"])
    for quantity in ("parity", "information"):
        drawn[f"panels_{quantity}"] = figures.panels(results["panels"], quantity)
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=160)
    every = pd.concat([*results.values(), pd.DataFrame([witness])])
    write_records(json_safe(every.to_dict("records")), folder)
    equal = results["agreement"][results["agreement"]["c"] == 0.5]
    summary: dict[str, Any] = {
        "agreement": agreement_table(results["agreement"]),
        "agreement_equal_groups": agreement_table(equal),
        "coverage": {q: coverage(results["agreement"], q) for q in figures.LABELS},
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
