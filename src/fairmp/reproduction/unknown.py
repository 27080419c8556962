"""What mending is worth where few groups are known: the share of known groups from 1 to 100 %."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from fairmp.comparison.runner import Record, parallel
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Interval, evaluate, mean_interval
from fairmp.nn.fmp import PPR
from fairmp.postprocessing.api import debias
from fairmp.report.figures import COLOURS, MARKERS, to_svg
from fairmp.report.formats import Table, latex, markdown
from fairmp.report.page import Section, page
from fairmp.training.classifier import FairClassifier

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
DATA = ("embedded", "pokec-province", "bail")
PLAIN, ALONE, ESTIMATED = "as predicted", "unknown left alone", "unknown estimated"
FIGURES = ("accuracy", "dp", "eo")


@dataclass(frozen=True)
class Setting:
    """How the predictions to mend are made: plain propagation, trained once a split."""

    epochs: int = 300
    lr: float = 1e-3
    hidden: int = 64
    K: int = 5
    lambda_s: float = 3.0
    splits: int = 5
    shares: tuple[float, ...] = SHARES


QUICK = Setting(epochs=60, lr=0.01, splits=3, shares=(0.01, 0.05, 0.2, 1.0))


def run(
    graphs: Mapping[str, Data],
    setting: Setting,
    *,
    workers: int = 1,
    on_record: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Train on every split of every graph, hide groups, mend both ways, and measure the truth.

    Example:
        >>> from fairmp.datasets import social_network
        >>> small = Setting(epochs=5, lr=0.02, splits=1, shares=(0.2,))
        >>> records = run({"small": social_network(n=400, average_degree=8)}, small)
        >>> [record["how"] for record in records]
        ['as predicted', 'unknown left alone', 'unknown estimated']
    """
    jobs = [(name, split) for name in graphs for split in range(setting.splits)]
    work = partial(_split, graphs=dict(graphs), setting=setting)
    done: dict[tuple[str, int], list[Record]] = {}
    for job, records in parallel(work, jobs, workers=workers):
        done[job] = records
        on_record(f"{job[0]}, split {job[1]}")
    return [record for job in jobs for record in done[job]]


def _split(job: tuple[str, int], *, graphs: Mapping[str, Data], setting: Setting) -> list[Record]:
    name, split = job
    data = graphs[name]
    model = FairClassifier(
        PPR(setting.K, setting.lambda_s),
        epochs=setting.epochs,
        lr=setting.lr,
        hidden=setting.hidden,
        eval_every=10,
    )
    fit = model.fit(data, seed=0, split_seed=split, bootstrap=0, progress=False)
    data = with_split(data, seed=split)
    p = model.predict_proba(data).double()
    base = {
        "data": name,
        "dataset": str(getattr(data, "name", name)),
        "split": split,
        "versions": fit.versions,
    }
    records = [{**base, "how": PLAIN, "share": None, **_measured(p, data)}]
    # One order a split: who is known at 1 % is known at 2 %.
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(split))
    for share in setting.shares:
        known = torch.zeros(data.num_nodes, dtype=torch.bool)
        known[order[: max(1, round(share * data.num_nodes))]] = True
        sens = torch.where(known, data.sens, -1)
        for how in (ALONE, ESTIMATED):
            records.append(
                {**base, "how": how, "share": share, **_mended(p, data, sens, how == ESTIMATED)}
            )
    return records


def _mended(p: torch.Tensor, data: Data, sens: torch.Tensor, estimate: bool) -> Record:
    population = data.test_mask & (data.sens >= 0)
    try:
        found = debias(
            p,
            sens,
            population=population,
            temperature="decisions",
            estimate_sens=estimate,
            features=data.x if estimate else None,
            # The estimate reads the graph; the predictions are smooth already.
            edge_index=data.edge_index if estimate else None,
            K=1,
            lambda_s=0.0,
            full_output=True,
        )
    except InputError as error:
        # Too few are known to even out anything: the predictions stay as they are.
        return {**_measured(p, data), "not_mended": str(error), "rests": 0.0}
    rests = sum(rest.share for rest in found.group_uncertainty)
    quality = next((rest.accuracy for rest in found.group_uncertainty if rest.nodes), None)
    return {
        **_measured(found.predictions, data),
        "changed": found.changed / max(found.nodes, 1),
        "rests": rests,
        "right": quality,
    }


def _measured(p: torch.Tensor, data: Data) -> Record:
    figures = evaluate(p, data.y, data.sens, mask=data.test_mask, bootstrap=0)
    return {key: float(getattr(figures, key)) for key in FIGURES}


def intervals(records: Sequence[Record]) -> dict[tuple[str, float | None], dict[str, Interval]]:
    """Means over splits of one data set: (how, share) → figure → interval."""
    places = dict.fromkeys((record["how"], record["share"]) for record in records)
    keys = (*FIGURES, "right", "rests")
    return {
        place: {
            key: mean_interval(
                [
                    float(record[key])
                    for record in records
                    if (record["how"], record["share"]) == place and record.get(key) is not None
                ]
            )
            for key in keys
        }
        for place in places
    }


