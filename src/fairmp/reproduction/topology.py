"""The paper's pictures of topology: edges within and between groups, data set by data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch_geometric.data import Data

from fairmp.comparison.page import file_name, write_page
from fairmp.report import Section
from fairmp.report.figures import embedded


def write(
    graphs: Mapping[str, Data],
    absent: Mapping[str, str],
    folder: Path,
    command: str,
    seed: int,
    progress: Callable[[str], None],
) -> None:
    """Draw each graph, and collect the pictures on one page."""
    from fairmp.report.topology import topology

    sections = []
    for key, data in graphs.items():
        name = str(getattr(data, "name", key))
        path = folder / f"topology-{file_name(name)}.png"
        topology(data, seed=seed).savefig(path, dpi=150)
        sections.append(Section(name, svg=embedded(path, f"The topology of {name}")))
        progress(name)
    summary = "Edges between groups are red."
    write_page(folder, "Topology", summary, sections, command=command, absent=absent)
