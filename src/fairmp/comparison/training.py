"""Training of one configuration on several splits, of a graph or of shards, and its results."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.analysis.audits.facts import describe
from fairmp.comparison import Record
from fairmp.datasets.load_report import messages
from fairmp.datasets.splits import split
from fairmp.datasets.statistics import Statistics
from fairmp.metrics import Evaluation
from fairmp.metrics.evaluation import CRITERIA, TITLES
from fairmp.outputs import check_free, hold
from fairmp.report import Document, Line, Section, over, summarise, to_markdown, tradeoff
from fairmp.report.document import write as write_document
from fairmp.report.evaluations import (
    add_decisions,
    cautions,
    floor,
    from_evaluations,
    per_node_warning,
    point,
)
from fairmp.report.evaluations import text as evaluation_text
from fairmp.report.explanations import typical_people
from fairmp.report.formats import constant_note, of_lines, points, write_records
from fairmp.report.group_free import group_free_sections
from fairmp.report.panel import live_parts, show_own_figures
from fairmp.report.topology import topology
from fairmp.training.classifier import FairClassifier, Run
from fairmp.training.correction import PARITY
from fairmp.training.explanation import explanations
from fairmp.training.model_files import held_sentence, personal_data
from fairmp.training.nodes import Predicted

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
    per_node: Sequence[Evaluation] = ()  # of each split, where a correction can be served

    def records(self, name: str) -> list[Record]:
        """One record per split."""
        records: list[Record] = [
            {"name": name, "dataset": str(self.data.name), "split": k, "run": run.to_dict()}
            for k, run in enumerate(self.runs)
        ]
        for record, evaluation in zip(records, self.per_node, strict=False):
            record["per_node"] = evaluation.to_dict()
            record["sampling_floor"] = floor(evaluation)
        return records


def evaluate_per_node(model: FairClassifier, data: Data) -> Evaluation | None:
    """Evaluate the test nodes one by one; None if predictions are per node anyway."""
    if model.group_duals_ is None:
        return None
    fitted = model.fitted_
    aligned, test = fitted.align(data, _test_nodes(model, data))
    logits = fitted.logits(aligned, model.graph_, test, "per-node")
    return fitted.measure(Predicted(aligned, test, logits), "per-node", bootstrap=0)


def _test_nodes(model: FairClassifier, data: Data) -> Tensor:
    seed = model.run_.split_seed
    nodes: Tensor = data.test_mask if seed is None else split(data, seed=seed).test
    return nodes


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
    per_node = [found for model in models if (found := evaluate_per_node(model, data))]
    runs = [model.run_ for model in models]
    return TrainedSplits(data, models[0], runs, messages(data), per_node)


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
    lines = summarise(records)
    per_split = summarise({**record, "name": f"split {record['split']}"} for record in records)
    shown = [*lines, *per_split]
    write_runs(records, lines, tradeoff(shown[:8], f"{data.name}: {lines[0].name}"), model, folder)
    if _stores_graph(data, model, keep_graph=keep_graph):
        model.save_graph(folder / "model")
    has_graph = isinstance(data, Data)
    report = (
        document(data, model, panel_command, per_node=records[0].get("per_node"))
        if has_graph
        else _figures(data, model)
    )
    report["command"] = command
    report["held"] = held_data(data, model, keep_graph=keep_graph)
    if len(records) > 1:
        report["sample"] = f"split 1 of {len(records)}"
    table = of_lines("", shown).without(["splits"])
    if len(records) > 1:
        caption = (
            f"The test part, {over(len(records))}. Gaps in points. All other sections are about "
            f"split 1 of {len(records)}, whose model is saved. {constant_note(shown)}"
        ).strip()
        title = "Over several splits"
        report["lines"] = Section(title, header=table.header, rows=table.rows, caption=caption)
    drawn = topology(data, components=1, max_nodes=1000) if picture and has_graph else None
    write_document(report, folder, drawn)
    return lines


def _stores_graph(data: Data | Statistics, model: FairClassifier, *, keep_graph: bool) -> bool:
    return keep_graph and model.encoding_ is not None and isinstance(data, Data)


def held_data(data: Data | Statistics, model: FairClassifier, *, keep_graph: bool) -> str:
    """Say what the model's folder holds of single people."""
    graph = _stores_graph(data, model, keep_graph=keep_graph)
    return held_sentence(personal_data(model.fitted_, graph=graph))


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
    if model.group_free:
        notes.append("Nobody's group is needed to serve this model.")
    if model.run_.promise is not None:
        notes.append(str(model.run_.promise))
    return ["The first split's test part:", evaluation_text(test, noun="person"), *notes]


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
    nodes = "out of fold" if model.cross_fits else "on the validation part"
    return [f"backbone: {parts} ({best:.1f} % {nodes}; {len(tried)} tried{late})"]


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
        "Each candidate was fitted without the people of a fold, and its predictions of them "
        "were propagated, calibrated and measured. Logits are averaged as long as that lowers the "
        "log loss, and the smoothing is the one with the lowest. The test part was not used."
    )
    header = ["backbone", "accuracy, held out", "log loss", "seconds", "share"]
    return Section("How the model was chosen", [text], header=header, rows=rows, appendix=True)


