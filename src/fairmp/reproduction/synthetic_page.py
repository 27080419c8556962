"""The page of the synthetic experiments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairmp import report
from fairmp.report.figures import embedded


def agreement(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: how often each form of the condition says what is measured."""
    header = ["form", "right %", "right near the border %", "false alarms", "misses", "decided"]
    rows = [
        [
            row["form"],
            f"{100 * row['agree']:.1f}",
            f"{100 * row['agree_border']:.1f}",
            str(row["false_alarms"]),
            str(row["misses"]),
            f"{row['decided']} of {row['points']}",
        ]
        for row in summary["agreement"]
    ]
    return header, rows


def witness(summary: dict[str, Any]) -> str:
    """Tell of the counterexample in a sentence."""
    point = summary["counterexample"]
    return (
        f"The counterexample: the printed condition gives {point['printed']:.2f}, the corrected "
        f"one {point['corrected']:.2f}; the bias changes by {point['information_measured']:+.3f} ± "
        f"{point['information_interval']:.3f} nats (predicted "
        f"{point['information_predicted']:+.3f})."
    )


def page(summary: dict[str, Any], folder: Path, command: str) -> str:
    """Put the page together from the summary and the figures in the folder."""
    header, rows = agreement(summary)
    sections = [
        report.Section(
            "When does averaging add bias?",
            text=[
                "An answer is right when it says what is measured; near the border, where the "
                "printed or the corrected condition lies between ½ and 2, is where it matters."
            ],
            header=header,
            rows=rows,
        ),
        *(
            report.Section(title, svg=embedded(folder / f"{name}.png", title), caption=caption)
            for name, title, caption in _FIGURES
        ),
        report.Section("Real graphs", header=_PLACES, rows=list(_places(summary["graphs"])))
        if summary["graphs"]
        else report.Section("Real graphs", text=["No data set's files were there."]),
        report.Section("How to rerun it", code=command),
    ]
    return report.page("Message passing on graphs whose truth is known", witness(summary), sections)


_FIGURES = (
    (
        "panels_parity",
        "ΔDP against homophily",
        "Change of ΔDP under one step of averaging; markers are measured, lines are theory.",
    ),
    (
        "panels_information",
        "Bias against homophily",
        "The same for the bound on the mutual information, in nats.",
    ),
    ("agreement", "Each condition against measurement", "Right is lower left and upper right."),
    (
        "phase",
        "The phase diagram",
        "Where one step of averaging adds bias, and where real graphs lie.",
    ),
    ("depth", "More than one step", "The same question after one to four steps."),
)
_PLACES = ["graph", "nodes", "average degree", "homophily", "balanced", "ΔDP measured", "predicted"]


def _places(graphs: Iterable[dict[str, Any]]) -> Iterable[list[str]]:
    for spot in graphs:
        yield [
            spot["name"],
            f"{spot['n']:,}",
            f"{spot['average_degree']:.1f}",
            f"{spot['eps']:.3f}",
            f"{spot['balanced_eps']:.3f}",
            f"{100 * spot['parity_measured']:+.1f}",
            f"{100 * spot['parity_predicted']:+.1f}",
        ]
