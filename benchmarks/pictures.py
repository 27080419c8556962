"""Pictures of the README and the documentation: what topology does, and the trade-off.

python -m benchmarks.pictures audit      # measures the graphs, writes results/audit.json
python -m benchmarks.pictures            # draws docs/figures/topology-bias.png, tradeoff*.png, …

What each correction does (docs/figures/attribution.png) is drawn from results/attribution.json, the
trade-off from it and results/baselines.json, that of decisions without the group (group-free.png)
from results/group-free.json, the gallery (gallery-*.png) from results/audit.json and
results/attribution.json.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from experiments import training_tables
from experiments.attribution_tables import (
    BLEND,
    BLIND,
    DEFAULT,
    DEFAULT_ALONE,
    THRESHOLDS,
    floor,
    targets,
    values,
)
from experiments.committed import TITLES, read
from experiments.gallery import Exhibit, exhibits
from experiments.provenance import code_hash
from fairmp.metrics import Interval, mean_interval
from fairmp.report.figures import BEFORE, COLOURS, INK, bars, figure, plot_shares

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
README_GRAPHS = ["pokec-province", "credit", "bail"]  # over 1,000 nodes, and a gap to close
# Okabe and Ito's colours, two of them darker: names are written in them on white.
STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#007A59", "^"), ("#A3527F", "D"), (BEFORE, "o")]
Pair: TypeAlias = tuple[Interval, Interval]


def measure() -> None:
    """Audit every graph."""
    from fairmp.analysis.audits import audit
    from fairmp.datasets import load, social_network

    figures = {}
    for key, name in GRAPHS.items():
        result = audit(social_network() if key == "embedded" else load(key))
        figures[name] = {
            "features": result.row[0].predictability,
            "one step": result.row[1].predictability,
            "five steps": result.row[5].predictability,
            "predicted": result.forecast.after,
            "random features": result.random_baseline[5],
            "homophily": result.homophily.raw,
            "adjusted": result.homophily.adjusted,
        }
        print(name, figures[name], flush=True)
    record = {
        "command": "python -m benchmarks.pictures audit",
        "code": code_hash("analysis"),
        "graphs": figures,
    }
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


def read_curves() -> dict[str, dict[str, list[Pair]]]:
    """Gap and accuracy of each graph and method, by target or strength, over the same splits."""
    curves_by_graph = {}
    for data in GRAPHS:
        records = training_tables.ours(data)
        by_target = [list(targets(record).values()) for record in records]
        steps = list(zip(*by_target, strict=True))
        baselines = [record for record in read("baselines")["records"] if record["data"] == data]
        if not steps or not baselines:
            continue
        curves = {"FMP, batch": steps}
        for strategy in ("regulariser", "adversary"):
            used = [record for record in baselines if record.get("strategy") == strategy]
            strengths = {r.get("strength", 0.0): [] for r in used} | {0.0: []}
            for record in baselines:
                is_network = record["method"] == used[0]["method"]
                if is_network and record.get("strategy", strategy) == strategy:
                    strengths[record.get("strength", 0.0)].append(record["test"])
            curves[strategy] = [strengths[key] for key in sorted(strengths)]
        trees = best_trees(baselines)
        curves["trees + fairlearn"] = [[r[kind] for r in trees] for kind in ("test", "fair")]
        curves[training_tables.NETWORKS[used[0]["method"]]] = curves["regulariser"][:1]
        curves_by_graph[data] = {name: list(map(_pair, steps)) for name, steps in curves.items()}
    return curves_by_graph


def best_trees(baselines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of the trees of the higher validation accuracy, with or without the neighbourhood."""
    by_method = [
        [record for record in baselines if record["method"] == method]
        for method in training_tables.TREES
    ]
    return max(by_method, key=lambda records: sum(each["val"]["accuracy"] for each in records))


def _pair(tests: Sequence[dict[str, float]]) -> Pair:
    dp, accuracy = (mean_interval([test[key] for test in tests]) for key in ("dp", "accuracy"))
    return dp, accuracy


