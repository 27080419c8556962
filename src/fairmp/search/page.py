"""Results of a search: the chosen settings, the front, figure, model and page."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fairmp.metrics import mean_interval
from fairmp.report import Section, page
from fairmp.report.figures import COLOURS, figure, to_svg
from fairmp.search.space import format_settings, format_value, python_code
from fairmp.search.study import without_password
from fairmp.search.trials import FIGURES, TrialResult, means, plain
from fairmp.search.tune import Tuned

COLUMNS = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO"}


def write(tuned: Tuned, folder: Path, *, train: str | None, command: str) -> dict[str, Any]:
    """Write everything under a folder, and return the contents of ``best.json``.

    Args:
        tuned: result of the search.
        folder: folder to write to.
        train: the ``fairmp train`` command of the chosen classifier, if there is one.
        command: command that continues the search.
    """
    found = record(tuned, train=train)
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, indent=2)
    (folder / "best.json").write_text(text + "\n", encoding="utf-8")
    (folder / "front.csv").write_text(table(tuned, tuned.front), encoding="utf-8")
    (folder / "trials.csv").write_text(table(tuned, tuned.trials), encoding="utf-8")
    drawn = picture(tuned)
    drawn.savefig(folder / "tradeoff.png", dpi=150)
    svg = to_svg(drawn)
    (folder / "tradeoff.svg").write_text(svg, encoding="utf-8")
    tuned.model.save(folder / "model")
    html = page(title(tuned), summary(tuned), _sections(tuned, found, svg, command))
    (folder / "report.html").write_text(html, encoding="utf-8")
    return found


def record(tuned: Tuned, *, train: str | None = None) -> dict[str, Any]:
    """Return the results as JSON types."""
    search = tuned.search
    chosen = {
        **_entry(tuned, tuned.chosen),
        "train_command": train,
        "python": python_code(tuned.model),
        "config": tuned.model.config(),
        "model_test": tuned.model.run_.test.to_dict(),
    }
    return {
        "data": tuned.name,
        "goal": {"criterion": search.criterion, "limit": search.limit},
        "met": tuned.met,
        "trials": {
            "asked": search.trials,
            "done": len(tuned.done),
            "failed": len(tuned.trials) - len(tuned.done),
            "running": tuned.running,
        },
        "splits": search.splits,
        "seed": search.seed,
        "chosen": chosen,
        "front": [_entry(tuned, trial) for trial in tuned.front],
        "study": {"storage": without_password(search.storage), "name": search.study_name},
        "versions": tuned.model.run_.versions,
    }


def title(tuned: Tuned) -> str:
    """Goal of the search in a line."""
    if tuned.search.limit is None:
        return f"{tuned.name}: accuracy against {tuned.symbol}"
    limit = f"{100 * tuned.search.limit:g}"
    return f"{tuned.name}: the best accuracy with {tuned.symbol} ≤ {limit} points"


def summary(tuned: Tuned) -> str:
    """Result of the search in a paragraph."""
    count, splits = len(tuned.trials), tuned.search.splits
    failed = count - len(tuned.done)
    text = f"{count} trial{'s' * (count != 1)}"
    text += f" ({failed} failed)" if failed else ""
    text += f", figures over {splits} splits. " if splits > 1 else ". "
    test = tuned.model.run_.test
    text += (
        f"Trial {tuned.chosen.number} has {_points(tuned.chosen.figure('accuracy'))} % accuracy "
        f"and {tuned.symbol} {_points(tuned.gap(tuned.chosen))} on the validation nodes; its saved "
        f"model has {_points(test.accuracy)} % and {_points(getattr(test, tuned.search.criterion))}"
        " on the test nodes."
    )
    return text if tuned.met else f"{not_met(tuned)} {text}"


def not_met(tuned: Tuned) -> str:
    """Explain that no trial is within the limit."""
    assert tuned.search.limit is not None
    return (
        f"None of {len(tuned.done)} trials has {tuned.symbol} ≤ "
        f"{100 * tuned.search.limit:g} points on the validation nodes; the closest, trial "
        f"{tuned.chosen.number}, has {_points(tuned.gap(tuned.chosen))}."
    )


def figures_table(tuned: Tuned) -> list[list[str]]:
    """Figures of the chosen trial: on validation nodes, on test nodes, and of the saved model."""
    runs = tuned.checked[tuned.chosen.number]
    several = f", {len(runs)} splits" if len(runs) > 1 else ""
    rows = [[f"validation{several}", *_over_splits([run.val for run in runs])]]
    if several:
        rows.append([f"test{several}", *_over_splits([run.test for run in runs])])
    test = tuned.model.run_.test
    texts = []
    for key in COLUMNS:
        low, high = test.intervals.get(key, (math.nan, math.nan))
        interval = "" if math.isnan(low) else f" [{_points(low)}, {_points(high)}]"
        texts.append(_points(getattr(test, key)) + interval)
    return [*rows, ["test, the saved model", *texts]]


def front_table(tuned: Tuned, most: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the front, thinned evenly to ``most`` rows, validation next to test."""
    key, rows = tuned.search.criterion, []
    last = len(tuned.front) - 1
    step = max(1.0, last / max(1, most - 1))
    for trial in [tuned.front[i] for k in range(most) if (i := round(k * step)) <= last]:
        test = _test(tuned, trial)
        values = [trial.figures.get("accuracy"), trial.figures.get(key)]
        values += [test.get("accuracy"), test.get(key)]
        star = "*" if trial is tuned.chosen else ""
        texts = [_points(math.nan if value is None else value) for value in values]
        rows.append([f"{trial.number}{star}", *texts])
    gap = tuned.symbol
    return ["trial", "accuracy %", gap, "test accuracy %", f"test {gap}"], rows


