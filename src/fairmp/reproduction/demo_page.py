"""The demonstration's files: records, table, picture, model, report."""

from __future__ import annotations

import json
from pathlib import Path

from fairmp.analysis.audits import audit
from fairmp.report import Line, Section, over, summarise, to_markdown, tradeoff
from fairmp.report.document import Point, Story
from fairmp.report.document import write as write_story
from fairmp.report.from_evaluation import from_evaluations
from fairmp.report.sections import part_of
from fairmp.report.tables import COLUMNS, cells
from fairmp.reproduction.demo import FAIR, PLAIN, SETTING, Demo


def write(found: Demo, folder: Path, *, command: str) -> list[Line]:
    """Write everything under a folder, and return the table's lines."""
    lines = summarise(found.records)
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for record in found.records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / "table.md").write_text(to_markdown(lines), encoding="utf-8")
    figure = tradeoff(lines, f"Embedded network, {over(lines[0].splits)}")
    figure.savefig(folder / "tradeoff.png", dpi=150)
    found.model.save(folder / "model")
    write_story(story(found, lines, command), folder)
    return lines


def story(found: Demo, lines: list[Line], command: str) -> Story:
    """Tell the demonstration: plain propagation before, fair message passing after."""
    tests = {
        name: next(r["run"]["test"] for r in found.records if r["name"] == name)
        for name in (PLAIN, FAIR)
    }
    told = from_evaluations(tests[FAIR], tests[PLAIN])
    told |= {
        "title": "Fair message passing, in one minute",
        "summary": _summary(lines),
        "graph": audit(found.data, steps=4).to_dict(),
        "measured": "The test nodes of the first split",
        "correction": "Before is a classifier that averages over friends (plain propagation); "
        "after is fair message passing. Both are trained alike, each on its own.",
        "points": [_point(line) for line in lines],
        "lines": {
            "title": "What each method does",
            "text": [
                "ΔDP is how far apart the groups' rates of positive decisions are, ΔEO the same "
                "among the truly positive, both in points. Fairness here means ΔDP: where the "
                "groups' true rates differ, closing it can open ΔEO, so both are shown."
            ],
            "header": ["method", *COLUMNS.values()],
            "rows": [[line.name, *cells(line)] for line in lines],
            "caption": f"Test nodes, {over(lines[0].splits)}. "
            f"{SETTING['epochs']} epochs, lr {SETTING['lr']}, 64 hidden units; fair predictions "
            "were solved for the test nodes as a batch.",
        },
        "extra": [part_of(_trace(found))],
        "assumptions": [
            "The correction uses each person's group at prediction. Where that is not allowed, "
            "train with the regulariser, which needs groups in training only.",
            "Fair means here that the groups get positive decisions equally often. That is one "
            "meaning of several; which one matters is a decision, not a measurement.",
            "The network is made up: people mostly know people of their own group, and the groups "
            "differ in how often the label is positive. The group is not among the features. Your "
            "own graph is a command away: fairmp train --nodes nodes.csv --edges edges.csv --id id "
            "--label label --sensitive group.",
        ],
        "command": command,
        "versions": found.records[0]["run"]["versions"],
    }
    return told


def _point(line: Line) -> Point:
    accuracy, dp = line.figures["accuracy"], line.figures["dp"]
    kinds = {PLAIN: "before", FAIR: "chosen"}
    # No gap is below 0, whatever a symmetric interval says.
    ends: list[float | None] | None = None if dp.n < 2 else [max(0.0, dp.low), dp.high]
    return {
        "name": line.name,
        "kind": kinds.get(line.name, "other"),
        "accuracy": accuracy.mean,
        "gap": dp.mean,
        "accuracy_interval": None if accuracy.n < 2 else [accuracy.low, accuracy.high],
        "gap_interval": ends,
    }


def _summary(lines: list[Line]) -> str:
    named = {line.name: line for line in lines}
    plain, fair = named[PLAIN].figures, named[FAIR].figures
    cost = 100 * (plain["accuracy"].mean - fair["accuracy"].mean)
    return (
        f"Averaging over friends puts the two groups {100 * plain['dp'].mean:.1f} points apart. "
        f"Fair message passing brings that to {100 * fair['dp'].mean:.1f} points, for "
        f"{cost:.1f} points of accuracy."
    )


def _trace(found: Demo) -> Section:
    steps = range(1, 1 + len(next(iter(found.trace.gaps.values()))))
    return Section(
        "Why the printed algorithm hardly moves",
        text=[
            "The same trained network's logits, sent through each solver: the gap of predicted "
            "probabilities after each propagation step, all nodes, in points. The printed step "
            "size was made for an operator whose squared norm is up to 2. On this network it "
            f"is about {4 / found.data.num_nodes:.0e}, so five steps leave the dual thousands "
            "of times too small, whatever λ_f allows. The same steps with the right step size "
            "(papc) move, and the projection closes the gap in every step."
        ],
        header=["solver", "input", *(f"step {k}" for k in steps)],
        rows=[
            [name, f"{100 * found.trace.start:.1f}", *(f"{100 * gap:.2f}" for gap in gaps)]
            for name, gaps in found.trace.gaps.items()
        ],
    )
