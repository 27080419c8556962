"""A search's files: what was chosen, the front, the picture, the model, the page."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.metrics import mean_interval
from fairmp.report import Section, page
from fairmp.report.figures import COLOURS, figure, to_svg
from fairmp.search.space import python_code, shown, told
from fairmp.search.study import shown_place
from fairmp.search.trials import FIGURES, TrialResult, means, plain
from fairmp.search.tune import Checked, Tuned
from fairmp.training import model_files as persistence

_KEYS = ("accuracy", "dp", "eo")
HEADER = ("accuracy %", "ΔDP", "ΔEO")


def write(tuned: Tuned, folder: Path, *, train: str | None, command: str) -> dict[str, Any]:
    """Write everything under a folder, and return what ``best.json`` says.

    Args:
        tuned: what was found.
        folder: where to.
        train: the ``fairmp train`` command that trains the chosen classifier, if there is one.
        command: what goes on with the search.
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
    (folder / "report.html").write_text(
        page(title(tuned), summary(tuned), _sections(tuned, found, svg, command)), encoding="utf-8"
    )
    return found


def record(tuned: Tuned, *, train: str | None = None) -> dict[str, Any]:
    """What was found, as what JSON can say."""
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
        "study": {"storage": shown_place(search.storage), "name": search.study_name},
        "versions": persistence.versions(),
    }


def title(tuned: Tuned) -> str:
    """What was looked for, in a line."""
    if tuned.search.limit is None:
        return f"{tuned.name}: accuracy against {tuned.symbol}"
    limit = f"{100 * tuned.search.limit:g}"
    return f"{tuned.name}: the best accuracy with {tuned.symbol} ≤ {limit} points"


def summary(tuned: Tuned) -> str:
    """What was found, in a paragraph."""
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
    if not tuned.met:
        text = f"{not_met(tuned)} {text}"
    return text


def not_met(tuned: Tuned) -> str:
    """Say that no trial is within the limit, and what can be done."""
    assert tuned.search.limit is not None
    return (
        f"None of {len(tuned.done)} trials has {tuned.symbol} ≤ "
        f"{100 * tuned.search.limit:g} points on the validation nodes; the closest, trial "
        f"{tuned.chosen.number}, has {_points(tuned.gap(tuned.chosen))}."
    )


def figures_table(tuned: Tuned) -> list[list[str]]:
    """The chosen one's figures, a row where they were measured and how."""
    runs = tuned.checked[tuned.chosen.number].runs
    several = f", {len(runs)} splits" if len(runs) > 1 else ""
    rows = [[f"validation{several}", *_over([run.val for run in runs])]]
    if several:
        rows.append([f"test{several}", *_over([run.test for run in runs])])
    test = tuned.model.run_.test
    cells = []
    for key in _KEYS:
        low, high = test.intervals.get(key, (math.nan, math.nan))
        ends = "" if math.isnan(low) else f" [{_points(low)}, {_points(high)}]"
        cells.append(_points(getattr(test, key)) + ends)
    return [*rows, ["test, the saved model", *cells]]


