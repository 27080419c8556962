"""How long 200 epochs take: every network with every strategy, against an MLP in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from fairmp.comparison import compare
from fairmp.comparison.grid import BACKBONES, STRATEGIES, RunSpec, Setting, cells
from fairmp.comparison.page import section
from fairmp.comparison.runner import Record
from fairmp.report.formats import Table, latex, markdown
from fairmp.report.page import Section, page

EPOCHS = 200


def grid(names: Sequence[str], *, quick: bool = False, epochs: int = EPOCHS) -> list[RunSpec]:
    """Every backbone × strategy, three times; quick: once. Validation is looked at once.

    Example:
        >>> len(grid(["nba"], quick=True)) == 7 * 5
        True
    """
    setting = Setting(epochs=epochs, eval_every=epochs, pretrain=70 * epochs // EPOCHS)
    return cells(names, splits=1, seeds=1 if quick else 3, setting=setting)


def run(
    found: Sequence[RunSpec],
    load: compare.Load,
    path: Path,
    *,
    device: str = "cpu",
    on_record: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Time the cells one at a time, after one that is not counted, on one thread each."""
    first = found[0]
    short = replace(first.setting, epochs=2, eval_every=2, pretrain=1)
    compare.train([replace(first, setting=short)], load(first.data), device)
    return compare.run(found, load, path, device=device, on_record=on_record)


def tables(records: Sequence[Record]) -> list[Table]:
    """Make a table a data set: the median time over repetitions, and as a multiple of the MLP's."""
    result = []
    good = [record for record in records if "failed" not in record]
    for data in dict.fromkeys(record["data"] for record in good):
        own = [record for record in good if record["data"] == data]
        times: dict[tuple[str, str], list[float]] = {}
        for record in own:
            place = record["spec"]["backbone"], record["spec"]["strategy"]
            times.setdefault(place, []).append(record["run"]["seconds"])
        middle = {place: median(values) for place, values in times.items()}
        unit = middle.get(("mlp", "vanilla"))
        rows = [
            [
                title,
                *(_cell(middle.get((backbone, strategy)), unit) for strategy in STRATEGIES),
            ]
            for backbone, title in BACKBONES.items()
        ]
        title = f"{own[0]['dataset']}: seconds, and times the MLP's"
        result.append(Table(title, ["network", *(s.replace("-", " ") for s in STRATEGIES)], rows))
    return result


def _cell(seconds: float | None, unit: float | None) -> str:
    if seconds is None:
        return "n/a"
    return f"{seconds:.2f}" + (f" ×{seconds / unit:.1f}" if unit else "")


def write(records: Sequence[Record], folder: Path, *, command: str) -> list[Table]:
    """Write the tables and the page."""
    found = tables(records)
    (folder / "table.md").write_text(markdown(found), encoding="utf-8")
    (folder / "table.tex").write_text(latex(found), encoding="utf-8")
    epochs = records[0]["spec"]["setting"]["epochs"] if records else EPOCHS
    text = page(
        "How long training takes",
        f"{epochs} epochs on one thread, one training at a time; thresholds cost what is done "
        "after training.",
        [*(section(table) for table in found), Section("How to rerun it", code=command)],
    )
    (folder / "report.html").write_text(text, encoding="utf-8")
    return found
