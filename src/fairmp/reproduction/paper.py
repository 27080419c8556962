"""Figures printed in the paper, beside ours, and a verdict on each of its claims.

The figures are in ``printed.json``: percent, mean and standard deviation of five runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fairmp.comparison import Record
from fairmp.comparison.page import results
from fairmp.metrics import Interval
from fairmp.report.formats import COLUMNS, Table, cell_text, spread
from fairmp.reproduction.grids import paper_key, printed

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
VERDICTS = (
    "Verdicts are on differences within splits: a claim holds, or does not, where the 95 % "
    "interval of the mean difference says so (with fewer than five splits, every split)."
)
FIGURES = ("accuracy", "dp", "eo")
NETWORKS = ("GCN", "GAT", "SGC", "APPNP")
MAX_LOSS = 0.01  # of accuracy that still counts as equal
TABLE1_CLAIMS = {
    "dp": "FMP has the smallest ΔDP",
    "eo": "FMP has the smallest ΔEO",
    "accuracy": "FMP is as accurate as an MLP, within a point",
}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper on one data set: what it printed, what we measured, and a verdict."""

    text: str
    data: str
    printed: str
    ours: str
    verdict: str


def claims_table(claims: Iterable[Claim]) -> Table:
    """One row per claim and data set."""
    rows = [list(vars(claim).values()) for claim in claims]
    return Table("The paper's claims", ["claim", "data set", "paper", "ours", "verdict"], rows)


def verdict(difference: Interval, limit: float = 0.0) -> str:
    """Verdict on "the difference is above the limit"."""
    if difference.low > limit:
        return HOLDS
    return FAILS if difference.high < limit else OPEN


def side_by_side(records: Sequence[Record]) -> list[Table]:
    """One table per data set that the paper has: its row and ours, method by method."""
    tables = []
    header = [f"{COLUMNS[key]}, {who}" for key in FIGURES for who in ("paper", "ours")]
    for data, title, own in _by_data(records):
        rows, networks = [], _networks(own)
        for name, values in printed()["table1"].get(data, {}).items():
            rows.append([name])
            for key in FIGURES:
                ours = networks[key].get(name)
                rows[-1].append("{:.1f} ± {:.1f} sd".format(*values[key]))
                rows[-1].append("–" if ours is None else cell_text(spread(ours.tolist())))
        if rows:
            tables.append(Table(f"{title}: the paper beside ours", ["method", *header], rows))
    return tables


def table1_claims(records: Sequence[Record]) -> list[Claim]:
    """Claims of Table 1: FMP has the smallest gaps, networks add bias, FMP costs no accuracy."""
    found = []
    for data, title, own in _by_data(records):
        networks, paper = _networks(own), printed()["table1"].get(data, {})
        others = [name for name in ("MLP", *NETWORKS) if name in networks["dp"]]
        for key, text in TABLE1_CLAIMS.items():
            runs, accuracy = networks[key], key == "accuracy"
            rivals = [name for name in others if name == "MLP" or not accuracy]
            if "FMP" in runs and rivals:
                rival = str(runs[rivals].mean().fillna(math.inf).idxmin())
                gain = (runs[rival] - runs["FMP"]) * (-1 if accuracy else 1)
                judged = verdict(spread(gain.tolist()), -MAX_LOSS if accuracy else 0.0)
                theirs, means = _printed_pair(paper, key), 100 * runs.mean()
                ours = f"{means['FMP']:.1f} against {means[rival]:.1f} ({rival})"
                found.append(Claim(text, title, theirs, ours, judged))
        if "MLP" in others and others != ["MLP"]:
            runs, graph = networks["dp"], [name for name in others if name != "MLP"]
            each = runs[graph].sub(runs["MLP"], axis=0)
            more, worse = spread(each.mean(axis=1).tolist()), int((each.mean() > 0).sum())
            text = "Graph networks have a larger ΔDP than an MLP"
            of = [paper[name]["dp"][0] > paper["MLP"]["dp"][0] for name in NETWORKS if paper]
            theirs = f"{sum(of)} of {len(of)} networks" if of else "–"
            ours = f"{worse} of {len(graph)} networks, {100 * more.mean:+.1f} on average"
            found.append(Claim(text, title, theirs, ours, verdict(more)))
    return found


def pareto_claims(hypervolumes: Mapping[str, Mapping[str, Interval]]) -> list[Claim]:
    """Claim of the trade-off figure: FMP has the best trade-off."""
    found = []
    for name, areas in hypervolumes.items():
        others = {family: area for family, area in areas.items() if family != "FMP"}
        if "FMP" not in areas or not others:
            continue
        best = max(others, key=lambda family: others[family].mean)
        fair, other = areas["FMP"], others[best]
        judged = HOLDS if fair.low > other.high else FAILS if fair.high < other.low else OPEN
        ours = f"area {cell_text(fair)} against {cell_text(other)} ({best})"
        found.append(Claim("FMP has the best trade-off", name, "best in every panel", ours, judged))
    return found


