"""Post-processing where few groups are known: the share of known groups from 1 to 100 %."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from experiments.options import Page, Scope, Splits, show
from experiments.provenance import stamp
from fairmp.cli.options import Results, Workers
from fairmp.comparison import Record
from fairmp.datasets.splits import with_split
from fairmp.display import bar
from fairmp.errors import InputError
from fairmp.metrics import Interval, evaluate
from fairmp.parallel import WorkerPool, default_workers
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
Treatment = tuple[str, float | None]  # PLAIN, UNCHANGED or ESTIMATED; the share of known groups
Intervals = dict[Treatment, dict[str, Interval]]


@dataclass(frozen=True)
class Study:
    """How the predictions are made: plain propagation, trained once per split."""

    epochs: int = 300
    lr: float = 1e-3
    splits: int = 5
    shares: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


QUICK = Study(epochs=60, lr=0.01, splits=3, shares=(0.01, 0.05, 0.2, 1.0))


def command(results: Results, scope: Scope, splits: Splits = None, workers: Workers = None) -> None:
    """Hide the groups of all but 1 to 100 % of the nodes, and correct with and without estimates.

    By default on the embedded network, Pokec province and Bail.
    """
    folder = results.folder("unknown")
    data_sets = scope.load(["embedded:3000"], DATA)
    study = QUICK if scope.quick else Study()
    study = replace(study, splits=splits or study.splits)
    count = len(data_sets.graphs) * study.splits
    with results.staging(folder) as staging, bar(count, "splits") as advance:
        records = run(data_sets.graphs, study, workers or default_workers(), advance)
        tables = write(records, staging).write(staging, data_sets.absent)
    show(results, records, folder, tables)


def run(
    graphs: Mapping[str, Data],
    study: Study,
    workers: int = 1,
    on_split: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Train on every split, hide groups, post-process both ways, and measure the true gap."""
    jobs = [(name, split) for name in graphs for split in range(study.splits)]
    done: dict[tuple[str, int], list[Record]] = {}
    with WorkerPool(partial(_run_split, graphs=dict(graphs), study=study), workers) as pool:
        for job, records in pool.map(jobs):
            done[job] = records
            on_split(f"{job[0]}, split {job[1]}")
    return [record for job in jobs for record in done[job]]


def _run_split(job: tuple[str, int], *, graphs: Mapping[str, Data], study: Study) -> list[Record]:
    name, split = job
    model = build_classifier(
        "plain",
        lambda_s=3.0,
        backbone="mlp",
        lr=study.lr,
        epochs=study.epochs,
        eval_every=10,
    )
    model.fit(graphs[name], seed=0, split_seed=split, bootstrap=0, progress=False)
    data = with_split(graphs[name], seed=split)
    p = model.predict_proba(data).double()
    base = {
        "data": name,
        "dataset": str(getattr(data, "name", name)),
        "split": split,
        "versions": model.run_.versions,
        **stamp(),
    }
    records = [{**base, "how": PLAIN, "share": None, **_measured(p, data)}]
    for share, sens in _hidden_groups(data, study.shares, seed=split):
        for treatment in (UNCHANGED, ESTIMATED):
            figures = _corrected(p, data, sens, estimate=treatment == ESTIMATED)
            records.append({**base, "how": treatment, "share": share, **figures})
    return records


def _hidden_groups(
    data: Data, shares: Sequence[float], seed: int
) -> Iterator[tuple[float, Tensor]]:
    """Groups of which a share is known, and those of some training nodes alone; others are −1."""
    # One order per split: the nodes known at 1 % are known at 2 %.
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))
    nodes = {share: order[: max(1, round(share * data.num_nodes))] for share in shares}
    nodes[TRAINING_NODES] = order[data.train_mask[order]][:TRAINING_NODES]
    for share, known_nodes in nodes.items():
        known_mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        known_mask[known_nodes] = True
        yield share, torch.where(known_mask, data.sens, -1)


