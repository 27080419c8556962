"""Figures printed in the paper, beside ours, and a verdict on each of its claims.

The figures are in ``printed.json``: percent, mean and standard deviation of five runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from fairmp.comparison import Record
from fairmp.metrics import Interval
from fairmp.report.formats import COLUMNS, Table, cell_text, spread
from fairmp.reproduction.synthetic_runs import sign

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
VERDICTS = (
    "Verdicts are on differences within splits: a claim holds, or does not, where the 95 % "
    "interval of the mean difference says so (with fewer than five splits, every split)."
)
FIGURES = ("accuracy", "dp", "eo")
NETWORKS = ("GCN", "GAT", "SGC", "APPNP")
MAX_LOSS = 0.01  # of accuracy that still counts as equal


@cache
def printed() -> dict[str, Any]:
    """Return all figures of ``printed.json``."""
    found: dict[str, Any] = json.loads(
        files(__package__).joinpath("printed.json").read_text("utf8")
    )
    return found


def paper_key(data: str) -> str:
    """Name under which the paper has a data set, for any protocol or version of its files."""
    return data.partition("+")[0].removesuffix("-graph")


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
    for data, own in _by_data(records).items():
        paper = printed()["table1"].get(paper_key(data))
        if paper is None:
            continue
        header = [
            "method",
            *(f"{COLUMNS[key]}, {who}" for key in FIGURES for who in ("paper", "ours")),
        ]
        rows = []
        for name, values in paper.items():
            row = [name]
            for key in FIGURES:
                mean, deviation = values[key]
                ours = [_test(r, key) for r in own if _network(r) == name]
                row += [
                    f"{mean:.1f} ± {deviation:.1f} sd",
                    cell_text(spread(ours)) if ours else "–",
                ]
            rows.append(row)
        tables.append(Table(f"{own[0]['dataset']}: the paper beside ours", header, rows))
    return tables


def table1_claims(records: Sequence[Record]) -> list[Claim]:
    """Claims of Table 1: FMP has the smallest gaps, networks add bias, FMP costs no accuracy."""
    found = []
    for data, own in _by_data(records).items():
        title = own[0]["dataset"]
        runs = {name: _per_split(own, name) for name in ("MLP", *NETWORKS, "FMP")}
        runs = {name: values for name, values in runs.items() if values}
        paper = printed()["table1"].get(paper_key(data), {})
        others = [name for name in runs if name != "FMP"]
        if "FMP" in runs and others:
            for key, symbol in (("dp", "ΔDP"), ("eo", "ΔEO")):
                best = min(others, key=lambda name: _mean(runs[name], key))
                text = f"FMP has the smallest {symbol}"
                less = _difference(runs[best], runs["FMP"], key)
                found.append(_claim(text, title, paper, runs, key, ("FMP", best), verdict(less)))
        if {"FMP", "MLP"} <= set(runs):
            gain = _difference(runs["FMP"], runs["MLP"], "accuracy")
            text = "FMP is as accurate as an MLP, within a point"
            pair = ("FMP", "MLP")
            judged = verdict(gain, -MAX_LOSS)
            found.append(_claim(text, title, paper, runs, "accuracy", pair, judged))
        networks = [name for name in NETWORKS if name in runs]
        if "MLP" in runs and networks:
            each = [_difference(runs[name], runs["MLP"], "dp") for name in networks]
            more = spread(
                [_mean_over(runs, networks, "dp", k) - v["dp"] for k, v in runs["MLP"].items()]
            )
            worse = sum(one.mean > 0 for one in each)
            text = "Graph networks have a larger ΔDP than an MLP"
            of = (
                [paper[name]["dp"][0] > paper["MLP"]["dp"][0] for name in NETWORKS] if paper else []
            )
            theirs = f"{sum(of)} of {len(of)} networks" if of else "–"
            ours = f"{worse} of {len(networks)} networks, {100 * more.mean:+.1f} on average"
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
    for data, own in _by_data(records).items():
        title, nba = own[0]["dataset"], paper_key(data) == "nba"
        plain = [r for r in own if r["spec"]["backbone"] == "ppr"]
        smooth = sorted({r["spec"]["setting"]["lambda_s"] for r in plain})
        if len(smooth) > 1:
            few, much = (
                {r["split"]: r["run"]["test"] for r in plain if _lambda_s(r) == value}
                for value in (smooth[0], smooth[-1])
            )
            ends = f"λ_s = {smooth[0]:g} → {smooth[-1]:g}"
            where, word = ("NBA", "lower") if nba else ("Pokec", "higher")
            pair = (few, much) if nba else (much, few)
            more = {f"{word} accuracy": _difference(*pair, "accuracy")}
            more |= {} if nba else {"more bias": _difference(much, few, "dp")}
            for effect, change in more.items():
                ours = f"{ends}: {100 * change.mean:.1f} {effect.partition(' ')[0]}"
                text = f"More smoothing gives {effect} (plain propagation)"
                found.append(Claim(text, title, f"on {where}", ours, verdict(change)))
        solver = [r for r in own if r["spec"]["setting"]["solver"] == "paper"]
        steps = sorted({r["strength"] for r in solver})
        if len(steps) > 1:
            none, most = (
                {r["split"]: r["run"]["test"] for r in solver if r["strength"] == value}
                for value in (steps[0], steps[-1])
            )
            less = _difference(none, most, "dp")
            ours = f"λ_f = {steps[0]:g} → {steps[-1]:g}: ΔDP {-100 * less.mean:+.1f}"
            # Less than a tenth of a point is no effect, however certain.
            judged = verdict(less, 0.001) if less.high > 0.001 else FAILS
            found.append(Claim("A larger λ_f lowers ΔDP (as printed)", title, "yes", ours, judged))
    return found


def runtime_claims(records: Sequence[Record], seconds: Callable[[str, str], float]) -> list[Claim]:
    """Claims on running time; ``seconds(data, method)`` is the median of a method's runs."""
    found = []
    for data, own in _by_data(records).items():
        key = paper_key(data)
        ratios = printed()["runtime"].get(key) or printed()["runtime"]["pokec-n"]
        for method, pairs in (ratios | printed()["runtime"]["any"]).items():
            for other, ratio in pairs.items():
                known = key in printed()["runtime"] or method != "FMP"
                try:
                    ours = seconds(data, method) / seconds(data, other)
                except KeyError:
                    continue
                side = "more" if ratio > 1 else "less"
                judged = HOLDS if (ours > 1) == (ratio > 1) else FAILS
                text = f"{method} takes {side} time than {other}"
                theirs = f"×{ratio:.2f}" if known else "–"
                found.append(Claim(text, own[0]["dataset"], theirs, f"×{ours:.2f}", judged))
    return found


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


