"""Results of a search: the chosen settings, the front, figure, model and page."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch_geometric.data import Data

from fairmp.errors import plural
from fairmp.groups import certain_group
from fairmp.metrics import Interval
from fairmp.outputs import write_json
from fairmp.report import Document, Point, Section
from fairmp.report.document import write as write_document
from fairmp.report.evaluations import from_evaluations, point
from fairmp.report.figures import curve, to_svg
from fairmp.report.formats import SPREAD, cell_text, points, spread
from fairmp.report.panel import live_parts
from fairmp.tuning.space import format_settings, format_value, python_code
from fairmp.tuning.study import display_name
from fairmp.tuning.trials import TrialResult
from fairmp.tuning.tune import Tuned
from fairmp.tuning.workers import METRICS, figures_of, means

TRADEOFF = (
    "Each circle is a trial, evaluated on the validation nodes. The star is the chosen one; the "
    "triangle is its model on the test nodes, which no trial has seen."
)
CHOSEN = (
    "In points; brackets are a 95 % bootstrap interval over the test nodes. As the best of many, "
    "the validation figures are optimistic: quote the test figures."
)
FRONT = "Validation nodes, in points: trials that no other trial dominates."
COLUMNS = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO"}


@dataclass(frozen=True)
class Commands:
    """Commands that a page shows."""

    train: str  # trains the chosen classifier again
    panel: str  # the same for another target (:func:`fairmp.report.panel.panel`)
    rerun: str  # repeats the search


def write(tuned: Tuned, folder: Path, data: Data, commands: Commands) -> dict[str, Any]:
    """Write everything under a folder, and return the contents of ``best.json``."""
    summary = to_dict(tuned, commands.train)
    write_json(folder / "best.json", summary)
    report = document(tuned, data, commands)
    drawn = curve(report)
    drawn.savefig(folder / "tradeoff.png", dpi=150)
    (folder / "tradeoff.svg").write_text(to_svg(drawn), encoding="utf-8")
    for name, trials in (("front.csv", tuned.front), ("trials.csv", tuned.trials)):
        rows = table(tuned, trials)
        rows.to_csv(folder / name, index=False, float_format="%.6g", lineterminator="\n")
    write_document(report, folder)
    tuned.model.save(folder / "model")
    return summary


def to_dict(tuned: Tuned, train_command: str) -> dict[str, Any]:
    """The result of a search as JSON types."""
    search, num_done, run = tuned.search, len(tuned.done), tuned.model.run_
    return {
        "data": tuned.name,
        "goal": {"criterion": search.criterion, "limit": search.limit},
        "met": tuned.met,
        "trials": {
            "asked": search.trials,
            "done": num_done,
            "failed": len(tuned.trials) - num_done,
            "running": tuned.running,
        },
        "splits": search.splits,
        "seed": search.seed,
        "chosen": {
            **_entry(tuned, tuned.chosen),
            "train_command": train_command,
            "python": python_code(tuned.model),
            "config": tuned.model.config(),
            "model_test": run.test.to_dict(),
        },
        "front": [_entry(tuned, trial) for trial in tuned.front],
        "study": {"storage": display_name(search.storage), "name": search.study_name},
        "versions": run.versions,
    }


def trial_records(tuned: Tuned) -> list[dict[str, Any]]:
    """Return a record per finished trial for a tracker, means over splits, the chosen one first."""
    search, records = tuned.search, []
    for trial in sorted(tuned.done, key=lambda trial: trial.number != tuned.chosen.number):
        runs = [run.test.to_dict() for run in tuned.checked.get(trial.number, ())]
        run = {"config": dict(trial.settings), "seed": search.seed, "seconds": trial.seconds}
        run |= {"val": trial.figures, "test": means(runs) if runs else {}}
        identity = json.dumps([search.identity(), search.graph, trial.number, run["config"]])
        records.append(
            {
                "key": hashlib.sha256(identity.encode()).hexdigest()[:20],
                "name": f"trial {trial.number}",
                "dataset": tuned.name,
                "split": search.seed,
                "run": run | {"versions": tuned.model.run_.versions},
            }
        )
    return records


def title(tuned: Tuned) -> str:
    """Goal of the search in a line."""
    if tuned.search.limit is None:
        return f"{tuned.name}: accuracy against {tuned.symbol}"
    limit = f"{100 * tuned.search.limit:g}"
    return f"{tuned.name}: the best accuracy with {tuned.symbol} ≤ {limit} points"


def summary(tuned: Tuned) -> str:
    """Result of the search in a paragraph."""
    count, splits, chosen = len(tuned.trials), tuned.search.splits, tuned.chosen
    test, failed = tuned.model.run_.test, count - len(tuned.done)
    text = "" if tuned.met else f"{not_met(tuned)} "
    text += plural(count, "trial") + (f" ({failed} failed)" if failed else "")
    text += f", figures over {splits} splits. " if splits > 1 else ". "
    return text + (
        f"Trial {chosen.number} has {points(chosen.figure('accuracy'))} % accuracy and "
        f"{tuned.symbol} {points(tuned.gap(chosen))} on the validation nodes; its saved model has "
        f"{points(test.accuracy)} % and {points(getattr(test, tuned.search.criterion))} on the "
        "test nodes."
    )


def not_met(tuned: Tuned) -> str:
    """Explain that no trial is within the limit."""
    return (
        f"None of {len(tuned.done)} trials has {tuned.symbol} ≤ "
        f"{100 * (tuned.search.limit or 0):g} points on the validation nodes; the closest, trial "
        f"{tuned.chosen.number}, has {points(tuned.gap(tuned.chosen))}."
    )


def failures(tuned: Tuned) -> Counter[str]:
    """Number of failed trials by reason."""
    return Counter(trial.failed for trial in tuned.trials if trial.failed is not None)


def figures_table(tuned: Tuned) -> list[list[str]]:
    """Figures of the chosen trial: on validation nodes, on test nodes, and of the saved model."""
    runs, test = tuned.checked[tuned.chosen.number], tuned.model.run_.test
    parts = {"validation": [run.val for run in runs]}
    if len(runs) > 1:
        parts = {f"validation, {len(runs)} splits": parts["validation"]}
        parts[f"test, {len(runs)} splits"] = [run.test for run in runs]
    rows = [
        [part, *(cell_text(spread([getattr(e, key) for e in evaluations])) for key in COLUMNS)]
        for part, evaluations in parts.items()
    ]
    ends = {key: test.intervals.get(key, (math.nan, math.nan)) for key in COLUMNS}
    saved = [cell_text(Interval(getattr(test, key), *ends[key], 1)) for key in COLUMNS]
    return [*rows, ["test, the saved model", *saved]]


def front_table(tuned: Tuned, most: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the front, thinned evenly to ``most`` rows, validation next to test."""
    key, gap, last = tuned.search.criterion, tuned.symbol, len(tuned.front) - 1
    frame = table(tuned, tuned.front)
    columns = ["validation_accuracy", f"validation_{key}", "test_accuracy", f"test_{key}"]
    rows = []
    for i in np.linspace(0, last, min(most, last + 1)).round().astype(int):
        star = "*" if tuned.front[i] is tuned.chosen else ""
        rows.append([f"{tuned.front[i].number}{star}", *map(points, frame.loc[i, columns])])
    return ["trial", "accuracy %", gap, "test accuracy %", f"test {gap}"], rows


