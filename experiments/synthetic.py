"""The paper's figures of message passing on synthetic graphs, measurement against theory.

* ``panels``: change of the demographic-parity gap under one step of averaging, against homophily,
  with the paper's operator Ã and with row averaging beside it;
* ``agreement``: how often each form of Theorem 2's condition agrees with measurement;
* ``phase``: for which homophily and average degree averaging adds bias, and where real graphs lie;
* ``depth``: the same question after one to four steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data import Data

from experiments.options import Page, Quick, load_available, show
from experiments.paper import FAILS, HOLDS, OPEN, Claim, claims_table
from experiments.provenance import code_hash
from experiments.synthetic_figures import (
    LABELS,
    Place,
    draw_agreement,
    draw_depth,
    draw_panels,
    draw_phase,
)
from experiments.synthetic_settings import (
    COVARIANCES,
    LITERAL,
    OPERATORS,
    Design,
    GraphSetting,
    agreement_by_operator,
    coverage,
    measure,
    measure_all,
    parity_error,
    place,
    sign,
)
from fairmp.cli.options import DataDir, Results, option
from fairmp.cli.output import say
from fairmp.comparison import Record
from fairmp.datasets.by_name import from_files
from fairmp.display import bar
from fairmp.metrics.evaluation import json_safe
from fairmp.outputs import write_json
from fairmp.report import Section
from fairmp.report.figures import embedded
from fairmp.report.formats import Table, write_records

CENTRE = GraphSetting(n=10_000, rho=1e-3, eps=0.5, c=0.5)
COUNTEREXAMPLE = GraphSetting(n=20_000, rho=5e-4, eps=0.64, c=0.5)
SIGN_FLIP = replace(CENTRE, eps=0.6, c=0.9)
CAPTIONS = {
    "panels_parity": (
        "ΔDP of the best linear decision, Ã",
        "The paper's operator. The decision is found anew after averaging. Markers are measured, "
        "lines are predicted.",
    ),
    "panels_fixed_parity": (
        "ΔDP of a fixed threshold, Ã",
        "The paper's operator. The decision is the best one before averaging.",
    ),
    "panels_parity_row": (
        "ΔDP of the best linear decision, row averaging",
        "Every node takes the mean of its neighbourhood: degrees no longer carry the group.",
    ),
    "panels_information": (
        "Bias against homophily, Ã",
        "The paper's operator. In nats, after one step of averaging.",
    ),
    "agreement": ("Each condition against measurement", "Lower left and upper right agree."),
    "phase": ("The phase diagram", "Where one step of averaging adds bias, and real graphs."),
    "depth": ("More than one step", "The same question after one to four steps."),
}
RIGHT = (
    "A form is right when it agrees with measurement. It matters most near the threshold, where "
    "the printed or the corrected condition lies between ½ and 2."
)
AGREEMENT = {
    "operator": "{operator}",
    "form": "{title}",
    "agree": "{agree:.1%} of {decided}",
    "near the threshold": "{agree_border:.1%} of {border}",
    "false alarms": "{false_alarms}",
    "misses": "{misses}",
    "equal groups: agree": "{equal[agree]:.1%} of {equal[decided]}",
    "equal groups: near the threshold": "{equal[agree_border]:.1%} of {equal[border]}",
}
SIGNS = {
    "operator": "{operator}",
    "best decision, measured": "{best}",
    "predicted": "{best_predicted}",
    "fixed threshold, measured": "{fixed}",
    "fixed threshold, predicted": "{fixed_predicted}",
}
COUNTEREXAMPLES = {
    "operator": "{operator}",
    "printed": "{printed:.2f}",
    "corrected": "{corrected:.2f}",
    "bias, measured": "{information_measured:+.3f} ± {information_interval:.3f}",
    "predicted bias": "{information_predicted:+.3f}",
    "ΔDP, measured": "{parity}",
    "predicted ΔDP": "{parity_points:+.1f}",
}
COVERED = {"gap": "gap", "information": "bias", "parity": "ΔDP"}
FORM_NAMES = {"printed": "printed, with the means of Ã"}
OPERATOR_NAMES = {"symmetric": "Ã (the paper's)", "row": "row averaging"}
GRAPHS = {
    "graph": "{name}",
    "nodes": "{n:,}",
    "average degree": "{average_degree:.1f}",
    "ε": "{eps:.3f}",
    "c": "{c:.2f}",
    "balanced ε": "{balanced_eps:.3f}",
    "ΔDP measured, Ã": "{parity_measured_symmetric:+.1%}",
    "predicted, Ã": "{parity_predicted_symmetric:+.1%}",
    "measured, row averaging": "{parity_measured_row:+.1%}",
    "predicted, row averaging": "{parity_predicted_row:+.1%}",
}


def command(
    results: Results,
    quick: Quick = False,
    data_dir: DataDir = None,
    seed: int = option("Seed of the graphs.", 0),
) -> None:
    """Bias under message passing on synthetic graphs, measured against the theory.

    Data sets whose files are found are placed on the phase diagram.
    """
    folder = results.folder("synthetic")
    say(f"This takes about {'20 seconds' if quick else '4 minutes'} on one core.")
    data_sets = load_available(None, data_dir, from_files)
    count = sum(len(design.settings) for design in designs(quick).values())
    with results.staging(folder) as staging, bar(count, "settings") as advance:
        summary = run(staging, quick, seed, data_sets.graphs.values(), advance)
        tables = content(summary, staging).write(staging)
    notes = [headline(summary)]
    if data_sets.absent:
        missing = ", ".join(data_sets.absent)
        notes.append(f"Not placed, their files were not found: {missing}.")
    show(results, summary, folder, tables[:2], *notes)  # real graphs are on the page


def designs(quick: bool = False) -> dict[str, Design]:
    """Experiments by name."""
    return {
        "panels": _panels(quick),
        "agreement": _agreement(quick),
        "phase": _phase(quick),
        "depth": _depth(quick),
    }


def _panels(quick: bool) -> Design:
    centre = replace(CENTRE, n=2_000, rho=5e-3) if quick else CENTRE
    densities = (2e-3, 5e-3, 1e-2) if quick else (1e-4, 1e-3, 1e-2)
    nodes = (1_000, 2_000, 3_000) if quick else (1_000, 10_000, 30_000)
    varied = [
        *(("density", replace(centre, rho=rho)) for rho in densities),
        *(("nodes", replace(centre, n=n)) for n in nodes),
        *(("ratio", replace(centre, c=c)) for c in (0.5, 0.7, 0.9)),
    ]
    settings = [
        (series, replace(setting, eps=float(eps), covariance=name, normalisation=operator))
        for operator in OPERATORS
        for name in COVARIANCES
        for series, setting in varied
        for eps in np.linspace(0.0, 1.0, 3 if quick else 11)
    ]
    return Design(2 if quick else 5, settings)


def _agreement(quick: bool) -> Design:
    n = 2_000 if quick else 10_000
    settings = [
        (
            "agreement",
            GraphSetting(
                n,
                degree / (n - 1),
                float(eps),
                c,
                separation=separation,
                normalisation=operator,
            ),
        )
        for operator in OPERATORS
        for degree in ((5, 12, 35) if quick else (3, 5, 8, 12, 20, 35, 60, 100))
        for eps in np.linspace(0.05, 0.95, 4 if quick else 12)
        for c in (0.5, 0.65, 0.8)
        for separation in ((1.0,) if quick else (1.0, 2.0))
    ]
    return Design(2 if quick else 5, settings)


def _phase(quick: bool) -> Design:
    n = 2_000 if quick else 10_000
    settings = [
        ("phase", GraphSetting(n, float(degree) / (n - 1), float(eps), 0.5))
        for degree in np.geomspace(2, 100, 4 if quick else 12)
        for eps in np.linspace(0, 1, 5 if quick else 21)
    ]
    return Design(2 if quick else 3, settings)


def _depth(quick: bool) -> Design:
    start = replace(COUNTEREXAMPLE, n=2_000, rho=5e-3) if quick else COUNTEREXAMPLE
    settings = [
        ("depth", replace(start, eps=eps, steps=steps, normalisation=normalisation))
        for normalisation in OPERATORS
        for eps in (0.55, 0.64, 0.8)
        for steps in (1, 2, 3, 4)
    ]
    return Design(2 if quick else 10, settings)


def run(
    folder: Path,
    quick: bool = False,
    seed: int = 0,
    graphs: Iterable[Data] = (),
    progress: Callable[[str], None] = lambda series: None,
) -> dict[str, Any]:
    """Run every experiment; write records, figures and the summary that is returned."""
    placed = [place(graph) for graph in graphs]
    folder.mkdir(parents=True, exist_ok=True)
    points = {name: measure_all(design, seed, progress) for name, design in designs(quick).items()}
    seeds = 5 if quick else 20
    witnesses = _by_operator(COUNTEREXAMPLE, "counterexample", seeds, seed)
    flips = _by_operator(SIGN_FLIP, "flip", seeds, seed)
    places = [Place(spot["name"], spot["balanced_eps"], spot["average_degree"]) for spot in placed]
    grid = points["agreement"]
    panels = dict(iter(points["panels"].groupby("normalisation")))
    drawn = {
        "phase": draw_phase(points["phase"], places),
        "agreement": draw_agreement(grid[grid["normalisation"] == "symmetric"]),
        "depth": draw_depth(points["depth"]),
        "panels_parity": draw_panels(panels["symmetric"], "parity"),
        "panels_fixed_parity": draw_panels(panels["symmetric"], "fixed_parity"),
        "panels_parity_row": draw_panels(panels["row"], "parity"),
        "panels_information": draw_panels(panels["symmetric"], "information"),
    }
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=160)
    every_point = pd.concat([*points.values(), pd.DataFrame([*witnesses, *flips])])
    write_records(json_safe(every_point.to_dict("records")), folder)
    summary: dict[str, Any] = {
        "command": "python -m experiments synthetic" + (" --quick" if quick else ""),
        "code": code_hash("analysis"),
        "agreement": agreement_by_operator(grid),
        "agreement_equal_groups": agreement_by_operator(grid[grid["c"] == 0.5]),
        "coverage": {
            str(operator): {quantity: coverage(group, quantity) for quantity in LABELS}
            for operator, group in grid.groupby("normalisation", sort=False)
        },
        "parity_error": {
            str(operator): parity_error(group)
            for operator, group in grid.groupby("normalisation", sort=False)
        },
        "counterexample": witnesses,
        "sign_flip": flips,
        "graphs": placed,
    }
    summary["claims"] = [vars(claim) for claim in claims(summary, points["panels"])]
    write_json(folder / "synthetic.json", summary)
    return summary


def _by_operator(setting: GraphSetting, series: str, seeds: int, seed: int) -> list[Record]:
    """Measure a setting with each operator, on the same graphs."""
    return [
        measure(replace(setting, normalisation=operator), seeds=seeds, seed=seed, series=series)
        for operator in OPERATORS
    ]


def claims(summary: Mapping[str, Any], panels: pd.DataFrame) -> list[Claim]:
    """Claims of the figures: where averaging adds bias, and Theorem 2's condition."""
    by_series = []
    for series, symbol in (("density", "ρ_d"), ("nodes", "n"), ("ratio", "c")):
        points = panels[
            (panels["series"] == series)
            & (panels["covariance"] == "identity")
            & (panels["normalisation"] == "symmetric")
        ]
        top = points[points["eps"] == points["eps"].max()]
        added = int((sign(top, "parity") > 0).sum())
        ours = f"{added} of {len(top)} at ε = {top['eps'].max():g}" if len(top) else "–"
        judged = HOLDS if added == len(top) else FAILS if added == 0 else OPEN
        text = f"Averaging adds bias where homophily is high, for every {symbol}"
        by_series.append(Claim(text, "synthetic", "yes", ours, judged))
    row = _of_form(summary, LITERAL)
    counterexamples = f"{row['false_alarms']} counterexamples of {row['decided']}"
    judged = FAILS if row["false_alarms"] else OPEN
    text = "The printed condition of Theorem 2 is sufficient"
    return [*by_series, Claim(text, "synthetic", "yes", counterexamples, judged)]


