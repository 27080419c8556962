"""The paper's picture of topologies: each data set's graph, with edges between groups in red."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch_geometric.data import Data

from experiments.options import Page, Scope, show
from fairmp.cli.options import Results, option
from fairmp.comparison.page import file_name
from fairmp.display import bar
from fairmp.report import Section
from fairmp.report.figures import embedded
from fairmp.report.topology import topology


def command(
    results: Results,
    scope: Scope,
    seed: int = option("Seed of samples and layouts.", 0, min=0),
) -> None:
    """Draw each data set's graph, with the edges between groups in red."""
    folder = results.folder("topology")
    data_sets = scope.load(["embedded:1000"])
    with results.staging(folder) as staging, bar(len(data_sets.graphs), "pictures") as advance:
        draw(data_sets.graphs, staging, seed, advance).write(staging, data_sets.absent)
    show(results, [str(path) for path in sorted(folder.glob("*.png"))], folder, [])


def draw(
    graphs: Mapping[str, Data], folder: Path, seed: int, progress: Callable[[str], None]
) -> Page:
    """Draw each graph into a file; return the content of the page."""
    sections = []
    for key, data in graphs.items():
        name = str(getattr(data, "name", key))
        path = folder / f"topology-{file_name(name)}.png"
        topology(data, seed=seed).savefig(path, dpi=150)
        sections.append(Section(name, svg=embedded(path, f"The topology of {name}")))
        progress(name)
    return Page("Topology", "Edges between groups are red.", sections)