def table(tuned: Tuned, trials: Sequence[TrialResult]) -> pd.DataFrame:
    """Return trials as a table: figures as fractions, then every setting."""
    rows = []
    for trial in trials:
        test = _entry(tuned, trial).get("test", {})
        row: dict[str, Any] = {"trial": trial.number}
        row["chosen"] = int(trial.number == tuned.chosen.number)
        row |= {f"validation_{key}": trial.figures.get(key) for key in METRICS}
        row |= {f"test_{key}": test.get(key) for key in METRICS}
        row |= {"seconds": trial.seconds, "failed": trial.failed}
        rows.append(row | {name: trial.settings.get(name, "") for name in tuned.search.space})
    return pd.DataFrame(rows)


def document(tuned: Tuned, data: Data, commands: Commands) -> Document:
    """Contents of the report: the chosen model, and the trials it was chosen from."""
    model, test, search = tuned.model, data.test_mask, tuned.search
    evaluation, logits = model.run_.test, model.uncorrected().cpu()[test]
    report = from_evaluations(evaluation, None, search.limit if search.criterion == "dp" else None)
    sens = certain_group(data.sens)[test]
    report |= live_parts(model, logits, data.y[test], sens, command=commands.panel)
    return report | {
        "title": title(tuned),
        "summary": summary(tuned),
        "trials": [_point(tuned, trial) for trial in tuned.done],
        "curve": [_point(tuned, trial) for trial in tuned.front],
        "curve_label": "Pareto front",
        "curve_note": TRADEOFF,
        "points": [
            _point(tuned, tuned.chosen)
            | {"name": f"chosen: trial {tuned.chosen.number}", "kind": "chosen"},
            point("its model on the test nodes", "other", evaluation, search.criterion),
        ],
        "gap": tuned.symbol,
        "target": search.limit,
        "measured": f"{evaluation.n:,} test nodes, which no trial has seen",
        "lines": Section(
            "Chosen trial",
            text=[format_settings(tuned.chosen.settings)],
            header=["nodes", *COLUMNS.values()],
            rows=figures_table(tuned),
            caption=f"{SPREAD} {CHOSEN}" if search.splits > 1 else CHOSEN,
        ),
        "extra": _sections(tuned, commands.train),
        "command": commands.rerun,
        "assumptions": [
            "The choice was made on validation nodes; the test nodes need not agree with it."
        ],
        "setting": model.config(),
        "versions": model.run_.versions,
    }


def _sections(tuned: Tuned, train_command: str) -> list[Section]:
    """The front, failed trials, and how to train the chosen classifier again."""
    names = list(tuned.search.space)
    rows = []
    for trial in tuned.front:
        figures = [points(trial.figure(metric)) for metric in COLUMNS]
        settings = [format_value(trial.settings.get(name, "")) for name in names]
        rows.append([str(trial.number), *figures, *settings])
    header = ["trial", *COLUMNS.values(), *names]
    sections = [Section("Pareto front", header=header, rows=rows, caption=FRONT)]
    if reasons := [[str(count), reason] for reason, count in failures(tuned).items()]:
        sections.append(Section("Failed trials", header=["trials", "reason"], rows=reasons))
    code = f"{train_command}\n\n{python_code(tuned.model)}".strip()
    return [*sections, Section("Train it again", code=code)]


def _point(tuned: Tuned, trial: TrialResult) -> Point:
    return {"gap": tuned.gap(trial), "accuracy": trial.figure("accuracy")}


def _entry(tuned: Tuned, trial: TrialResult) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "trial": trial.number,
        "settings": trial.settings,
        "validation": {**trial.figures, "per_split": list(trial.per_split)},
    }
    if trial.number in tuned.checked:
        per_split = [figures_of(run.test) for run in tuned.checked[trial.number]]
        entry["test"] = {**means(per_split), "per_split": per_split}
    return entry
