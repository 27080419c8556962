"""The demonstration's files: records, table, picture, model, page."""

from __future__ import annotations

import json
from pathlib import Path

from fairmp.experiments.demo import FAIR, PLAIN, SETTING, Demo, describe
from fairmp.report import Line, Section, page, summarise, to_markdown, tradeoff
from fairmp.report.figures import to_svg
from fairmp.report.tables import COLUMNS, cells


def write(found: Demo, folder: Path, *, command: str) -> list[Line]:
    """Write everything under a folder, and return the table's lines."""
    lines = summarise(found.records)
    with (folder / "records.jsonl").open("w", encoding="utf-8") as file:
        for record in found.records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / "table.md").write_text(to_markdown(lines), encoding="utf-8")
    figure = tradeoff(lines, f"Embedded network, {lines[0].splits} splits")
    figure.savefig(folder / "tradeoff.png", dpi=150)
    svg = to_svg(figure)
    found.model.save(folder / "model")
    (folder / "report.html").write_text(
        page(
            "Fair message passing, in one minute",
            _summary(lines),
            _sections(found, lines, svg, command),
        ),
        encoding="utf-8",
    )
    return lines


def _summary(lines: list[Line]) -> str:
    named = {line.name: line for line in lines}
    plain, fair = named[PLAIN].figures, named[FAIR].figures
    cost = 100 * (plain["accuracy"].mean - fair["accuracy"].mean)
    return (
        f"Averaging over friends puts the two groups {100 * plain['dp'].mean:.1f} points apart. "
        f"Fair message passing brings that to {100 * fair['dp'].mean:.1f} points, for "
        f"{cost:.1f} points of accuracy."
    )


def _sections(found: Demo, lines: list[Line], svg: str, command: str) -> list[Section]:
    steps = range(1, 1 + len(next(iter(found.trace.gaps.values()))))
    trace = [
        [name, f"{100 * found.trace.start:.1f}", *(f"{100 * gap:.2f}" for gap in gaps)]
        for name, gaps in found.trace.gaps.items()
    ]
    return [
        Section(
            "The network",
            text=[
                "A made-up social network in which people mostly know people of their own group, "
                "and the groups differ in how often the label is positive. The group is not among "
                "the features; the friendships give it away."
            ],
            header=["", "value"],
            rows=describe(found.data),
        ),
        Section(
            "What each method does",
            text=[
                "ΔDP is how far apart the groups' rates of positive decisions are, ΔEO the same "
                "among the truly positive, both in points. Fairness here means ΔDP: where the "
                "groups' true rates differ, closing it can open ΔEO, so both are shown."
            ],
            header=["method", *COLUMNS.values()],
            rows=[[line.name, *cells(line)] for line in lines],
            caption=(
                f"Test nodes; mean over {lines[0].splits} splits ± half of a 95 % interval. "
                f"{SETTING['epochs']} epochs, lr {SETTING['lr']}, 64 hidden units; "
                "fair predictions were solved for the test nodes as a batch."
            ),
        ),
        Section(
            "The trade-off",
            svg=svg,
            caption="Every point is a method; bars are 95 % intervals of the mean over splits.",
        ),
        Section(
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
            rows=trace,
        ),
        Section(
            "What rests on assumptions",
            text=[
                "The correction uses each person's group at prediction. Where that is not allowed, "
                "train with the regulariser, which needs groups in training only.",
                "The network is synthetic. Your own graph is a command away: fairmp train --nodes "
                "nodes.csv --edges edges.csv --id id --label label --sensitive group.",
            ],
        ),
        Section("How to rerun it", code=command),
    ]
