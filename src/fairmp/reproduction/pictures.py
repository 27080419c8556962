"""The paper's pictures of topology: who is tied to whom, data set by data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch_geometric.data import Data

from fairmp.comparison.page import file_name
from fairmp.report.figures import embedded
from fairmp.report.page import Section, page


def write(
    graphs: Mapping[str, Data],
    absent: Mapping[str, str],
    folder: Path,
    *,
    command: str,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Path]:
    """Draw each graph, and put the pictures on one page."""
    from fairmp.report.topology import topology

    paths, sections = [], []
    for key, data in graphs.items():
        name = str(getattr(data, "name", key))
        path = folder / f"topology-{file_name(name)}.png"
        topology(data, seed=seed).savefig(path, dpi=150)
        paths.append(path)
        sections.append(Section(name, svg=embedded(path, f"The topology of {name}")))
        progress(name)
    if absent:
        rows = list(absent.items())
        sections.append(Section("Left out", header=["data set", "why"], rows=rows))
    sections.append(Section("How to rerun it", code=command))
    text = page("Who is tied to whom", "Edges between groups are red.", sections)
    (folder / "report.html").write_text(text, encoding="utf-8")
    return paths