def document(
    data: Data,
    model: FairClassifier,
    panel_command: str = "",
    *,
    per_node: Mapping[str, Any] | None = None,  # record of the per-node evaluation
) -> Document:
    """Describe what a classifier does to the test nodes, before and after its own correction."""
    run = model.run_
    test = _test_nodes(model, data)
    y, sens = data.y[test], groups.certain_group(data.sens)[test]
    plain, before = model.uncorrected().cpu()[test], run.uncorrected
    decisions_before = None if before is None else plain.argmax(1).numpy()
    report = _figures(data, model, before)
    decisions = model.test_logits_.argmax(1).cpu().numpy()
    add_decisions(
        report, model.groups_, sens.numpy(), y.numpy(), after=decisions, before=decisions_before
    )
    report |= live_parts(model, plain, y, sens, command=panel_command)
    if before is not None:
        show_own_figures(report, model.criterion)
    if before is not None and per_node is not None:
        served = Evaluation.from_dict(per_node)
        duals = model.group_duals_
        is_corrected = duals is None or bool(duals.any())
        _add_tracks(report, before, run.test, served, is_corrected=is_corrected)
    report["curve_note"] = (
        "The curve post-processes the predictions without the correction to smaller and smaller "
        "gaps on the same test part."
    )
    report["points"] = [point("this model", "chosen", run.test)]
    if before is not None:
        report["points"].append(point("without the correction", "before", before))
        report["correction"] = (
            "Before is the same network with its correction between groups switched off; after is "
            "what it predicts."
        )
    if model.corrects_rows:
        checked = _row_check(run.test, model.criterion)
        report["checks"] = [checked, *([str(run.promise)] if run.promise else [])]
    if model.group_free:
        report["extra"] = [*report.get("extra", []), *group_free_sections(model, data, test)]
    _add_typical_people(report, model, test, sens.numpy())
    report["read"] = messages(data)
    if not groups.is_soft(data.sens):
        report["graph"] = describe(data)
    unknown = int((~groups.known_mask(data.sens)).sum())
    if unknown:
        report["assumptions"].append(
            f"The group of {unknown:,} of {data.sens.size(0):,} people is unknown: they count in "
            "no gap" + ("." if model.group_free else ", and are not corrected.")
        )
    return report


def _row_check(test: Evaluation, criterion: str) -> str:
    """Say what a correction of single nodes leaves, and for parity what sampling alone would."""
    key = CRITERIA[criterion]
    text = (
        f"Each person is corrected alone, by what was found on held-out people. "
        f"{TITLES[key]} is {points(getattr(test, key))} points on the test people"
    )
    if criterion != PARITY:
        return f"{text}."
    return f"{text}; on so many, sampling alone leaves {points(floor(test))} points on average."


