"""Post-processing where few groups are known: the share of known groups from 1 to 100 %."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from fairmp.comparison import Record
from fairmp.comparison.page import Content
from fairmp.datasets.splits import with_split
from fairmp.errors import InputError
from fairmp.metrics import Interval, evaluate
from fairmp.parallel import WorkerPool
from fairmp.postprocessing.solver import debias
from fairmp.report import Section
from fairmp.report import figures as charts
from fairmp.report.figures import to_svg
from fairmp.report.formats import SPREAD, Table, cell_text, spread, write_records
from fairmp.training.classifier import build_classifier

DATA = ("embedded", "pokec-province", "bail")
PLAIN, UNCHANGED, ESTIMATED = "as predicted", "unknown unchanged", "unknown estimated"
FIGURES = ("accuracy", "dp", "eo")
TRAINING_NODES = 500  # with known groups, as in the paper's data table; stands in for a share
CAPTION = (
    f"Test nodes, in points. {SPREAD} The gap is the true one, over all test nodes; the correction "
    "saw the known groups only. Right %: accuracy of the most probable group on known nodes held "
    "out."
)
SUMMARY = (
    "A classifier is trained on every split without any fairness constraint. Then the groups of "
    "all but a share of the nodes (or all but 500 training nodes, as in the paper) are hidden, and "
    "the decisions on the test nodes are corrected: nodes of unknown group stay unchanged, or "
    "their groups are estimated."
)
Intervals = dict[tuple[str, float | None], dict[str, Interval]]


@dataclass(frozen=True)
class Setting:
    """How the predictions are made: plain propagation, trained once per split."""

    epochs: int = 300
    lr: float = 1e-3
    splits: int = 5
    shares: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


QUICK = Setting(epochs=60, lr=0.01, splits=3, shares=(0.01, 0.05, 0.2, 1.0))


def run(
    graphs: Mapping[str, Data],
    setting: Setting,
    workers: int = 1,
    on_record: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Train on every split, hide groups, post-process both ways, and measure the true gap."""
    jobs = [(name, split) for name in graphs for split in range(setting.splits)]
    done: dict[tuple[str, int], list[Record]] = {}
    with WorkerPool(partial(_split, graphs=dict(graphs), setting=setting), workers) as pool:
        for job, records in pool.map(jobs):
            done[job] = records
            on_record(f"{job[0]}, split {job[1]}")
    return [record for job in jobs for record in done[job]]


def _split(job: tuple[str, int], *, graphs: Mapping[str, Data], setting: Setting) -> list[Record]:
    name, split = job
    data = graphs[name]
    model = build_classifier("plain", lr=setting.lr, epochs=setting.epochs, eval_every=10)
    fit = model.fit(data, seed=0, split_seed=split, bootstrap=0, progress=False)
    data = with_split(data, seed=split)
    p = model.predict_proba(data).double()
    dataset = str(getattr(data, "name", name))
    base = {"data": name, "dataset": dataset, "split": split, "versions": fit.versions}
    records = [{**base, "how": PLAIN, "share": None, **_measured(p, data)}]
    # One order per split: the nodes known at 1 % are known at 2 %.
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(split))
    for share in (*setting.shares, TRAINING_NODES):
        among, count = order, max(1, round(share * data.num_nodes))
        if share == TRAINING_NODES:
            among, count = order[data.train_mask[order]], TRAINING_NODES
        known = torch.zeros(data.num_nodes, dtype=torch.bool)
        known[among[:count]] = True
        sens = torch.where(known, data.sens, -1)
        for how in (UNCHANGED, ESTIMATED):
            found = _corrected(p, data, sens, how == ESTIMATED)
            records.append({**base, "how": how, "share": share, **found})
    return records