def _corrected(p: Tensor, data: Data, sens: Tensor, *, estimate: bool) -> Record:
    try:
        # Of one known group, debias would read 1 and -1 as the two groups of the paper.
        if len(sens[sens >= 0].unique()) < 2:
            raise InputError("sens", "fewer than 2 groups are known", "make more groups known")
        corrected = debias(
            p,
            sens,
            population=data.test_mask & (data.sens >= 0),
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
    estimated = corrected.group_uncertainty
    return {
        **_measured(corrected.predictions, data),
        "changed": corrected.changed / max(corrected.nodes, 1),
        "uncertain": sum(group.share for group in estimated),
        "right": next((group.accuracy for group in estimated if group.nodes), None),
    }


def _measured(p: Tensor, data: Data) -> Record:
    figures = evaluate(data.y, p, sensitive_features=data.sens, mask=data.test_mask, bootstrap=0)
    return {key: float(getattr(figures, key)) for key in FIGURES}


def intervals(records: Sequence[Record]) -> Intervals:
    """Means over the splits of one data set."""
    by_treatment: dict[Treatment, list[Record]] = {}
    for record in records:
        by_treatment.setdefault((record["how"], record["share"]), []).append(record)
    return {
        treatment: {
            key: spread([run.get(key) for run in runs]) for key in (*FIGURES, "right", "uncertain")
        }
        for treatment, runs in by_treatment.items()
    }


def table(title: str, means: Intervals) -> Table:
    """One row per share of known groups, both treatments of the others side by side."""
    header = ["known", "ΔDP, unchanged", "ΔDP, estimated"]
    header += ["accuracy, unchanged", "accuracy, estimated", "right %"]
    rows = []
    for share in dict.fromkeys(share for _, share in means):
        unchanged = means[PLAIN if share is None else UNCHANGED, share]
        estimated = means[PLAIN if share is None else ESTIMATED, share]
        figures = [side[key] for key in ("dp", "accuracy") for side in (unchanged, estimated)]
        rows.append([_known(share), *map(cell_text, figures), cell_text(estimated["right"])])
    return Table(title, header, rows)


def _known(share: float | None) -> str:
    if share is None:
        return "plain"
    return f"{share} training nodes" if share == TRAINING_NODES else f"{100 * share:g} %"


def figure(by_data: Mapping[str, Intervals]) -> Any:
    """Draw true ΔDP and accuracy against the share of known groups, one row per data set."""
    fig, axes = charts.figure(8.4, 2.9 * len(by_data), nrows=len(by_data), ncols=2, squeeze=False)
    titles = {"dp": "true ΔDP of the test nodes (points)", "accuracy": "accuracy (%)"}
    for row, (name, means) in zip(axes, by_data.items(), strict=True):
        shares = sorted({share for _, share in means if share not in (None, TRAINING_NODES)})
        ticks = [100 * share for share in shares if share is not None]
        row[0].set_title(name, loc="left", fontsize=11)
        for axis, (key, title) in zip(row, titles.items(), strict=True):
            plain = 100 * means[PLAIN, None][key].mean
            axis.axhline(plain, color="#555555", linestyle="--", linewidth=1, label=PLAIN)
            for colour, treatment in enumerate((UNCHANGED, ESTIMATED)):
                values = [means[treatment, share][key] for share in shares]
                charts.series(axis, ticks, values, colour, treatment)
            axis.set_xscale("log")
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
            axis.set(xlabel="nodes whose group is known (%)", ylabel=title)
        row[0].set_ylim(bottom=0)
    lines, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(lines, labels, frameon=False, fontsize=9, loc="outside upper right", ncols=3)
    return fig


def write(records: Sequence[Record], folder: Path) -> Page:
    """Write records and figure; return the content of the page."""
    write_records(records, folder)
    by_data: dict[str, list[Record]] = {}
    for record in records:
        by_data.setdefault(record["dataset"], []).append(record)
    means = {name: intervals(runs) for name, runs in by_data.items()}
    picture = figure(means)
    picture.savefig(folder / "unknown.png", dpi=150)
    drawn = Section("Gap and accuracy", svg=to_svg(picture), caption=CAPTION)
    tables = [table(name, by_treatment) for name, by_treatment in means.items()]
    return Page("Few known groups", SUMMARY, [drawn, *tables])