def front_table(tuned: Tuned, most: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the front, evenly thinned to ``most`` rows, validation beside test."""
    step = max(1.0, (len(tuned.front) - 1) / max(1, most - 1))
    places = dict.fromkeys(round(k * step) for k in range(most))
    key, rows = tuned.search.criterion, []
    for place in places:
        if place >= len(tuned.front):
            break
        trial = tuned.front[place]
        test = _test(tuned.checked.get(trial.number))
        cells = [trial.figure("accuracy"), trial.figure(key)]
        cells += [
            math.nan if test.get(k) is None else float(test[k] or 0) for k in ("accuracy", key)
        ]
        star = "*" if trial is tuned.chosen else ""
        rows.append([f"{trial.number}{star}", *map(_points, cells)])
    gap = tuned.symbol
    return ["trial", "accuracy %", gap, "test accuracy %", f"test {gap}"], rows


def table(tuned: Tuned, trials: Sequence[TrialResult]) -> str:
    """Write trials as CSV: figures as fractions, then every setting."""
    names = list(tuned.search.space)
    heads = [f"validation_{key}" for key in FIGURES] + [f"test_{key}" for key in FIGURES]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["trial", "chosen", *heads, "seconds", "failed", *names])
    for trial in trials:
        test = _test(tuned.checked.get(trial.number))
        numbers = [trial.figures.get(key) for key in FIGURES] + [test.get(key) for key in FIGURES]
        writer.writerow(
            [
                trial.number,
                int(trial.number == tuned.chosen.number),
                *("" if value is None else f"{value:.6f}" for value in numbers),
                f"{trial.seconds:.3f}",
                trial.failed or "",
                *(trial.settings.get(name, "") for name in names),
            ]
        )
    return buffer.getvalue()


def picture(tuned: Tuned) -> Any:
    """Draw all trials on the validation nodes, the front, the limit, and the chosen on the test."""
    fig, axes = figure(7.8, 4.6)
    limit = tuned.search.limit
    at = {t.number: (100 * tuned.gap(t), 100 * t.figure("accuracy")) for t in tuned.done}
    within = [t.number for t in tuned.done if limit is None or tuned.gap(t) <= limit]
    beyond = [number for number in at if number not in set(within)]
    dots = {"s": 26, "linewidths": 0.9, "zorder": 3}
    if beyond:
        axes.scatter(
            *zip(*(at[n] for n in beyond), strict=True),
            facecolors="white", edgecolors=COLOURS[7], label="trial, beyond the limit", **dots,
        )  # fmt: skip
    if within:
        name = "trial" if limit is None else "trial, within the limit"
        axes.scatter(
            *zip(*(at[n] for n in within), strict=True),
            facecolors=COLOURS[5], edgecolors=COLOURS[0], label=name, **dots,
        )  # fmt: skip
    best = [at[trial.number] for trial in tuned.front]
    axes.step(
        *zip(*best, strict=True), where="post", color="#555555", linestyle="--", linewidth=1.0,
        zorder=2, label="front of the trials",
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
    """Draw what was looked at on the test nodes; the saved model with its intervals."""
    key = tuned.search.criterion
    for number, checked in tuned.checked.items():
        test = checked.runs[0].test
        mine = number == tuned.chosen.number
        spread = {}
        for axis, name in (("xerr", key), ("yerr", "accuracy")):
            low, high = test.intervals.get(name, (math.nan, math.nan))
            value = getattr(test, name)
            if mine and not math.isnan(low):
                spread[axis] = [[100 * max(0.0, value - low)], [100 * max(0.0, high - value)]]
        axes.errorbar(
            100 * getattr(test, key), 100 * test.accuracy, fmt="D", color=COLOURS[2],
            markersize=7 if mine else 4, capsize=3, elinewidth=1.0, zorder=5,
            label="its model on the test nodes, 95 %" if mine else None, **spread,
        )  # fmt: skip


def _sections(tuned: Tuned, found: dict[str, Any], svg: str, command: str) -> list[Section]:
    chosen = found["chosen"]
    splits = tuned.search.splits
    how = "± is half of a 95 % interval over splits; " if splits > 1 else ""
    rows = [
        [
            str(trial.number),
            *(_points(trial.figure(key)) for key in _KEYS),
            *(shown(trial.settings[n]) if n in trial.settings else "" for n in tuned.search.space),
        ]
        for trial in tuned.front
    ]
    again = "" if chosen["train_command"] is None else f"{chosen['train_command']}\n\n"
    failed: dict[str, int] = {}
    for trial in tuned.trials:
        if trial.failed is not None:
            failed[trial.failed] = failed.get(trial.failed, 0) + 1
    sections = [
        Section(
            "Accuracy and gap",
            svg=svg,
            caption="Each dot is a trial, measured on the validation nodes. The star is chosen; "
            "the diamond is its model on the test nodes, which no trial was shown.",
        ),
        Section(
            "What was chosen",
            text=[told(tuned.chosen.settings)],
            header=["nodes", *HEADER],
            rows=figures_table(tuned),
            caption=f"In points. {how}brackets are a 95 % bootstrap interval over the test nodes. "
            "Chosen as the best of many, the validation figures flatter: quote the test's.",
        ),
        Section(
            "The front",
            header=["trial", *HEADER, *tuned.search.space],
            rows=rows,
            caption="Validation nodes, in points: what no other trial beats.",
        ),
        Section("Train it again", code=again + chosen["python"]),
        Section("Go on searching", code=command),
    ]
    if failed:
        reasons = [[str(count), reason] for reason, count in failed.items()]
        sections.insert(3, Section("What failed", header=["trials", "reason"], rows=reasons))
    return sections


def _entry(tuned: Tuned, trial: TrialResult) -> dict[str, Any]:
    checked = tuned.checked.get(trial.number)
    entry: dict[str, Any] = {
        "trial": trial.number,
        "settings": trial.settings,
        "validation": {**trial.figures, "per_split": list(trial.per_split)},
    }
    if checked is not None:
        per_split = [plain(run.test) for run in checked.runs]
        entry["test"] = {**means(per_split), "per_split": per_split}
    return entry


def _test(checked: Checked | None) -> dict[str, float | None]:
    return {} if checked is None else means([plain(run.test) for run in checked.runs])


def _over(evaluations: Sequence[Any]) -> list[str]:
    cells = []
    for key in _KEYS:
        interval = mean_interval([getattr(evaluation, key) for evaluation in evaluations])
        half = "" if math.isnan(interval.low) else f" ± {50 * (interval.high - interval.low):.1f}"
        cells.append(_points(interval.mean) + half)
    return cells


def _points(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.1f}"
