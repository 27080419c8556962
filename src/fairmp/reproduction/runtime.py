"""Running time of 200 epochs: every network with every strategy, against an MLP in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

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
    good = [record for record in records if "failed" not in record]
    for data in dict.fromkeys(record["data"] for record in good):
        own = [record for record in good if record["data"] == data]
        times: dict[tuple[str, str], list[float]] = {}
        for record in own:
            key = record["spec"]["backbone"], record["spec"]["strategy"]
            times.setdefault(key, []).append(record["run"]["seconds"])
        unit = median(times.get(("mlp", "vanilla"), [0.0]))
        rows = [
            [title, *(_text(times.get((backbone, strategy)), unit) for strategy in STRATEGIES)]
            for backbone, title in BACKBONES.items()
        ]
        title = f"{own[0]['dataset']}: seconds, and multiples of the MLP's"
        result.append(Table(title, ["network", *(s.replace("-", " ") for s in STRATEGIES)], rows))
    return result


def write(records: Sequence[Record], folder: Path, *, command: str) -> list[Table]:
    """Write the tables and the page."""
    found = [*tables(records), paper.claims_table(paper.runtime_claims(records, _seconds(records)))]
    page.write_tables(found, folder)
    epochs = records[0]["spec"]["setting"]["epochs"]
    summary = (
        f"{epochs} epochs on one thread, one training at a time; thresholds add the time of their "
        "post-processing."
    )
    sections = [page.section(table) for table in found]
    page.write_page(folder, "Running time", summary, sections, command=command)
    return found


def _seconds(records: Sequence[Record]) -> Callable[[str, str], float]:
    """Median seconds by data set and family, such as ``GCN + adversary``."""
    times: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if "failed" not in record:
            key = record["data"], record["family"]
            times.setdefault(key, []).append(record["run"]["seconds"])
    return lambda data, family: median(times[data, family])


def _text(times: Sequence[float] | None, unit: float) -> str:
    if times is None:
        return "n/a"
    return f"{median(times):.2f}" + (f" ×{median(times) / unit:.1f}" if unit else "")