def ribbon(axes: Any, x: Any, low: Any, high: Any, colour: str) -> None:
    """Fill between two lines over any path of x, evenly where it crosses itself."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    parts = []
    for i, j in itertools.pairwise(range(len(x))):
        i, j = (i, j) if x[i] <= x[j] else (j, i)  # all parts turn the same way
        corners = [(x[i], low[i]), (x[j], low[j]), (x[j], high[j]), (x[i], high[i])]
        parts.append(Outline([*corners, corners[0]], closed=True))
    if parts:
        area = Outline.make_compound_path(*parts)
        axes.add_patch(PathPatch(area, color=colour, alpha=0.13, linewidth=0))


def draw_panel(
    axes: Any, curves: dict[str, list[Pair]], title: str, room: float
) -> list[tuple[str, str, Any]]:
    """Draw one graph's curves, with room on the right; return name, colour and points of each."""
    lines = []
    for (name, pairs), (colour, marker) in zip(curves.items(), STYLES, strict=True):
        x, y = (np.array([100 * i.mean for i in side]) for side in zip(*pairs, strict=True))
        below, above = bars([accuracy for _, accuracy in pairs])
        ribbon(axes, x, y - below, y + above, colour)
        style = {"color": colour, "marker": marker, "ms": 5, "lw": 1.8, "mec": "white", "mew": 0.6}
        if colour == BEFORE:
            style |= {"mfc": "white", "mec": BEFORE, "mew": 1.6, "ms": 6}
        axes.plot(x, y, zorder=5 if name == "FMP, batch" else 4, **style)
        lines.append((name, colour, np.stack([x, y], 1)))
    points, ends = (np.concatenate([line[2] for line in some]) for some in (lines, lines[::3]))
    ends = np.concatenate([ends, lines[-1][2]])  # a strong penalty may lie outside
    top, right = points[:, 1].max(), min(points[:, 0].max(), 1.25 * ends[:, 0].max())
    lowest = ends[:, 1].min()
    bottom = max(points[:, 1].min(), lowest - max(0.6, 0.6 * (top - lowest)))
    axes.set_xlim(-0.03 * right, (1 + room) * right)
    axes.set_ylim(bottom - 0.12 * (top - bottom), top + 0.12 * (top - bottom))
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return lines


def label_lines(axes: Any, lines: list[tuple[str, str, Any]], size: float) -> None:
    """Put each name beside its line, where it covers the least."""
    from matplotlib.patheffects import withStroke

    to_screen, frame = axes.transData.transform, axes.get_window_extent()
    tracks = []
    for _, _, points in lines:
        ends = to_screen(points)
        steps = np.linspace(0, 1, 60)[:, None]
        parts = [a + steps * (b - a) for a, b in itertools.pairwise(ends)] or [ends]
        tracks.append(np.concatenate(parts))
    taken: list[tuple[float, ...]] = []
    for k, (name, colour, _) in reversed([*enumerate(lines)]):  # FMP has the most room
        bold = "bold" if name == "FMP, batch" else "normal"
        text = axes.text(0, 0, name, fontsize=size, color=colour, fontweight=bold, zorder=6)
        text.set_path_effects([withStroke(linewidth=2.5, foreground="#ffffffd0")])
        box = text.get_window_extent()
        gaps = (step * axes.figure.dpi / 72 for step in (5, 9, 14))
        places = [p for gap in gaps for p in _places(tracks[k], box.width, box.height, gap)]
        inside = [
            (x, y)
            for x, y in places
            if frame.x0 + 8 < x < frame.x1 - box.width and frame.y0 < y < frame.y1 - box.height
        ]
        cost = partial(_cost, box.width, box.height, tracks, k, taken)
        x, y = min(inside, key=cost)
        taken.append((x, y, x + box.width, y + box.height))
        text.set(position=axes.transData.inverted().transform((x, y)), verticalalignment="bottom")