def _of_form(summary: Mapping[str, Any], form: str) -> Mapping[str, Any]:
    """How often one form of the condition agrees with measurement, with the paper's operator."""
    [row] = [
        row
        for row in summary["agreement"]
        if (row["form"], row["normalisation"]) == (form, "symmetric")
    ]
    return row


def headline(summary: Mapping[str, Any]) -> str:
    """Describe how often the conditions are wrong, and the counterexample, in two sentences."""
    printed, corrected = (_of_form(summary, form) for form in (LITERAL, "corrected"))
    false_alarms = (
        f"In {printed['false_alarms']} of {printed['decided']} settings the paper's condition says "
        "that averaging adds bias although bias falls; the corrected condition does in "
        f"{corrected['false_alarms']}."
    )
    counterexample = (
        "At the counterexample the printed condition gives {printed:.2f}, the corrected one "
        "{corrected:.2f}, and the bias changes by {information_measured:+.3f} ± "
        "{information_interval:.3f} nats (predicted {information_predicted:+.3f})."
    )
    [witness] = [
        point for point in summary["counterexample"] if point["normalisation"] == "symmetric"
    ]
    return f"{false_alarms} {counterexample.format(**witness)}"


def content(summary: Mapping[str, Any], folder: Path) -> Page:
    """Content of the page, from the summary and the figures in the folder."""
    verdicts = claims_table(Claim(**row) for row in summary["claims"])
    pictures = [
        Section(title, svg=embedded(folder / f"{name}.png", title), caption=caption)
        for name, (title, caption) in CAPTIONS.items()
    ]
    graphs: Section | Table = Section("Real graphs", text=["No data set's files were found."])
    if summary["graphs"]:
        graphs = real_graphs(summary)
    points = [sign_flip(summary), counterexample(summary), prediction_error(summary)]
    parts = [agreement(summary), verdicts, *points, *pictures, graphs]
    return Page("Message passing on synthetic graphs", f"{headline(summary)} {RIGHT}", parts)