def _corrected(p: torch.Tensor, data: Data, sens: torch.Tensor, estimate: bool) -> Record:
    try:
        found = debias(
            p,
            sens,
            population=data.test_mask & (data.sens >= 0),
            temperature="decisions",
            estimate_sens=estimate,
            features=data.x if estimate else None,
            # The graph is for the estimate; the predictions are propagated already.
            edge_index=data.edge_index if estimate else None,
            K=1,
            lambda_s=0.0,
            full_output=True,
        )
    except InputError as error:
        # Too few groups are known for any correction: the predictions stay as they are.
        return {**_measured(p, data), "not_corrected": str(error), "uncertain": 0.0}
    return {
        **_measured(found.predictions, data),
        "changed": found.changed / max(found.nodes, 1),
        "uncertain": sum(rest.share for rest in found.group_uncertainty),
        "right": next((rest.accuracy for rest in found.group_uncertainty if rest.nodes), None),
    }


def _measured(p: torch.Tensor, data: Data) -> Record:
    figures = evaluate(p, data.y, data.sens, mask=data.test_mask, bootstrap=0)
    return {key: float(getattr(figures, key)) for key in FIGURES}


def intervals(records: Sequence[Record]) -> Intervals:
    """Means over the splits of one data set: (how, share) → figure → interval."""
    found: Intervals = {}
    for place in dict.fromkeys((record["how"], record["share"]) for record in records):
        own = [record for record in records if (record["how"], record["share"]) == place]
        keys = (*FIGURES, "right", "uncertain")
        found[place] = {key: spread([one.get(key) for one in own]) for key in keys}
    return found


def table(title: str, found: Intervals) -> Table:
    """One row per share of known groups, both treatments of the others side by side."""
    header = ["known", "ΔDP, unchanged", "ΔDP, estimated"]
    header += ["accuracy, unchanged", "accuracy, estimated", "right %"]
    rows = []
    for share in dict.fromkeys(share for _, share in found):
        pair = [found[PLAIN if share is None else how, share] for how in (UNCHANGED, ESTIMATED)]
        texts = [cell_text(one[key]) for key in ("dp", "accuracy") for one in pair]
        known = "plain" if share is None else f"{100 * share:g} %"
        known = f"{share} training nodes" if share == TRAINING_NODES else known
        rows.append([known, *texts, cell_text(pair[1]["right"])])
    return Table(title, header, rows)


def figure(found: Mapping[str, Intervals]) -> Any:
    """Draw true ΔDP and accuracy against the share of known groups, one row per data set."""
    fig, axes = charts.figure(8.4, 2.9 * len(found), nrows=len(found), ncols=2, squeeze=False)
    titles = {"dp": "true ΔDP of the test nodes (points)", "accuracy": "accuracy (%)"}
    for row, (name, own) in zip(axes, found.items(), strict=True):
        shares = sorted({share for _, share in own if share not in (None, TRAINING_NODES)})
        ticks = [100 * share for share in shares]
        row[0].set_title(name, loc="left", fontsize=11)
        for axis, (key, title) in zip(row, titles.items(), strict=True):
            plain = 100 * own[PLAIN, None][key].mean
            axis.axhline(plain, color="#555555", linestyle="--", linewidth=1, label=PLAIN)
            for k, how in enumerate((UNCHANGED, ESTIMATED)):
                values = [own[how, share][key] for share in shares]
                charts.series(axis, ticks, values, k, how)
            axis.set_xscale("log")
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.set(xlabel="nodes whose group is known (%)", ylabel=title)
        row[0].set_ylim(bottom=0)
    lines, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(lines, labels, frameon=False, fontsize=9, loc="outside upper right", ncols=3)
    return fig


def write(records: Sequence[Record], folder: Path) -> Content:
    """Write records and figure, and return the content of the page."""
    write_records(records, folder)
    names = dict.fromkeys(record["dataset"] for record in records)
    found = {name: intervals([r for r in records if r["dataset"] == name]) for name in names}
    tables = [table(name, own) for name, own in found.items()]
    picture = figure(found)
    picture.savefig(folder / "unknown.png", dpi=150)
    drawn = Section("Gap and accuracy", svg=to_svg(picture), caption=CAPTION)
    return "Few known groups", SUMMARY, [drawn, *tables]