def _add_typical_people(
    report: Document, model: FairClassifier, test: Tensor, sens: np.ndarray
) -> None:
    """Explain a few test nodes."""
    people = explanations(model.stages(test, model.test_logits_), model.classes_)
    section = typical_people(people, sens, model.groups_)
    if section is not None:
        report["extra"] = [*report.get("extra", []), section]


def _add_tracks(
    report: Document,
    before: Evaluation,
    batch: Evaluation,
    per_node: Evaluation,
    *,
    is_corrected: bool,  # whether per-node prediction applies a correction
) -> None:
    """Show batch and per-node prediction side by side, with the gap that sampling leaves."""
    tracks = {"no correction": before, "batch": batch, "per node": per_node}
    least = points(floor(per_node))
    check = (
        f"A service predicts one person at a time: ΔDP is then {points(per_node.dp)} points "
        f"(sampling alone leaves {least}), not {points(batch.dp)}."
    )
    if not is_corrected:
        check += " It applies no correction: on held-out people one was not needed or did not help."
    elif warning := per_node_warning(before, per_node):
        report["flags"] = [*report.get("flags", []), warning]
    elif per_node.dp >= before.dp:
        check += f" Without a correction it is {points(before.dp)}: the difference may be chance."
    report["checks"] = [check]
    rows = [
        [name, points(found.accuracy), points(found.dp), points(found.eo)]
        for name, found in tracks.items()
    ]
    text = (
        "Batch prediction closes the gap of the people who are predicted together. Per-node "
        "prediction applies a correction found earlier, as a service for single requests does, if "
        "that made held-out people fairer. Even a perfect one leaves "
        f"{least} points on average on this many people."
    )
    section = Section(
        "Batch and per node",
        text=[text],
        header=["prediction", "accuracy %", "ΔDP, points", "ΔEO, points"],
        rows=rows,
        caption=f"The people of the test part; sampling floor of ΔDP: {least} points.",
    )
    report["extra"] = [*report.get("extra", []), section]


def _figures(
    data: Data | Statistics, model: FairClassifier, before: Evaluation | None = None
) -> Document:
    """Return the part of the report that does not need the graph."""
    run = model.run_
    # Gaps are of decisions; a target for probabilities is none for them.
    target = model.gap_target if model.on == "decisions" else None
    report = from_evaluations(run.test, before, target, model.criterion)
    report |= {
        "title": f"{data.name}: a trained classifier",
        "measured": f"{run.test.n:,} people of the first split's test part, used neither in "
        "training nor to choose the epoch",
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
    on_labels = (
        f"The correction for {model.criterion.replace('_', ' ')} was found on held-out people. On "
        "other people the gap is the target plus sampling error."
    )
    if model.group_free:
        assumptions += [
            "Groups were read in training only. At prediction they are estimated from features and "
            "neighbours; people whom the estimate gets wrong are corrected like the other group.",
            on_labels,
        ]
    if model.uses_groups:
        assumptions.append(
            "The correction uses the group of each person at prediction. If that is not allowed, "
            "train a group-free model, which needs groups in training only."
        )
        in_batch = (
            "The correction was solved for the test part as one batch. Another batch is corrected "
            "slightly differently; per-node prediction applies one correction to all."
        )
        assumptions.append(on_labels if model.corrects_rows else in_batch)
    return [
        *assumptions,
        "Fairness is measured as equal rates of positive decisions (ΔDP). If base rates differ, "
        "that conflicts with equal rates among the truly positive (ΔEO). Both are shown; which one "
        "matters is a decision, not a measurement.",
        "The labels are taken as the truth. If they are past decisions, they contain their bias.",
        f"Intervals describe other samples of {count:,} test people, drawn by communities of the "
        "graph, since neighbours resemble each other. A gap that was closed for a batch is a fact "
        "about its people, and has none.",
    ]