def agreement(summary: Mapping[str, Any]) -> Table:
    """How often each form agrees with measurement, by operator."""
    rows = [
        {
            **row,
            "operator": OPERATOR_NAMES[row["normalisation"]],
            "title": FORM_NAMES.get(row["form"], row["form"]),
            "equal": equal,
        }
        for row, equal in zip(summary["agreement"], summary["agreement_equal_groups"], strict=True)
    ]
    return _table("Agreement of each form with measurement", AGREEMENT, rows)


def counterexample(summary: Mapping[str, Any]) -> Table:
    """Both conditions, and the measured changes, where the printed condition is wrong."""
    rows = [
        {
            **point,
            "operator": OPERATOR_NAMES[point["normalisation"]],
            "parity": _points(point, "parity"),
            "parity_points": 100 * point["parity_predicted"],
        }
        for point in summary["counterexample"]
    ]
    return _table("A counterexample: nats, and points of ΔDP", COUNTEREXAMPLES, rows)


def prediction_error(summary: Mapping[str, Any]) -> Table:
    """Shares of predictions in the measured intervals, and ΔDP's median error by degree."""
    rows = [
        [
            OPERATOR_NAMES[operator],
            *(f"{summary['coverage'][operator][quantity]:.0%}" for quantity in COVERED),
            *(f"{100 * error:.1f}" for error in errors.values()),
        ]
        for operator, errors in summary["parity_error"].items()
    ]
    degrees = summary["parity_error"]["symmetric"]
    header = [
        "operator",
        *(f"{name} in its interval" for name in COVERED.values()),
        *(f"degree {degree}" for degree in degrees),
    ]
    title = "Predictions in measured intervals, and the median error of ΔDP in points by degree"
    return Table(title, header, rows)