def table(tuned: Tuned, trials: Sequence[TrialResult]) -> str:
    """Return trials as CSV: figures as fractions, then every setting."""
    rows = []
    for trial in trials:
        test = _test(tuned, trial)
        row: dict[str, Any] = {
            "trial": trial.number,
            "chosen": int(trial.number == tuned.chosen.number),
        }
        row |= {f"validation_{key}": trial.figures.get(key) for key in FIGURES}
        row |= {f"test_{key}": test.get(key) for key in FIGURES}
        row |= {"seconds": trial.seconds, "failed": trial.failed}
        rows.append(row | {name: trial.settings.get(name, "") for name in tuned.search.space})
    return str(pd.DataFrame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def picture(tuned: Tuned) -> Any:
    """Draw all trials on the validation nodes, the front, the limit, and the test figures."""
    fig, axes = figure(7.8, 4.6)
    limit = tuned.search.limit
    at = {t.number: (100 * tuned.gap(t), 100 * t.figure("accuracy")) for t in tuned.done}
    within = {t.number for t in tuned.done if limit is None or tuned.gap(t) <= limit}
    named = "trial" if limit is None else "trial, within the limit"
    for numbers, face, edge, label in (
        (set(at) - within, "white", COLOURS[7], "trial, beyond the limit"),
        (within, COLOURS[5], COLOURS[0], named),
    ):
        if numbers:
            axes.scatter(
                *zip(*(at[n] for n in numbers), strict=True), s=26, linewidths=0.9, zorder=3,
                facecolors=face, edgecolors=edge, label=label,
            )  # fmt: skip
    axes.step(
        *zip(*(at[trial.number] for trial in tuned.front), strict=True), where="post",
        color="#555555", linestyle="--", linewidth=1.0, zorder=2, label="Pareto front",
    )  # fmt: skip
    if limit is not None:
        axes.axvline(
            100 * limit, color=COLOURS[1], linestyle=":", linewidth=1.4, zorder=1,
            label=f"limit: {100 * limit:g} points",
        )  # fmt: skip
    _draw_tests(axes, tuned)
    axes.scatter(
        *at[tuned.chosen.number], marker="*", s=230, color=COLOURS[1], edgecolors="white",
        linewidths=0.8, zorder=6, label=f"chosen: trial {tuned.chosen.number}",
    )  # fmt: skip
    axes.set_xlim(left=min(-0.02 * axes.get_xlim()[1], 0.0))
    axes.set_xlabel(f"{tuned.symbol} (points; further left is fairer)")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(f"{tuned.name}, validation nodes", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def _draw_tests(axes: Any, tuned: Tuned) -> None:
    """Draw the trials evaluated on the test nodes, the chosen one with its intervals."""
    key = tuned.search.criterion
    for number, runs in tuned.checked.items():
        test = runs[0].test
        chosen = number == tuned.chosen.number
        spread = {}
        for axis, name in (("xerr", key), ("yerr", "accuracy")):
            low, high = test.intervals.get(name, (math.nan, math.nan))
            value = getattr(test, name)
            if chosen and not math.isnan(low):
                spread[axis] = [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]
        axes.errorbar(
            100 * getattr(test, key), 100 * test.accuracy, fmt="D", color=COLOURS[2],
            markersize=7 if chosen else 4, capsize=3, elinewidth=1.0, zorder=5,
            label="its model on the test nodes, 95 %" if chosen else None, **spread,
        )  # fmt: skip


def _sections(tuned: Tuned, found: dict[str, Any], svg: str, command: str) -> list[Section]:
    chosen, space = found["chosen"], tuned.search.space
    how = "± is half of a 95 % interval over splits; " if tuned.search.splits > 1 else ""
    rows = [
        [
            str(trial.number),
            *(_points(trial.figure(key)) for key in COLUMNS),
            *(format_value(trial.settings[n]) if n in trial.settings else "" for n in space),
        ]
        for trial in tuned.front
    ]
    train = "" if chosen["train_command"] is None else f"{chosen['train_command']}\n\n"
    failed = Counter(trial.failed for trial in tuned.trials if trial.failed is not None)
    reasons = [[str(count), reason] for reason, count in failed.items()]
    return [
        Section(
            "Accuracy and gap",
            svg=svg,
            caption="Each dot is a trial, evaluated on the validation nodes. The star is the "
            "chosen one; the diamond is its model on the test nodes, which no trial has seen.",
        ),
        Section(
            "Chosen trial",
            text=[format_settings(tuned.chosen.settings)],
            header=["nodes", *COLUMNS.values()],
            rows=figures_table(tuned),
            caption=f"In points. {how}brackets are a 95 % bootstrap interval over the test nodes. "
            "As the best of many, the validation figures are optimistic: quote the test figures.",
        ),
        Section(
            "Pareto front",
            header=["trial", *COLUMNS.values(), *space],
            rows=rows,
            caption="Validation nodes, in points: trials that no other trial dominates.",
        ),
        *([Section("Failed trials", header=["trials", "reason"], rows=reasons)] if failed else []),
        Section("Train it again", code=train + chosen["python"]),
        Section("Continue the search", code=command),
    ]


def _entry(tuned: Tuned, trial: TrialResult) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "trial": trial.number,
        "settings": trial.settings,
        "validation": {**trial.figures, "per_split": list(trial.per_split)},
    }
    if trial.number in tuned.checked:
        per_split = [plain(run.test) for run in tuned.checked[trial.number]]
        entry["test"] = {**means(per_split), "per_split": per_split}
    return entry


def _test(tuned: Tuned, trial: TrialResult) -> dict[str, float | None]:
    runs = tuned.checked.get(trial.number)
    return {} if runs is None else means([plain(run.test) for run in runs])


def _over_splits(evaluations: Sequence[Any]) -> list[str]:
    texts = []
    for key in COLUMNS:
        interval = mean_interval([getattr(evaluation, key) for evaluation in evaluations])
        half = "" if math.isnan(interval.low) else f" ± {50 * (interval.high - interval.low):.1f}"
        texts.append(_points(interval.mean) + half)
    return texts


def _points(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.1f}"