def _by_data(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if "failed" not in record:
            found.setdefault(record["data"], []).append(record)
    return found


def _network(record: Record) -> str:
    """Name of a record's method in the paper's table; none for FMP of another solver."""
    return str(record["family"]) if record["spec"]["strategy"] == "vanilla" else ""


def _lambda_s(record: Record) -> float:
    return float(record["spec"]["setting"]["lambda_s"])


def _test(record: Record, key: str) -> float | None:
    value: float | None = record["run"]["test"][key]
    return value


def _per_split(records: Sequence[Record], name: str) -> dict[int, dict[str, Any]]:
    return {r["split"]: r["run"]["test"] for r in records if _network(r) == name}


def _mean(runs: Mapping[int, Mapping[str, Any]], key: str) -> float:
    return spread([run[key] for run in runs.values()]).mean


def _mean_over(runs: Mapping[str, Any], names: Sequence[str], key: str, split: int) -> float:
    values = [runs[name][split][key] for name in names if split in runs[name]]
    return sum(values) / len(values)


def _difference(
    one: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]], key: str
) -> Interval:
    """Mean difference within the splits that both have."""
    shared = [split for split in one if split in other]
    pairs = [(one[split][key], other[split][key]) for split in shared]
    return spread([a - b for a, b in pairs if a is not None and b is not None])


def _claim(
    text: str, title: str, paper: Mapping[str, Any], runs: Mapping[str, Any], key: str,
    pair: tuple[str, str], judged: str,
) -> Claim:  # fmt: skip
    name, other = pair
    ours = (
        f"{100 * _mean(runs[name], key):.1f} against {100 * _mean(runs[other], key):.1f} ({other})"
    )
    theirs = "–"
    if paper:
        rivals = {k: v[key][0] for k, v in paper.items() if k != "FMP"}
        rival = "MLP" if key == "accuracy" else min(rivals, key=rivals.__getitem__)
        theirs = f"{paper['FMP'][key][0]:.1f} against {rivals[rival]:.1f} ({rival})"
    return Claim(text, title, theirs, ours, judged)
