"""An audit as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairmp.analysis.audits.verdict import points

if TYPE_CHECKING:
    from fairmp.analysis.audits.findings import Audit
    from fairmp.analysis.audits.steps import Reading

_WIDTH = 100
_READ = (
    "gap: distance between the groups' means in standard deviations of the features (chance: with "
    "groups at random); separation: the same relative to the spread within groups; told apart: how "
    "much more often a linear rule for a group fires in it than outside it, in points, learned on "
    "half of the nodes and read on the other (0: the features say nothing of the group, 100: they "
    "give it away); made up: told apart by random numbers in the features' place, which know "
    "nothing but, once averaged, where in the graph a node sits."
)


def text(audit: Audit) -> str:
    """Write an audit for a terminal of 100 columns."""
    parts = [
        f"Audit of {audit.name}",
        _columns(facts(audit)),
        table(*group_table(audit)),
        "Averaging the features over neighbours, row by row (headline) and as Ã does",
        table(*step_table(audit)),
        _wrapped(reading_guide(audit)),
        "What the theory says of one step" if theory(audit) else "",
        _columns(theory(audit)),
        "What it means",
        "\n".join(_wrapped(line, "- ") for line in audit.verdict()),
    ]
    if audit.notes:
        parts += ["Notes", "\n".join(_wrapped(line, "- ") for line in audit.notes)]
    return "\n\n".join(part for part in parts if part).replace("\n\n- ", "\n- ")


def reading_guide(audit: Audit) -> str:
    """Say how to read the steps, and from which size on a change is one."""
    if audit.noise is None:
        return _READ
    return f"{_READ} A change of told apart below {points(audit.noise)} points may be chance."


def facts(audit: Audit) -> list[tuple[str, str]]:
    """Name and value of the figures of the whole graph."""
    tie = audit.homophily
    rows = [
        ("nodes", f"{audit.nodes:,}"),
        ("edges", f"{audit.edges:,} undirected, {audit.directed_edges:,} directed"),
        ("features", f"{audit.features:,}"),
        ("labelled nodes", f"{audit.labelled:,}"),
        ("density ρ", f"{audit.density:.3g}"),
        ("average degree", f"{audit.average_degree:.1f}"),
        ("sensitive homophily ε", percent(tie.raw)),
        ("  expected by chance", percent(tie.chance)),
        ("  adjusted for chance", "n/a" if tie.adjusted is None else f"{tie.adjusted:.3f}"),
    ]
    if audit.c is not None:
        rows.append(("group ratio c", f"{audit.c:.3f} (share of {audit.groups[1].name})"))
    rows += [
        ("label homophily", f"{percent(audit.label_homophily)} (unlabelled as a class)"),
        ("  over labelled pairs", percent(audit.label_homophily_labelled)),
    ]
    if audit.unknown_groups:
        share = percent(audit.unknown_edges)
        rows += [
            ("nodes of unknown group", f"{audit.unknown_groups:,}"),
            ("  edges with such an end", share),
        ]
    return rows


def group_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header and a row a group."""
    shown = audit.classes[1:] if len(audit.classes) == 2 else audit.classes[:8]
    first = len(audit.classes) - len(shown) if len(audit.classes) == 2 else 0
    header = ["group", "nodes", "share %", "labelled", *(f"{name} %" for name in shown)]
    header += ["mean degree", "median", "isolated", "inside %"]
    rows = []
    for row in audit.groups:
        rates = row.base_rates or (None,) * len(audit.classes)
        rows.append(
            [
                row.name,
                f"{row.nodes:,}",
                _points(row.share),
                f"{row.labelled:,}",
                *(_points(rate) for rate in rates[first : first + len(shown)]),
                f"{row.mean_degree:.1f}",
                f"{row.median_degree:g}",
                f"{row.isolated:,}",
                _points(row.inside),
            ]
        )
    return header, rows


def step_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header and a row a step, plain averaging first."""
    header = ["step", "gap", "chance", "separation", "told apart"]
    header += ["made up", "Ã: gap", "chance", "separation", "told apart"]
    rows = []
    for plain, layer in zip(audit.row, audit.symmetric, strict=True):
        made_up = _points(audit.made_up[plain.step] if audit.noise and audit.made_up else None)
        rows.append([f"{plain.step}", *_cells(audit, plain), made_up, *_cells(audit, layer)])
    return header, rows


def _cells(audit: Audit, reading: Reading) -> list[str]:
    measured = audit.noise is not None
    return [
        f"{reading.gap:.3f}",
        f"{reading.chance:.3f}",
        f"{reading.separation:.2f}" if measured else "n/a",
        points(reading.told_apart) if measured else "n/a",
    ]


def theory(audit: Audit) -> list[tuple[str, str]]:
    """Name and value of what the theory says of one step; empty where it says nothing."""
    found = audit.forecast
    rows = []
    if found.m is not None:
        rows.append(("m = δᵀΣ⁻¹δ", f"{found.m:.3f}"))
    for name, value in (("printed", found.printed), ("corrected", found.corrected)):
        if value is not None:
            says = "adds bias" if value > 1 else "does not claim that bias is added"
            rows.append((f"Theorem 2, {name}", f"{value:.2f} ({says}; the border is 1)"))
    if found.missing and found.before is not None:
        rows.append(("Theorem 2", found.missing))
    return rows


def percent(share: float | None) -> str:
    """Write a share in per cent, to the digit the field prints.

    Example:
        >>> percent(0.72368), percent(None)
        ('72.37 %', 'n/a')
    """
    return "n/a" if share is None else f"{100 * share:.2f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set a table in columns, the first to the left and the others to the right.

    Example:
        >>> print(table(["group", "nodes"], [["a", "12"]]))
        group  nodes
        a         12
    """
    width = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [row[0].ljust(width[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:], width[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _points(share: float | None) -> str:
    return "n/a" if share is None else points(share)


def _wrapped(line: str, mark: str = "") -> str:
    return textwrap.fill(
        line, _WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False
    )
