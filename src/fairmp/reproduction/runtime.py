"""Running time of 200 epochs: every network with every strategy, against an MLP in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch_geometric.data import Data

from fairmp.comparison import Record, compare, page
from fairmp.comparison.grid import BACKBONES, STRATEGIES, RunSpec
from fairmp.report.formats import Table
from fairmp.reproduction import paper


def run(
    specs: Sequence[RunSpec],
    graphs: Mapping[str, Data],
    folder: Path,
    device: str,
    progress: Callable[[str], None],
) -> list[Record]:
    """Time the runs one after the other on one thread, after a run that is not counted."""
    short = replace(specs[0].setting, epochs=2, eval_every=2, pretrain=1)
    load, path = graphs.__getitem__, folder / "records.jsonl"
    compare.train([replace(specs[0], setting=short)], load, device)
    return compare.run(specs, load, path, device=device, on_record=lambda r: progress(r["name"]))


def tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set: median seconds over repetitions, and multiples of the MLP's."""
    result = []
    for _, own in page.results(records).groupby("data", sort=False):
        times = own.groupby(["backbone", "strategy"])["seconds"].median()
        unit = times.get(("mlp", "vanilla"))
        rows = [
            [title, *(_text(times.get((backbone, strategy)), unit) for strategy in STRATEGIES)]
            for backbone, title in BACKBONES.items()
            if backbone in times.index.get_level_values(0)
        ]
        title = f"{own['dataset'].iloc[0]}: seconds, and multiples of the MLP's"
        result.append(Table(title, ["network", *(s.replace("-", " ") for s in STRATEGIES)], rows))
    return result


def write(records: Sequence[Record], folder: Path, *, command: str) -> list[Table]:
    """Write the tables and the page."""
    found = [*tables(records), paper.claims_table(paper.runtime_claims(records))]
    epochs = records[0]["spec"]["setting"]["epochs"]
    summary = (
        f"{epochs} epochs on one thread, one training at a time; thresholds add the time of their "
        "post-processing."
    )
    page.write_page(folder, "Running time", summary, found, command=command)
    return found


def _text(seconds: float | None, unit: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds:.2f}" + (f" ×{seconds / unit:.1f}" if unit else "")
