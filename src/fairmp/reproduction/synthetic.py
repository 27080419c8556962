"""Message passing on synthetic graphs: measurement against theory.

``fairmp reproduce synthetic`` runs everything here:

* ``panels``: the change of the demographic-parity gap under one step of averaging, against
  sensitive homophily, for densities, node counts and group ratios;
* ``agreement``: how often each form of Theorem 2's condition agrees with measurement;
* ``phase``: for which homophily and average degree averaging adds bias;
* ``depth``: the same question after one to four steps;
* real graphs, if given, are placed on the phase diagram (``fairmp.reproduction.phase_diagram``).

Measurement and prediction use one definition of gap, parity and bias
(``fairmp.analysis.theory.Bias``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from fairmp.analysis.theory.conditions import Normalisation
from fairmp.comparison.page import section, write_page, write_records
from fairmp.report import Section
from fairmp.report.figures import embedded
from fairmp.report.formats import Table
from fairmp.reproduction.phase_diagram import place
from fairmp.reproduction.synthetic_figures import (
    draw_agreement,
    draw_depth,
    draw_panels,
    draw_phase,
)
from fairmp.reproduction.synthetic_runs import COVARIANCES, QUANTITIES, Point, Setting, measure

Progress = Callable[[int, int], None]

CENTRE = Setting(n=10_000, rho=1e-3, eps=0.5, c=0.5)
COUNTEREXAMPLE = Setting(n=20_000, rho=5e-4, eps=0.64, c=0.5)
FIGURES = {
    "panels_parity": (
        "ΔDP against homophily",
        "Change of ΔDP under one step of averaging; markers are measured, lines are predicted.",
    ),
    "panels_information": (
        "Bias against homophily",
        "The same for the bound on the mutual information, in nats.",
    ),
    "agreement": (
        "Each condition against measurement",
        "Points in the lower left and upper right quadrants agree.",
    ),
    "phase": (
        "The phase diagram",
        "Where one step of averaging adds bias, and where real graphs lie.",
    ),
    "depth": ("More than one step", "The same question after one to four steps."),
}


def panels(*, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> list[Point]:
    """One step of averaging against homophily, for densities, node counts and group ratios.

    The centre is n = 10,000, ρ = 10⁻³, c = ½; each panel (``Point.series``: ``"density"``,
    ``"nodes"`` or ``"ratio"``) varies one of the three, for each of ``COVARIANCES``.
    """
    densities = (3e-4, 1e-3, 3e-3) if quick else (1e-4, 1e-3, 1e-2)
    nodes = (2_000, 5_000, 10_000) if quick else (1_000, 10_000, 30_000)
    varied = [
        *(("density", replace(CENTRE, rho=rho)) for rho in densities),
        *(("nodes", replace(CENTRE, n=n)) for n in nodes),
        *(("ratio", replace(CENTRE, c=c)) for c in (0.5, 0.7, 0.9)),
    ]
    work = [
        (series, replace(setting, eps=float(eps), covariance=name))
        for name in COVARIANCES
        for series, setting in varied
        for eps in np.linspace(0.0, 1.0, 5 if quick else 21)
    ]
    return _measure_all(work, 3 if quick else 10, seed, progress)


def agreement(
    *, quick: bool = False, seed: int = 0, progress: Progress | None = None
) -> list[Point]:
    """Theory and measurement over a grid of degree, homophily, group ratio and separation.

    Quick: 252 points of 3,000 nodes, two graphs each; else 576 points of 10,000 nodes, five each.
    """
    n = 3_000 if quick else 10_000
    work = [
        ("agreement", Setting(n, degree / (n - 1), float(eps), c, separation=separation))
        for degree in ((3, 5, 8, 12, 20, 35, 60) if quick else (3, 5, 8, 12, 20, 35, 60, 100))
        for eps in np.linspace(0.05, 0.95, 6 if quick else 12)
        for c in (0.5, 0.65, 0.8)
        for separation in (1.0, 2.0)
    ]
    return _measure_all(work, 2 if quick else 5, seed, progress)


def phase(*, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> list[Point]:
    """Measure the phase diagram: homophily × average degree at c = ½, Σ = I."""
    n = 4_000 if quick else 10_000
    work = [
        ("phase", Setting(n, float(degree) / (n - 1), float(eps), 0.5))
        for degree in np.geomspace(2, 100, 6 if quick else 12)
        for eps in np.linspace(0, 1, 11 if quick else 21)
    ]
    return _measure_all(work, 2 if quick else 3, seed, progress)


def depth(*, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> list[Point]:
    """One to four steps of averaging, row and symmetric, at the counterexample and around it."""
    start = replace(COUNTEREXAMPLE, n=10_000, rho=1e-3) if quick else COUNTEREXAMPLE
    normalisations: tuple[Normalisation, ...] = ("row", "symmetric")
    work = [
        ("depth", replace(start, eps=eps, steps=steps, normalisation=normalisation))
        for normalisation in normalisations
        for eps in (0.55, 0.64, 0.8)
        for steps in (1, 2, 3, 4)
    ]
    return _measure_all(work, 2 if quick else 10, seed, progress)


def counterexample(*, seeds: int = 10, seed: int = 0) -> Point:
    """Measure the graph on which the printed condition holds (1.31 > 1) and bias decreases."""
    return measure(COUNTEREXAMPLE, seeds=seeds, seed=seed, series="counterexample")


def agreement_table(points: Sequence[Point]) -> list[dict[str, object]]:
    """Count how often each form agrees with the measured sign of the bias's change.

    A point is *decided* when the measured interval excludes 0, and *near the threshold* (columns
    ``border``) when the printed or the corrected condition lies between ½ and 2. A form predicts
    added bias when its value exceeds 1 (the prediction: when its change is positive).
    ``false_alarms`` are points where it does and bias decreased: counterexamples to a sufficient
    condition. ``misses`` are the reverse.

    Example:
        >>> points = [measure(Setting(500, 0.04, eps, 0.5), seeds=3) for eps in (0.5, 0.9)]
        >>> [(row["form"], row["agree"]) for row in agreement_table(points)]
        [('printed', 1.0), ('corrected', 1.0), ('prediction', 1.0)]
    """
    decided = [p for p in points if p.information.sign and p.printed is not None]
    border = [p for p in decided if _near(p)]
    forms: dict[str, Callable[[Point], bool]] = {
        "printed": lambda p: (p.printed or 0) > 1,
        "corrected": lambda p: (p.corrected or 0) > 1,
        "prediction": lambda p: p.information.predicted > 0,
    }
    rows: list[dict[str, object]] = []
    for form, adds in forms.items():
        wrong = [p for p in decided if adds(p) != (p.information.sign > 0)]
        near = [p for p in wrong if _near(p)]
        rows.append(
            {
                "form": form,
                "points": len(points),
                "decided": len(decided),
                "agree": 1 - len(wrong) / max(len(decided), 1),
                "border": len(border),
                "agree_border": 1 - len(near) / max(len(border), 1),
                "false_alarms": sum(adds(p) for p in wrong),
                "misses": sum(not adds(p) for p in wrong),
            }
        )
    return rows


def coverage(points: Iterable[Point], quantity: str) -> float:
    """Share of points whose measured interval contains the prediction; it should be 0.95."""
    return float(np.mean([getattr(point, quantity).covered for point in points]))


def run(
    out: str | Path,
    *,
    quick: bool = False,
    seed: int = 0,
    graphs: Iterable[Data] = (),
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """Run every synthetic experiment; write records, figures and the summary that is returned.

    ``quick`` takes under a minute on two cores. ``graphs`` are real graphs of two groups to place
    on the phase diagram; ``progress`` is called with (experiment, done, total).
    """
    places = [place(graph) for graph in graphs]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    experiments = {"panels": panels, "agreement": agreement, "phase": phase, "depth": depth}
    results = {
        name: experiment(quick=quick, seed=seed, progress=partial(progress, name))
        for name, experiment in experiments.items()
    }
    witness = counterexample(seeds=5 if quick else 20, seed=seed)

    for quantity in ("parity", "information"):
        draw_panels(results["panels"], folder / f"panels_{quantity}.png", quantity=quantity)
    draw_agreement(results["agreement"], folder / "agreement.png")
    spots = [(spot.name, spot.balanced_eps, spot.average_degree) for spot in places]
    draw_phase(results["phase"], folder / "phase.png", graphs=spots)
    draw_depth(results["depth"], folder / "depth.png")
    every = [*(point for points in results.values() for point in points), witness]
    write_records([point.to_dict() for point in every], folder)
    equal = [point for point in results["agreement"] if point.setting.c == 0.5]
    summary: dict[str, Any] = {
        "agreement": agreement_table(results["agreement"]),
        "agreement_equal_groups": agreement_table(equal),
        "coverage": {q: coverage(results["agreement"], q) for q in QUANTITIES},
        "counterexample": witness.to_dict(),
        "graphs": [asdict(spot) for spot in places],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def table(summary: dict[str, Any]) -> Table:
    """Table of how often each form of the condition agrees with measurement."""
    header = ["form", "right %", "right near the threshold %", "false alarms", "misses", "decided"]
    rows = [
        [
            row["form"],
            f"{100 * row['agree']:.1f}",
            f"{100 * row['agree_border']:.1f}",
            str(row["false_alarms"]),
            str(row["misses"]),
            f"{row['decided']} of {row['points']}",
        ]
        for row in summary["agreement"]
    ]
    return Table("Agreement of each form with measurement", header, rows)


def witness_text(summary: dict[str, Any]) -> str:
    """Describe the counterexample in a sentence."""
    point = summary["counterexample"]
    return (
        f"The counterexample: the printed condition gives {point['printed']:.2f}, the corrected "
        f"one {point['corrected']:.2f}; the bias changes by {point['information_measured']:+.3f} ± "
        f"{point['information_interval']:.3f} nats (predicted "
        f"{point['information_predicted']:+.3f})."
    )


def write(summary: dict[str, Any], folder: Path, *, command: str) -> None:
    """Write the page, from the summary and the figures in the folder."""
    text = (
        "A form is right when it agrees with measurement. It matters most near the threshold, "
        "where the printed or the corrected condition lies between ½ and 2."
    )
    header = ["graph", "nodes", "average degree", "homophily", "balanced", "ΔDP measured"]
    rows = [
        [
            spot["name"],
            f"{spot['n']:,}",
            f"{spot['average_degree']:.1f}",
            f"{spot['eps']:.3f}",
            f"{spot['balanced_eps']:.3f}",
            f"{100 * spot['parity_measured']:+.1f}",
            f"{100 * spot['parity_predicted']:+.1f}",
        ]
        for spot in summary["graphs"]
    ]
    sections = [
        section(table(summary), text=[text]),
        *(
            Section(title, svg=embedded(folder / f"{name}.png", title), caption=caption)
            for name, (title, caption) in FIGURES.items()
        ),
        Section("Real graphs", header=[*header, "predicted"], rows=rows)
        if rows
        else Section("Real graphs", text=["No data set's files were found."]),
    ]
    title = "Message passing on synthetic graphs"
    write_page(folder, title, witness_text(summary), sections, command=command)


def _measure_all(
    work: Sequence[tuple[str, Setting]], seeds: int, seed: int, progress: Progress | None
) -> list[Point]:
    points = []
    for done, (series, setting) in enumerate(work, start=1):
        points.append(measure(setting, seeds=seeds, seed=seed + done, series=series))
        if progress is not None:
            progress(done, len(work))
    return points


def _near(point: Point) -> bool:
    values = (point.printed, point.corrected)
    return any(value is not None and 0.5 < value < 2 for value in values)
