"""Results in a notebook: HTML tables, and bars by group."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairmp.metrics.counts import wilson

COLOURS = ("#8a949e", "#0072B2")


def to_html(title: str, tables: Sequence[Sequence[Sequence[str]]], notes: Sequence[str]) -> str:
    """A title, tables whose first row is the header, and notes; all escaped."""
    parts = [f"<p><strong>{html.escape(title)}</strong></p>"]
    for header, *rows in tables:
        body = [f"<tr><th>{'</th><th>'.join(map(html.escape, header))}</th></tr>"]
        for first, *rest in rows:
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in rest)
            body.append(f"<tr><th>{html.escape(first)}</th>{cells}</tr>")
        parts.append(f"<table>{''.join(body)}</table>")
    return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in notes)])


def plot_rates(
    names: Sequence[str], sizes: Sequence[int], rates: Mapping[str, Sequence[float]], ax: Any = None
) -> Any:
    """Draw rates by group, in per cent with 95 % intervals, one series per key; return the axes."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(5.5, 0.9 + 0.5 * len(names)), layout="constrained").subplots()
    height = 0.8 / len(rates)
    n = np.maximum(np.array(sizes, dtype=float), 1e-9)
    for k, (label, values) in enumerate(rates.items()):
        share = np.array(values, dtype=float)
        low, high = wilson(share, n)
        place = np.arange(len(names)) + (k - (len(rates) - 1) / 2) * height
        errors = 100 * np.nan_to_num(np.maximum([share - low, high - share], 0))
        colour = COLOURS[k + len(COLOURS) - len(rates)]
        style: dict[str, Any] = {"xerr": errors, "capsize": 3, "color": colour, "label": label}
        ax.barh(place, 100 * share, 0.9 * height, **style)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    if len(rates) > 1:
        ax.legend(frameon=False)
    return ax
