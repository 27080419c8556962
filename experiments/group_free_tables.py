"""Tables of decisions that read nobody's group, and of promises about new people."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.committed import TITLES, exists, points, read
from fairmp.errors import plural
from fairmp.metrics.counts import mean_interval
from fairmp.report.formats import Table

RULES = {
    "uncorrected": "uncorrected",
    "group-aware": "reads the group",
    "blind, neighbours' groups": "blind, neighbours' groups",
    "blind, no neighbours' groups": "blind, without these",
    "ExponentiatedGradient": "`ExponentiatedGradient`",
}
CRITERIA = {"demographic_parity": "parity", "equal_opportunity": "equal opportunity"}
SPLITS = 10  # unless a row says otherwise
NO_RECORD = Table("", ["no record"], [])


def group_free(target: str) -> Table:
    """Every rule at one target, beside the rule that reads the group."""
    if not exists("group-free"):
        return NO_RECORD
    rows = []
    for line in read("group-free")["summary"]:
        if line["target"] not in (None, float(target)):
            continue
        figures = [_points(line[name]) for name in ("accuracy", "dp", "eo")]
        difference = line["accuracy_above"].get("group-aware")
        cost = "" if difference is None else _signed(difference)
        floor = f"{100 * line['floor']:.1f}"
        rows.append([_title(line), RULES[line["rule"]], *figures, floor, cost])
    header = ["graph", "rule", "accuracy %", "ΔDP", "ΔEO", "floor", "accuracy above"]
    return Table("", header, rows)


def against_fairlearn() -> Table:
    """The accuracy of the blind rule above that of fairlearn's reduction, and both gaps."""
    if not exists("group-free"):
        return NO_RECORD
    lines = {(li["graph"], li["rule"], li["target"]): li for li in read("group-free")["summary"]}
    rows = []
    for (graph, rule, target), line in lines.items():
        other = lines.get((graph, "ExponentiatedGradient", target))
        if other is None or rule != "blind, neighbours' groups":
            continue
        difference = _signed(line["accuracy_above"]["ExponentiatedGradient"])
        gaps = [_points(each["dp"]) for each in (line, other)]
        at_its_gap = _signed(_above_at_equal_gap(graph, rule, target))
        rows.append([_title(line), f"{target:g}", *gaps, difference, at_its_gap])
    header = ["graph", "target", "ΔDP, blind", "ΔDP, fairlearn", "accuracy above fairlearn's"]
    return Table("", [*header, "at its gap"], rows)


def _above_at_equal_gap(graph: str, rule: str, target: float) -> dict[str, Any]:
    """Accuracy above fairlearn's of the mixture of two targets of a rule that has its mean gap.

    The mixture decides by either target with a fixed probability; beyond the gaps of the rule it
    is the nearest one.
    """
    parts = [part for part in read("group-free")["parts"] if part["graph"] == graph]
    tables = [{(row["rule"], row["target"]): row for row in part["rows"]} for part in parts]
    curve = [(rule, asked) for name, asked in tables[0] if name == rule] + [("uncorrected", None)]
    gaps = np.array([[table[key]["dp"] for key in curve] for table in tables])
    accuracies = np.array([[table[key]["accuracy"] for key in curve] for table in tables])
    other = [table["ExponentiatedGradient", target] for table in tables]
    order = np.argsort(gaps.mean(0))
    weights = [  # of each target in the mixture
        float(np.interp(np.mean([row["dp"] for row in other]), gaps.mean(0)[order], one))
        for one in np.eye(len(curve))[:, order]
    ]
    mixture = accuracies @ np.array(weights)
    difference = mean_interval((mixture - [row["accuracy"] for row in other]).tolist())
    return {"mean": difference.mean, "half_width": (difference.high - difference.low) / 2}


def promises() -> Table:
    """How often promises were broken, of all draws."""
    if not exists("promises"):
        return NO_RECORD
    rows = []
    for line in read("promises")["records"]:
        cells = [TITLES[line["graph"]], line["rule"], CRITERIA[line["criterion"]]]
        cells.append(" / ".join(f"{count:,}" for count in line["people"]))
        if line["target"] is None:
            rows.append([*cells, "none", "–", "–", "–"])
            continue
        cells += [f"{100 * line['target']:g}", f"{100 * line['promised'] / line['draws']:.1f}"]
        cost = -100 * line["accuracy_below_target_0"]
        rows.append([*cells, f"{100 * line['broken']:.1f}", f"{cost:+.2f}"])
    header = ["graph", "rule", "criterion", "people", "target", "promised %", "broken %"]
    return Table("", [*header, "accuracy above target 0"], rows)


def joining() -> Table:
    """The gap of nodes that join later, by rules certified without them."""
    if not exists("promises"):
        return NO_RECORD
    rows = []
    for line in read("promises")["records"]:
        later = line["joining"]
        if not later.get("promised"):
            continue
        cells = [TITLES[line["graph"]], line["rule"], CRITERIA[line["criterion"]]]
        names = ("target", "gap", "gap_uncorrected", "floor", "accuracy", "accuracy_uncorrected")
        rows.append([*cells, *(f"{100 * later[name]:.1f}" for name in names)])
    header = ["graph", "rule", "criterion", "target", "gap", "uncorrected", "floor"]
    return Table("", [*header, "accuracy %", "uncorrected %"], rows)


def _title(line: dict[str, Any]) -> str:
    """The graph, and the number of splits where it is not ten."""
    title, splits = TITLES[line["graph"]], line["splits"]
    return title if splits == SPLITS else f"{title}, {plural(splits, 'split')}"


def _points(interval: dict[str, Any]) -> str:
    return points(interval["mean"], interval["half_width"] or 0.0)


def _signed(interval: dict[str, Any]) -> str:
    half = interval["half_width"] or 0.0
    return f"{100 * interval['mean']:+.2f} ± {100 * half:.2f}"