def hyperparameter_claims(records: Sequence[Record]) -> list[Claim]:
    """Claims on λ_s and λ_f: what more smoothing does, and that λ_f lowers ΔDP."""
    found = []
    for data, title, own in _by_data(records):
        nba = data == "nba"
        plain, solver = own[own["backbone"] == "ppr"], own[own["solver"] == "paper"]
        if plain["lambda_s"].nunique() > 1:
            where, word, sign = ("NBA", "lower", -1) if nba else ("Pokec", "higher", 1)
            ends, accuracy = _change(plain, "lambda_s", "accuracy")
            more = {f"{word} accuracy": spread((sign * accuracy).tolist())}
            if not nba:
                more["more bias"] = spread(_change(plain, "lambda_s", "dp")[1].tolist())
            for effect, change in more.items():
                ours = f"λ_s = {ends}: {100 * change.mean:.1f} {effect.partition(' ')[0]}"
                text = f"More smoothing gives {effect} (plain propagation)"
                found.append(Claim(text, title, f"on {where}", ours, verdict(change)))
        if solver["strength"].nunique() > 1:
            ends, gap = _change(solver, "strength", "dp")
            less = spread((-gap).tolist())
            ours = f"λ_f = {ends}: ΔDP {-100 * less.mean:+.1f}"
            # Less than a tenth of a point is no effect, however certain.
            judged = verdict(less, 0.001) if less.high > 0.001 else FAILS
            found.append(Claim("A larger λ_f lowers ΔDP (as printed)", title, "yes", ours, judged))
    return found


def runtime_claims(records: Sequence[Record]) -> list[Claim]:
    """Claims on running time, from the medians of each method's runs."""
    found, times = [], printed()["runtime"]
    for key, title, own in _by_data(records):
        seconds = own.groupby("family")["seconds"].median()
        for method, pairs in (times.get(key, times["pokec-n"]) | times["any"]).items():
            for other, ratio in pairs.items():
                if not {method, other} <= set(seconds.index):
                    continue
                ours = seconds[method] / seconds[other]
                side = "more" if ratio > 1 else "less"
                judged = HOLDS if (ours > 1) == (ratio > 1) else FAILS
                text = f"{method} takes {side} time than {other}"
                theirs = f"×{ratio:.2f}" if key in times or method != "FMP" else "–"
                found.append(Claim(text, title, theirs, f"×{ours:.2f}", judged))
    return found


def sign(points: pd.DataFrame, quantity: str) -> Any:
    """+1 or −1 where the measured interval of a change excludes 0, else 0."""
    measured = points[f"{quantity}_measured"]
    return np.sign(measured).where(measured.abs() > points[f"{quantity}_interval"], 0)


def synthetic_claims(summary: Mapping[str, Any], panels: pd.DataFrame) -> list[Claim]:
    """Claims of the synthetic figures: where averaging adds bias, and Theorem 2's condition."""
    found = []
    for series, symbol in (("density", "ρ_d"), ("nodes", "n"), ("ratio", "c")):
        own = panels[(panels["series"] == series) & (panels["covariance"] == "identity")]
        top = own[own["eps"] == own["eps"].max()]
        added = int((sign(top, "parity") > 0).sum())
        ours = f"{added} of {len(top)} at ε = {top['eps'].max():g}" if len(top) else "–"
        judged = HOLDS if added == len(top) else FAILS if added == 0 else OPEN
        text = f"Averaging adds bias where homophily is high, for every {symbol}"
        found.append(Claim(text, "synthetic", "yes", ours, judged))
    row = next(row for row in summary["agreement"] if row["form"] == "printed")
    alarms = f"{row['false_alarms']} counterexamples of {row['decided']}"
    judged = FAILS if row["false_alarms"] else OPEN
    text = "The printed condition of Theorem 2 is sufficient"
    return [*found, Claim(text, "synthetic", "yes", alarms, judged)]


def _by_data(records: Sequence[Record]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Runs of each data set, after its name in the paper and its title."""
    for data, own in results(records).groupby("data", sort=False):
        yield paper_key(str(data)), str(own["dataset"].iloc[0]), own


def _networks(own: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each figure of the methods without a strategy, by split and method."""
    plain = own[own["strategy"] == "vanilla"]
    shape: dict[str, Any] = {"index": "split", "columns": "family", "dropna": False}
    return {key: plain.pivot_table(values=key, **shape) for key in FIGURES}


def _printed_pair(paper: Mapping[str, Any], key: str) -> str:
    """What the paper prints for FMP, and for the method to compare it with."""
    if not paper:
        return "–"
    rivals = {name: values[key][0] for name, values in paper.items() if name != "FMP"}
    rival = "MLP" if key == "accuracy" else min(rivals, key=rivals.__getitem__)
    return f"{paper['FMP'][key][0]:.1f} against {rivals[rival]:.1f} ({rival})"


def _change(own: pd.DataFrame, column: str, key: str) -> tuple[str, pd.Series]:
    """Change of a figure within splits, from the smallest value of a setting to the largest."""
    runs = own.pivot_table(index="split", columns=column, values=key)
    ends = f"{runs.columns[0]:g} → {runs.columns[-1]:g}"
    return ends, runs.iloc[:, -1] - runs.iloc[:, 0]