def sign_flip(summary: Mapping[str, Any]) -> Table:
    """Change of both decisions' gaps where the operator decides its sign, in points."""
    rows = [
        {
            "operator": OPERATOR_NAMES[point["normalisation"]],
            "best": _points(point, "parity"),
            "best_predicted": f"{100 * point['parity_predicted']:+.1f}",
            "fixed": _points(point, "fixed_parity"),
            "fixed_predicted": f"{100 * point['fixed_parity_predicted']:+.1f}",
        }
        for point in summary["sign_flip"]
    ]
    title = f"Change of ΔDP at c = {SIGN_FLIP.c:g}, ε = {SIGN_FLIP.eps:g}, points"
    return _table(title, SIGNS, rows)


def _points(point: Mapping[str, Any], quantity: str) -> str:
    measured, half = (100 * point[f"{quantity}_{part}"] for part in ("measured", "interval"))
    return f"{measured:+.1f} ± {half:.1f}"


def real_graphs(summary: Mapping[str, Any]) -> Table:
    """Where the real graphs lie, and what one step does to them."""
    return _table("Real graphs", GRAPHS, summary["graphs"])


def _table(title: str, formats: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per dictionary, formatted by the text of each column."""
    texts = [[text.format(**row) for text in formats.values()] for row in rows]
    return Table(title, list(formats), texts)