def table(title: str, records: Sequence[Record]) -> Table:
    """A row for each share of known groups: both ways to treat the others, side by side.

    Example:
        >>> row = {"accuracy": 0.8, "dp": 0.1, "eo": 0.05, "split": 0}
        >>> records = [{**row, "how": PLAIN, "share": None}]
        >>> records += [{**row, "how": how, "share": 0.1} for how in (ALONE, ESTIMATED)]
        >>> [list(row)[:3] for row in table("small", records).rows]
        [['plain', '10.0', '10.0'], ['10 %', '10.0', '10.0']]
    """
    found = intervals(records)
    header = ["known", "ΔDP, left alone", "ΔDP, estimated"]
    header += ["accuracy, left alone", "accuracy, estimated", "right %"]
    rows = []
    for share in dict.fromkeys(share for _, share in found):
        pair = [found.get((PLAIN if share is None else how, share)) for how in (ALONE, ESTIMATED)]
        cells = [_cell(one, key) for key in ("dp", "accuracy") for one in pair]
        right = _cell(pair[1], "right") if share is not None else "–"
        name = "plain" if share is None else f"{100 * share:g} %"
        rows.append([name, *cells, right])
    return Table(title, header, rows)


def figure(records: Sequence[Record]) -> Any:
    """Draw the true ΔDP and the accuracy against the share of known groups, a row a data set."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(record["dataset"] for record in records))
    fig = Figure(figsize=(10, 3.4 * len(names)), layout="constrained")
    axes = fig.subplots(len(names), 2, squeeze=False)
    titles = {"dp": "true ΔDP of the test nodes (points)", "accuracy": "accuracy (%)"}
    for row, name in enumerate(names):
        found = intervals([record for record in records if record["dataset"] == name])
        for column, (key, title) in enumerate(titles.items()):
            axis = axes[row][column]
            plain = found[PLAIN, None][key]
            axis.axhline(
                100 * plain.mean, color="#555555", linestyle="--", linewidth=1, label=PLAIN
            )
            for i, how in enumerate((ALONE, ESTIMATED)):
                shares = sorted(share for kind, share in found if kind == how and share is not None)
                values = [found[how, share][key] for share in shares]
                axis.errorbar(
                    [100 * share for share in shares],
                    [100 * value.mean for value in values],
                    yerr=[50 * (value.high - value.low) if value.n > 1 else 0 for value in values],
                    color=COLOURS[i],
                    marker=MARKERS[i],
                    markersize=5,
                    capsize=2,
                    linewidth=1.3,
                    label=how,
                )
            axis.set_xscale("log")
            ticks = [100 * share for share in shares]
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.grid(True, color="#dddddd", linewidth=0.6)
            axis.set_ylabel(title)
            if key == "dp":
                axis.set_ylim(bottom=0)
        axes[row][0].set_title(name, loc="left", fontsize=11)
        for axis in axes[row]:
            axis.set_xlabel("nodes whose group is known (%)")
    lines, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(lines, labels, frameon=False, fontsize=9, loc="outside upper right", ncols=3)
    return fig


def write(
    records: Sequence[Record],
    folder: Path,
    *,
    command: str,
    absent: Mapping[str, str] | None = None,
) -> list[Table]:
    """Write records, table, figure and page; return the tables."""
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    names = list(dict.fromkeys(record["dataset"] for record in records))
    tables = [table(name, [r for r in records if r["dataset"] == name]) for name in names]
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    (folder / "table.tex").write_text(latex(tables), encoding="utf-8")
    picture = figure(records)
    picture.savefig(folder / "unknown.png", dpi=150)
    caption = (
        "Test nodes, in points, mean and half of a 95 % interval over splits. The gap is the true "
        "one, of all test nodes; what was mended saw the known groups alone. Right %: how often "
        "the likeliest group was right on known nodes held out."
    )
    sections = [Section("Gap and accuracy", svg=to_svg(picture), caption=caption)]
    sections += [Section(one.title, header=one.header, rows=one.rows) for one in tables]
    if absent:
        rows = list(absent.items())
        sections.append(Section("Left out", header=["data set", "why"], rows=rows))
    sections.append(Section("How to rerun it", code=command))
    text = page(
        "Where few groups are known",
        "A classifier is trained once on every split, without any fairness. Then the group is "
        "hidden of all but a share of the nodes, and the decisions on the test nodes are mended: "
        "leaving nodes of unknown group alone, or with an estimate of their groups.",
        sections,
    )
    (folder / "report.html").write_text(text, encoding="utf-8")
    return tables


def _cell(found: Mapping[str, Interval] | None, key: str) -> str:
    interval = None if found is None else found[key]
    if interval is None or not interval.n:
        return "–"
    text = f"{100 * interval.mean:.1f}"
    return text if interval.n < 2 else f"{text} ± {50 * (interval.high - interval.low):.1f}"
