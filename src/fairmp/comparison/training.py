"""Training of one configuration on several splits, of a graph or of shards, and its results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data

from fairmp import groups
from fairmp.analysis.audits.facts import describe
from fairmp.comparison import Record
from fairmp.datasets.load_report import messages
from fairmp.datasets.splits import split
from fairmp.datasets.statistics import Statistics
from fairmp.datasets.stored_graph import save_graph
from fairmp.metrics import Evaluation, evaluate
from fairmp.outputs import check_free, hold
from fairmp.report import Document, Line, Section, over, summarise, to_markdown, tradeoff
from fairmp.report.document import write as write_document
from fairmp.report.evaluations import add_decisions, cautions, from_evaluations, point
from fairmp.report.formats import of_lines, write_records
from fairmp.report.panel import live_parts
from fairmp.report.topology import topology
from fairmp.training.classifier import PARITY, FairClassifier, Run

if TYPE_CHECKING:
    from fairmp.distributed.ranks import Ranks

CHECKPOINTS = "checkpoint"


@dataclass(frozen=True)
class TrainingJob:
    """A configuration, and the splits it is trained on."""

    name: str  # of the method, in tables
    make: Callable[[], FairClassifier]
    seeds: range  # of the splits; the first is also that of the initialisation


@dataclass(frozen=True)
class TrainedSplits:
    """The figures of all splits, and the model of the first."""

    data: Data | Statistics  # statistics of a graph that does not fit in memory
    model: FairClassifier
    runs: Sequence[Run]
    notes: Sequence[str]  # what was noticed when the data was read

    def records(self, name: str) -> list[Record]:
        """One record per split."""
        return [
            {"name": name, "dataset": str(self.data.name), "split": k, "run": run.to_dict()}
            for k, run in enumerate(self.runs)
        ]


def train_splits(job: TrainingJob, data: Data, *, order: str = "given") -> TrainedSplits:
    """Train on several splits of a graph; if its split is fixed, with several initialisations."""
    models = []
    for seed in job.seeds:
        has_split = "protocol" in data
        models.append(
            job.make().fit(
                data,
                seed=seed if has_split else job.seeds[0],
                split_seed=None if has_split else seed,
                order=order,
            )
        )
    return TrainedSplits(data, models[0], [model.run_ for model in models], messages(data))


def train_shards(
    job: TrainingJob,
    shards: Path,
    ranks: Ranks,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    checkpoint_every: int = 10,
) -> tuple[TrainedSplits, Path]:
    """Train on several splits of shards; all ranks call it together.

    Returns what was trained, and the folder for the results: ``out``, a new one, or that of an
    unfinished training. It has checkpoints until :func:`remove_checkpoints` removes them.
    """
    from fairmp.distributed import FileCheckpoints, fit_shard, load_shard
    from fairmp.distributed.loading import split_column

    first = ranks.raise_on_all_ranks(job.make)
    setting = {
        **first.config(),
        "seed": job.seeds[0],
        "splits": len(job.seeds),
        "method": job.name,
    }
    ranks.check_equal("configuration", setting, "start all ranks with the same command")
    folder = ranks.on_rank_zero(lambda: _results_folder(out, overwrite=overwrite))
    shard = load_shard(shards, ranks, device=str(first.device))
    manifest = shard.manifest
    has_split = manifest.split_seeds == (None,)
    split_seeds: list[int | None] = [None] if has_split else list(job.seeds)

    def check_splits() -> None:
        for split_seed in split_seeds:
            split_column(manifest, split_seed)

    ranks.raise_on_all_ranks(check_splits)
    runs: list[Run] = []
    for number, split_seed in enumerate(split_seeds):
        path = folder / CHECKPOINTS / f"split-{number}.pt"
        fingerprint = {**setting, "data": manifest.fingerprint, "split_seed": split_seed}
        checkpoints = FileCheckpoints(path, ranks, fingerprint, every=checkpoint_every)
        shard = shard.with_split(shards, split_seed)
        model = job.make() if number else first
        run = fit_shard(
            model, shard, seed=job.seeds[0], split_seed=split_seed, checkpoints=checkpoints
        )
        runs.append(run)
    data = Statistics(**manifest.statistics)
    return TrainedSplits(data, first, runs, manifest.report), folder


def _results_folder(out: Path | None, *, overwrite: bool) -> Path:
    """Return an empty folder, or one with an unfinished training to resume."""
    usual = (Path("fairmp-train" if k == 1 else f"fairmp-train-{k}") for k in count(1))
    folder = out or next(name for name in usual if not name.exists() or _unfinished(name))
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    resumed = restarted or _unfinished(folder)
    hold(folder, overwrite=True)
    # Checkpoints of a training that was killed after it wrote its results, or is to be replaced.
    if not resumed and (overwrite or (folder / "records.jsonl").is_file()):
        remove_checkpoints(folder)
    check_free(folder, overwrite=overwrite or resumed)
    return folder


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a finished training."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _unfinished(folder: Path) -> bool:
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [CHECKPOINTS]


def write(
    data: Data | Statistics,  # of a graph that does not fit in memory
    records: Sequence[Record],
    model: FairClassifier,
    folder: Path,
    *,
    command: str = "",
    panel_command: str = "",  # of fairmp.report.panel.panel
    picture: bool = False,
    keep_graph: bool = False,
) -> list[Line]:
    """Write the results of all splits and the model of the first; return the lines of the table."""
    has_graph = isinstance(data, Data)
    lines = summarise(records)
    per_split = summarise({**record, "name": f"split {record['split']}"} for record in records)
    shown = [*lines, *per_split]
    write_runs(records, lines, tradeoff(shown[:8], f"{data.name}: {lines[0].name}"), model, folder)
    if keep_graph and model.encoding_ is not None and has_graph:
        save_graph(data, folder / "model")
    report = document(data, model, panel_command) if has_graph else _figures(data, model)
    report["command"] = command
    table = of_lines("", shown).without(["splits"])
    title, caption = "On one split", f"Test nodes, {over(len(records))}. Gaps in points."
    if len(records) > 1:
        title = "Over several splits"
        caption += " The sections above are about the first split."
    report["lines"] = Section(title, header=table.header, rows=table.rows, caption=caption)
    drawn = topology(data, components=1, max_nodes=1000) if picture and has_graph else None
    write_document(report, folder, drawn)
    return lines


def write_runs(
    records: Sequence[Record], lines: Sequence[Line], figure: Any, model: FairClassifier, to: Path
) -> None:
    """Write what every training leaves: records, table, figure and model."""
    write_records(records, to)
    (to / "table.md").write_text(to_markdown(lines), encoding="utf-8")
    figure.savefig(to / "tradeoff.png", dpi=150)
    model.save(to / "model")


def summary(model: FairClassifier) -> list[str]:
    """Return the figures of the first split's test nodes, with notes, as lines of text."""
    test = model.run_.test
    notes = [*_choice(model), *(f"note: {note}" for note in cautions(test))]
    return ["The first split's test nodes:", str(test), *notes]


