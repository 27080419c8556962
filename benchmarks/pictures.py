"""The two pictures of the documentation's home page, from audits and from the comparison's records.

python benchmarks/pictures.py audit      # measures the graphs, writes results/audit.json
python benchmarks/pictures.py            # draws docs/figures/topology-bias.png and cost.png
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from fairmp.metrics import Interval, mean_interval
from fairmp.report.figures import BEFORE, COLOURS, INK, figure

HERE = Path(__file__).parent
AUDIT = HERE / "results" / "audit.json"
FIGURES = HERE.parent / "docs" / "figures"
GRAPHS = {
    "embedded": "embedded network",
    "pokec-province": "Pokec province",
    "nba": "NBA",
    "pokec-n-graph": "Pokec-n, 3 features",
    "facebook100": "Facebook100, Cornell",
    "german": "German",
    "credit": "Credit",
    "bail": "Bail",
}
AFTER = COLOURS[1]


def measure() -> None:
    """Audit every graph."""
    from fairmp.analysis.audits import audit
    from fairmp.datasets import load, social_network

    found = {}
    for key, name in GRAPHS.items():
        result = audit(social_network() if key == "embedded" else load(key))
        found[name] = {
            "features": result.row[0].predictability,
            "one step": result.row[1].predictability,
            "five steps": result.row[5].predictability,
            "homophily": result.homophily.raw,
            "adjusted": result.homophily.adjusted,
        }
        print(name, found[name], flush=True)
    record = {"command": "python benchmarks/pictures.py audit", "graphs": found}
    AUDIT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def dumbbells(
    axes: Any, rows: dict[str, tuple[Interval, Interval]], colour: str, labels: tuple[str, ...]
) -> None:
    """Before and after in each row, joined by a line, with intervals."""
    for place, (before, after) in enumerate(rows.values()):
        first, second = 100 * before.mean, 100 * after.mean
        axes.plot([first, second], [place, place], color="#c4cbd2", linewidth=3, zorder=1)
        for value, style in ((before, BEFORE), (after, colour)):
            if value.n > 1:
                ends = [100 * max(value.low, 0), 100 * min(value.high, 1)]
                axes.plot(ends, [place, place], color=style, linewidth=1.2, zorder=2)
        axes.plot([first], [place], "o", color="white", mec=BEFORE, mew=2, ms=8, zorder=3)
        axes.plot([second], [place], "o", color=colour, ms=9, zorder=4)
    first, last = next(iter(rows.values()))
    for value, text, style in ((first, labels[0], BEFORE), (last, labels[1], colour)):
        align = "right" if value.mean == max(first.mean, last.mean) else "left"
        axes.annotate(text, (100 * value.mean, -0.45), ha=align, color=style)
    axes.set_yticks(range(len(rows)), list(rows), color=INK)
    axes.set_ylim(len(rows) - 0.5, -1.0)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)


def draw_topology() -> None:
    """How well the group can be predicted, before and after averaging over neighbours."""
    graphs = json.loads(AUDIT.read_text(encoding="utf-8"))["graphs"]
    point = lambda share: Interval(share, share, share, 1)  # noqa: E731
    order = sorted(graphs, key=lambda name: graphs[name]["features"] - graphs[name]["five steps"])
    rows = {
        name: (point(graphs[name]["features"]), point(graphs[name]["five steps"])) for name in order
    }
    fig, axes = figure(7.0, 0.9 + 0.42 * len(rows))
    dumbbells(axes, rows, AFTER, ("features alone", ""))
    axes.annotate("averaged over neighbours", (101, -0.45), ha="right", color=AFTER)
    axes.set_xlim(-3, 103)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("how well the group can be predicted: 0 not at all, 100 perfectly")
    fig.savefig(FIGURES / "topology-bias.png", dpi=160)


def draw_cost() -> None:
    """Gap and accuracy of plain propagation and of FMP, means over ten splits."""
    with gzip.open(HERE / "results" / "compare" / "table.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    names = {"PPR": "plain propagation", "FMP": "FMP"}
    found: dict[str, dict[str, tuple[Interval, Interval]]] = {"dp": {}, "accuracy": {}}
    for data in dict.fromkeys(record["dataset"] for record in records):
        for key, rows in found.items():
            pair = []
            for family in names:
                own = [r for r in records if (r["dataset"], r["family"]) == (data, family)]
                pair.append(mean_interval([r["run"]["test"][key] for r in own]))
            rows[data] = (pair[0], pair[1])
    order = sorted(found["dp"], key=lambda name: -found["dp"][name][0].mean)
    from matplotlib.figure import Figure

    fig = Figure(figsize=(7.6, 0.9 + 0.45 * len(order)), layout="constrained")
    gap, accuracy = fig.subplots(1, 2, sharey=True)
    for axes, key, label in (
        (gap, "dp", "gap between the groups (ΔDP, points)"),
        (accuracy, "accuracy", "accuracy, %"),
    ):
        axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        texts = tuple(names.values()) if axes is gap else ("", "")
        dumbbells(axes, {name: found[key][name] for name in order}, COLOURS[0], texts)
        axes.set_xlabel(label)
    fig.savefig(FIGURES / "cost.png", dpi=160)


if __name__ == "__main__":
    if sys.argv[1:] == ["audit"]:
        measure()
    draw_topology()
    draw_cost()