def _places(track: Any, width: float, height: float, gap: float) -> Iterator[tuple[float, float]]:
    """Corners of boxes around points of a line."""
    for x, y in track[:: max(1, len(track) // 60)]:
        for dx, dy in itertools.product((-1.0, -0.5, 0.0), (-1.0, -0.5, 0.0)):
            if (dx, dy) != (-0.5, -0.5):
                aside = gap * (2 * dx + 1) * (dy == -0.5)
                yield x + dx * width + aside, y + dy * height + gap * (2 * dy + 1)


def _cost(
    width: float, height: float, tracks: Any, track: int, taken: Any, corner: tuple[float, float]
) -> float:
    """How much a box covers, and how near it comes to lines of other names."""
    x, y = corner
    cost, distances = 0.0, []
    for points in tracks:
        near = (points[:, 0] > x - 4) & (points[:, 0] < x + width + 4)
        near &= (points[:, 1] > y - 3) & (points[:, 1] < y + height + 3)
        cost += 3 * near.sum()
        apart = np.maximum(abs(points[:, 0] - x - width / 2) - width / 2, 0)
        distances.append(np.hypot(apart, abs(points[:, 1] - y - height / 2)).min())
    nearest = min(distances)
    cost += 0.15 * distances[track] + 2.0 * max(0.0, distances[track] - nearest - 1)
    cost += sum(40 / (d + 10) for k, d in enumerate(distances) if k != track)
    for left, low, right, high in taken:
        if x < right + 6 and left < x + width + 6 and y < high + 2 and low < y + height + 2:
            cost += 500
    return cost


def draw_tradeoff() -> None:
    """Accuracy against the gap: three graphs for the README, all of them for the comparison."""
    curves = read_curves()
    for file, names, columns, size in (
        ("tradeoff.png", README_GRAPHS, 3, (7.4, 3.4)),
        ("tradeoff-all.png", list(curves), 2, (8.2, 10.0)),
    ):
        fig, panels = figure(*size, nrows=-(-len(names) // columns), ncols=columns)
        drawn = []
        for axes, name in itertools.zip_longest(np.ravel(panels), names):
            if name is None:
                axes.remove()
                continue
            axes.tick_params(labelsize=9)
            drawn.append((axes, draw_panel(axes, curves[name], GRAPHS[name], 0.07 * columns)))
        fig.supxlabel("gap between the groups (ΔDP, points)", fontsize=10, color=INK)
        fig.supylabel("accuracy, %", fontsize=10, color=INK)
        fig.set_dpi(160)
        fig.draw_without_rendering()
        for axes, lines in drawn:
            label_lines(axes, lines, 9)
        fig.savefig(FIGURES / file, dpi=160)


CORRECTIONS = {  # rows of the attribution: their names in the picture, colours and markers
    THRESHOLDS: ("a threshold per group, batch", "#E69F00", "s"),
    DEFAULT: ("FMP, batch", "#0072B2", "o"),
    DEFAULT_ALONE: ("FMP, each node alone", "#007A59", "D"),
    BLIND: ("no group read, each node alone", "#A3527F", "^"),
}


def draw_attribution() -> None:
    """What each correction of the same blend does to the gap, and what it costs."""
    fig, (gaps, costs) = figure(8.2, 4.6, ncols=2, sharey=True)
    step = 0.16
    for place, graph in enumerate(TITLES):
        records = training_tables.ours(graph)
        uncorrected = mean_interval(values(records, BLEND, "dp"))
        gaps.barh(place, 100 * floor(records), height=0.86, color="#ececec", zorder=0)
        gaps.plot(100 * uncorrected.mean, place, "o", mfc="white", mec=BEFORE, mew=1.8, ms=8)
        accuracies = np.array(values(records, BLEND, "accuracy"))
        for position, (row, (_, colour, marker)) in enumerate(CORRECTIONS.items()):
            height = place + (position - 1.5) * step
            style = {"color": colour, "marker": marker, "ms": 5, "mec": "white", "mew": 0.5}
            gaps.plot(100 * mean_interval(values(records, row, "dp")).mean, height, **style)
            changes = 100 * (np.array(values(records, row, "accuracy")) - accuracies)
            change = mean_interval(changes.tolist())
            half = (change.high - change.low) / 2
            costs.errorbar(change.mean, height, xerr=half, elinewidth=1.0, **style)
    gaps.set_yticks(range(len(TITLES)), list(TITLES.values()))
    gaps.set_ylim(len(TITLES) - 0.5, -0.5)
    gaps.set_xlim(left=-0.3)
    gaps.set_xlabel("gap between the groups (ΔDP, points)")
    costs.set_xlabel("change of accuracy (points)")
    costs.axvline(0, color=BEFORE, lw=1, zorder=0)
    for axes in (gaps, costs):
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
    marks = [gaps.plot([], [], "o", mfc="white", mec=BEFORE, mew=1.8, ms=8, label="uncorrected")[0]]
    for name, colour, marker in CORRECTIONS.values():
        marks += gaps.plot([], [], marker, color=colour, ms=6, mec="white", label=name)
    marks.append(gaps.barh(0, 0, color="#ececec", label="below the sampling floor"))
    fig.legend(handles=marks, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    fig.savefig(FIGURES / "attribution.png", dpi=160)


GROUP_FREE = {  # rules in the record: their names in the picture, colours and markers
    "group-aware": ("reads the group", "#0072B2", "o"),
    "blind, neighbours' groups": ("blind, with neighbours' groups", "#D55E00", "s"),
    "blind, no neighbours' groups": ("blind, without them", "#A3527F", "^"),
    "uncorrected": ("uncorrected", BEFORE, "D"),
}


def draw_group_free() -> None:
    """Accuracy against the gap, by target, of decisions with and without the group."""
    path = HERE / "results" / "group-free.json"
    if not path.exists():
        return
    summary = json.loads(path.read_text("utf-8"))["summary"]
    names = list(dict.fromkeys(line["graph"] for line in summary))
    fig, panels = figure(
        8.2, 2.2 * -(-(len(names) + 1) // 2), nrows=-(-(len(names) + 1) // 2), ncols=2
    )
    *panels, last = np.ravel(panels)[: len(names) + 1]
    for axes, name in zip(panels, names, strict=True):
        floor = 100 * next(line["floor"] for line in summary if line["graph"] == name)
        axes.axvspan(0, floor, color="#ececec", zorder=0)
        for rule, (_, colour, marker) in GROUP_FREE.items():
            lines = [li for li in summary if (li["graph"], li["rule"]) == (name, rule)]
            x, y = ([100 * line[key]["mean"] for line in lines] for key in ("dp", "accuracy"))
            error = [100 * (line["accuracy"]["half_width"] or 0.0) for line in lines]
            axes.errorbar(
                x, y, error, color=colour, marker=marker, ms=5, lw=1.5, elinewidth=0.6, mec="white"
            )
        axes.set_title(GRAPHS[name], loc="left", fontsize=10, color=INK)
        axes.tick_params(labelsize=9)
        axes.set_xlim(left=0)
    for rule_name, colour, marker in GROUP_FREE.values():
        last.plot([], [], color=colour, marker=marker, label=rule_name)
    last.fill_between([], [], color="#ececec", label="below the sampling floor")
    last.legend(loc="center", frameon=False, fontsize=9)
    last.axis("off")
    fig.supxlabel("gap between the groups (ΔDP, points)", fontsize=10, color=INK)
    fig.supylabel("accuracy, %", fontsize=10, color=INK)
    fig.savefig(FIGURES / "group-free.png", dpi=160)


STEPS = {  # of the audit's record, as they are named in the picture
    "features": "own features",
    "one step": "averaged once",
    "five steps": "averaged five times",
    "random features": "random, averaged",
}


def draw_gallery() -> None:
    """What averaging does to a graph, and what the correction does, one picture each."""
    for key, exhibit in exhibits().items():
        fig, (topology, correction) = figure(8.2, 2.9, ncols=2)
        _draw_steps(topology, exhibit)
        gaps = {
            "before": [exhibit.uncorrected[name] for name in ("dp", "eo")],
            "after": [exhibit.batch[name] for name in ("dp", "eo")],
        }
        plot_shares(["ΔDP", "ΔEO"], gaps, "gap between the groups, points", correction)
        correction.margins(x=0.18)  # room for the numbers
        handles = correction.get_legend_handles_labels()
        fig.legend(*handles, loc="outside lower right", ncols=2, frameon=False, fontsize=9)
        before, after = (
            100 * part["accuracy"].mean for part in (exhibit.uncorrected, exhibit.batch)
        )
        correction.set_title(f"accuracy {before:.1f} % → {after:.1f} %", loc="left", fontsize=10)
        topology.set_title("what the edges reveal of the group", loc="left", fontsize=10)
        for axes in (topology, correction):
            axes.grid(False, axis="y")
        fig.savefig(FIGURES / f"gallery-{key}.png", dpi=130)


def _draw_steps(axes: Any, exhibit: Exhibit) -> None:
    """Group predictability of the features, and of their averages over neighbours."""
    shares = [100 * exhibit.audit[step] for step in STEPS]
    colours = [BEFORE, AFTER, AFTER, "#c4cbd2"]
    drawn = axes.barh(range(len(STEPS)), shares, 0.65, color=colours)
    axes.bar_label(drawn, fmt="%.0f", padding=4, fontsize=9, color=INK)
    axes.set_yticks(range(len(STEPS)), list(STEPS.values()))
    axes.yaxis.set_inverted(True)
    axes.set(xlim=(0, 112), xticks=range(0, 101, 20))
    axes.set_xlabel("group predictability: 0 not at all, 100 perfectly")


if __name__ == "__main__":
    if sys.argv[1:] == ["audit"]:
        measure()
    draw_topology()
    draw_tradeoff()
    draw_attribution()
    draw_group_free()
    draw_gallery()