def _choice(model: FairClassifier) -> list[str]:
    """Say what a chosen backbone is made of."""
    tried = [trial for trial in model.run_.tried if trial.accuracy is not None]
    if len(model.run_.tried) < 2:
        return []
    chosen = sorted((t for t in tried if t.weight), key=lambda t: -t.weight)
    parts = ", ".join(f"{100 * t.weight:.0f} % {t.model} on {t.reads}" for t in chosen)
    left = len(model.run_.tried) - len(tried)
    late = f"; {left} more were not tried for lack of time" if left else ""
    best = 100 * model.run_.history.best.val_accuracy
    return [f"backbone: {parts} ({best:.1f} % on validation nodes; {len(tried)} tried{late})"]


def _candidates(model: FairClassifier) -> Section:
    """Return the table of the backbones that were tried."""
    rows = []
    for trial in model.run_.tried:
        figures = [trial.note, ""]
        if trial.accuracy is not None:
            figures = [f"{100 * trial.accuracy:.1f}", f"{trial.loss:.3f}"]
        weight = f"{100 * trial.weight:.0f} %" if trial.weight else ""
        rows.append([f"{trial.model} on {trial.reads}", *figures, f"{trial.seconds:.1f}", weight])
    text = (
        "Each candidate was fitted on the training nodes, and propagated and corrected on the "
        "validation nodes. Logits are averaged as long as that lowers the log loss there; the "
        "smoothing is the one with the highest accuracy. Test nodes were not used."
    )
    header = ["backbone", "validation accuracy", "log loss", "seconds", "share"]
    return Section("How the model was chosen", [text], header=header, rows=rows, appendix=True)


