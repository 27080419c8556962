"""``fairmp demo``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmp import outputs
from fairmp.cli.options import AsJson, Out, Overwrite, Seed, Splits
from fairmp.progress import bar

if TYPE_CHECKING:
    from fairmp.report import Line
    from fairmp.reproduction.demo import Demo


def command(
    out: Out = None,
    overwrite: Overwrite = False,
    nodes: Annotated[int, typer.Option(min=500, help="Nodes of the embedded network.")] = 20_000,
    splits: Splits = 3,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tell the whole story on an embedded network, in under a minute."""
    start = time.perf_counter()
    folder = outputs.free_name("fairmp-demo") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.reproduction import demo
    from fairmp.reproduction.demo_page import write

    with outputs.results(folder, overwrite=overwrite) as staging:
        with bar(splits * len(demo.METHODS), "training") as advance:
            found = demo.run(
                n=nodes,
                splits=splits,
                seed=seed,
                workers=min(os.cpu_count() or 1, 8),
                on_record=lambda record: advance(record["name"]),
            )
        again = f"fairmp demo --nodes {nodes} --splits {splits} --seed {seed}"
        lines = write(found, staging, command=again)
    if as_json:
        typer.echo(json.dumps(found.records, ensure_ascii=False))
    else:
        _show(found, lines, folder, time.perf_counter() - start)


def _show(found: Demo, lines: list[Line], folder: Path, seconds: float) -> None:
    from rich.console import Console

    from fairmp.report import over, to_rich
    from fairmp.reproduction.demo import describe

    console = Console(highlight=False)
    facts = dict(describe(found.data))
    console.print(
        f"The embedded network: {facts['nodes']} nodes, {facts['undirected edges']} edges, "
        f"sensitive homophily {facts['sensitive homophily']}, "
        f"label homophily {facts['label homophily']}."
    )
    console.print(to_rich(lines, f"Test nodes, {over(lines[0].splits)}"))
    console.print(
        "ΔDP: how far apart the groups' rates of positive decisions are, in points. "
        "ΔEO: the same among the truly positive."
    )
    console.print(f"{seconds:.0f} s. Open {folder / 'report.html'}.")
