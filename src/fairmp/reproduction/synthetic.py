"""Message passing on graphs whose truth is known: measured against theory.

``fairmp reproduce synthetic`` runs everything here:

* ``panels``: the change of the demographic-parity gap under one step of averaging, against
  sensitive homophily, for densities, node counts and group ratios;
* ``agreement``: how often each form of Theorem 2's condition says what is measured;
* ``phase``: for which homophily and average degree averaging adds bias;
* ``depth``: the same question after one to four steps;
* real graphs, if given, are placed on the phase diagram (``fairmp.reproduction.phase_diagram``).

Everything is measured by ``measured_change`` on graphs of ``block_model`` and predicted by
``predicted_change``, so both sides use one definition of gap, parity
and bias (``fairmp.analysis.theory.Bias``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

from fairmp.analysis.theory.conditions import Normalisation
from fairmp.reproduction.synthetic_runs import (
    COVARIANCES,
    QUANTITIES,
    Point,
    Setting,
    measure,
    record,
)

Progress = Callable[[int, int], None]


CENTRE = Setting(n=10_000, rho=1e-3, eps=0.5, c=0.5)
COUNTEREXAMPLE = Setting(n=20_000, rho=5e-4, eps=0.64, c=0.5)


def panels(*, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> list[Point]:
    """One step of averaging against homophily, for densities, node counts and group ratios.

    The centre is n = 10,000, ρ = 10⁻³, c = ½; each panel (``Point.series``: ``"density"``,
    ``"nodes"`` or ``"ratio"``) moves one of the three. Each is drawn with Σ = I, Σ = diag(1, 2)
    and with a covariance of its own for each group.
    """
    densities = (3e-4, 1e-3, 3e-3) if quick else (1e-4, 1e-3, 1e-2)
    nodes = (2_000, 5_000, 10_000) if quick else (1_000, 10_000, 30_000)
    ratios = (0.5, 0.7, 0.9)
    homophily = np.linspace(0.0, 1.0, 5 if quick else 21)
    moved = [
        *(("density", replace(CENTRE, rho=rho)) for rho in densities),
        *(("nodes", replace(CENTRE, n=n)) for n in nodes),
        *(("ratio", replace(CENTRE, c=c)) for c in ratios),
    ]
    work = [
        (series, replace(setting, eps=float(eps), covariance=name))
        for name in COVARIANCES
        for series, setting in moved
        for eps in homophily
    ]
    return _measure_all(work, 3 if quick else 10, seed, progress)


def agreement(
    *, quick: bool = False, seed: int = 0, progress: Progress | None = None
) -> list[Point]:
    """Over a grid of degree, homophily, group ratio and separation: theory against measurement.

    ``agreement_table`` counts the result. Quick: 252 points of 3,000 nodes, two graphs each; else
    576 points of 10,000 nodes, five graphs each.
    """
    n = 3_000 if quick else 10_000
    degrees = (3, 5, 8, 12, 20, 35, 60) if quick else (3, 5, 8, 12, 20, 35, 60, 100)
    homophily = np.linspace(0.05, 0.95, 6 if quick else 12)
    work = [
        ("agreement", Setting(n, degree / (n - 1), float(eps), c, separation=separation))
        for degree in degrees
        for eps in homophily
        for c in (0.5, 0.65, 0.8)
        for separation in (1.0, 2.0)
    ]
    return _measure_all(work, 2 if quick else 5, seed, progress)


def agreement_table(points: Sequence[Point]) -> list[dict[str, object]]:
    """Count how often each form agrees with the measured sign of the bias's change.

    A point is *decided* when the measured interval excludes 0, and *near the border* when the
    printed or the corrected condition lies between ½ and 2. A form says "adds bias" when its value
    exceeds 1 (the prediction: when its change is positive). ``false_alarms`` are points where it
    says so and bias fell: counterexamples, for a condition meant to be sufficient. ``misses`` are
    the reverse.

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
    """Share of points whose measured interval holds theory's value; it should be 0.95.

    Example:
        >>> from fairmp.reproduction.synthetic_runs import Reading
        >>> reading = Reading(measured=0.1, interval=0.02, predicted=0.11)
        >>> coverage([Point("", CENTRE, 5, reading, reading, reading, None, None)], "gap")
        1.0
    """
    return float(np.mean([getattr(point, quantity).covered for point in points]))


def phase(*, quick: bool = False, seed: int = 0, progress: Progress | None = None) -> list[Point]:
    """Measure the phase diagram: homophily × average degree at c = ½, Σ = I."""
    n = 4_000 if quick else 10_000
    degrees = np.geomspace(2, 100, 6 if quick else 12)
    homophily = np.linspace(0, 1, 11 if quick else 21)
    work = [
        ("phase", Setting(n, float(degree) / (n - 1), float(eps), 0.5))
        for degree in degrees
        for eps in homophily
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
    """Measure the graph on which the printed condition holds (1.31 > 1) and bias falls."""
    return measure(COUNTEREXAMPLE, seeds=seeds, seed=seed, series="counterexample")


def run(
    out: str | Path,
    *,
    quick: bool = False,
    seed: int = 0,
    graphs: Iterable[Data] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, object]:
    """Run every synthetic experiment; write records, figures and a summary under ``out``.

    Args:
        out: folder for ``records.jsonl``, ``summary.json`` and the figures; made if need be.
        quick: smaller graphs, fewer points and seeds; under a minute on two cores.
        seed: the same seed gives the same records.
        graphs: real graphs of two groups to place on the phase diagram.
        progress: called as ``progress(experiment, done, total)``.

    Returns:
        The summary: the agreement table (over all settings, and over those with equal groups),
        coverage of the intervals, the counterexample and the real graphs' places.
    """
    from fairmp.reproduction.phase_diagram import place
    from fairmp.reproduction.synthetic_figures import (
        draw_agreement,
        draw_depth,
        draw_panels,
        draw_phase,
    )

    places = [place(graph) for graph in graphs]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Point]] = {}
    for name, experiment in (
        ("panels", panels),
        ("agreement", agreement),
        ("phase", phase),
        ("depth", depth),
    ):
        told = None if progress is None else _named(progress, name)
        results[name] = experiment(quick=quick, seed=seed, progress=told)
    witness = counterexample(seeds=5 if quick else 20, seed=seed)

    for quantity in ("parity", "information"):
        draw_panels(results["panels"], folder / f"panels_{quantity}.png", quantity=quantity)
    draw_agreement(results["agreement"], folder / "agreement.png")
    spots = [(spot.name, spot.balanced_eps, spot.average_degree) for spot in places]
    draw_phase(results["phase"], folder / "phase.png", graphs=spots)
    draw_depth(results["depth"], folder / "depth.png")
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for point in [*(p for points in results.values() for p in points), witness]:
            file.write(json.dumps(record(point)) + "\n")
    summary: dict[str, object] = {
        "agreement": agreement_table(results["agreement"]),
        "agreement_equal_groups": agreement_table(
            [point for point in results["agreement"] if point.setting.c == 0.5]
        ),
        "coverage": {q: coverage(results["agreement"], q) for q in QUANTITIES},
        "counterexample": record(witness),
        "graphs": [asdict(spot) for spot in places],
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


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


def _named(progress: Callable[[str, int, int], None], name: str) -> Progress:
    return lambda done, total: progress(name, done, total)