def document(data: Data, model: FairClassifier, panel_command: str = "") -> Document:
    """Describe what a classifier does to the test nodes, before and after its own correction."""
    run = model.run_
    test = data.test_mask if run.split_seed is None else split(data, seed=run.split_seed).test
    y, sens = data.y[test], groups.certain_group(data.sens)[test]
    plain, before, decisions_before = model.uncorrected().cpu()[test], None, None
    if model.uses_groups:
        names: dict[str, Any] = {"class_names": model.classes_, "group_names": model.groups_}
        before = evaluate(plain, y, sens, **names)
        decisions_before = plain.argmax(1).numpy()
    report = _figures(data, model, before)
    decisions = model.test_logits_.argmax(1).cpu().numpy()
    add_decisions(
        report, model.groups_, sens.numpy(), y.numpy(), after=decisions, before=decisions_before
    )
    report |= live_parts(model, plain, y, sens, command=panel_command)
    report["curve_note"] = (
        "The curve post-processes the predictions without the correction to smaller and smaller "
        "gaps on the same test nodes."
    )
    report["points"] = [point("this model", "chosen", run.test)]
    if before is not None:
        report["points"].append(point("without the correction", "before", before))
        report["correction"] = (
            "Before is the same network with its correction between groups switched off; after is "
            "what it predicts."
        )
    report["read"] = messages(data)
    if not groups.is_soft(data.sens):
        report["graph"] = describe(data)
    unknown = int((~groups.known_mask(data.sens)).sum())
    if unknown:
        report["assumptions"].append(
            f"The group of {unknown:,} of {data.sens.size(0):,} nodes is unknown: they count in no "
            "gap, and are not corrected."
        )
    return report


def _figures(
    data: Data | Statistics, model: FairClassifier, before: Evaluation | None = None
) -> Document:
    """Return the part of the report that does not need the graph."""
    run = model.run_
    report = from_evaluations(
        run.test, before, model.gap_target if model.criterion == PARITY else None
    )
    report |= {
        "title": f"{data.name}: a trained classifier",
        "measured": f"{run.test.n:,} test nodes of the first split, used neither in training nor "
        "to choose the epoch",
        "assumptions": _assumptions(model, run.test.n),
        "setting": model.config(),
        "versions": run.versions,
    }
    if not isinstance(data, Data):
        from fairmp.datasets.statistics import as_text

        rows = [[name.replace("_", " "), as_text(value)] for name, value in vars(data).items()]
        header = ["", "value (shares in %)"]
        report["extra"] = [Section("The graph", header=header, rows=rows)]
    if len(run.tried) > 1:
        report["extra"] = [*report.get("extra", []), _candidates(model)]
    return report


def _assumptions(model: FairClassifier, count: int) -> list[str]:
    assumptions = []
    if model.uses_groups:
        assumptions.append(
            "The correction uses the group of each node at prediction. If that is not allowed, "
            "train a group-free model, which needs groups in training only."
        )
        in_batch = (
            "The correction was solved for the test nodes as one batch. Another batch is corrected "
            "slightly differently; per-node prediction applies one correction to all."
        )
        on_labels = (
            f"The correction for {model.criterion.replace('_', ' ')} was found on the labels of "
            "the validation nodes. On other nodes the gap is the target plus sampling error."
        )
        assumptions.append(in_batch if model.criterion == PARITY else on_labels)
    return [
        *assumptions,
        "Fairness is measured as equal rates of positive decisions (ΔDP). If base rates differ, "
        "that conflicts with equal rates among the truly positive (ΔEO). Both are shown; which one "
        "matters is a decision, not a measurement.",
        "The labels are taken as the truth. If they are past decisions, they contain their bias.",
        f"Intervals describe other samples of {count:,} test nodes, assumed independent. "
        "Neighbours in a graph resemble each other, so true intervals are wider.",
    ]
