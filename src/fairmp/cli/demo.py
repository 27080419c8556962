"""``fairmp demo``."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from fairmp import outputs
from fairmp.cli.options import AsJson, Results, Seed, Splits
from fairmp.progress import bar


def command(
    results: Results,
    nodes: Annotated[int, typer.Option(min=500, help="Nodes of the embedded network.")] = 20_000,
    splits: Splits = 3,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare every method on an embedded network, in under a minute."""
    start = time.perf_counter()
    folder = results.folder("demo")

    from fairmp.parallel import default_workers
    from fairmp.reproduction import demo

    with outputs.results(folder, overwrite=results.overwrite) as staging:
        with bar(splits * len(demo.METHODS), "training") as advance:
            workers = default_workers()
            found = demo.run(nodes, splits, seed, workers, lambda r: advance(r["name"]))
        again = f"fairmp demo --nodes {nodes} --splits {splits} --seed {seed}"
        lines = demo.write(found, staging, command=again)
    if as_json:
        typer.echo(json.dumps(found.records, ensure_ascii=False))
        return
    from rich.console import Console

    from fairmp.datasets.statistics import statistics
    from fairmp.report import over, to_rich

    console = Console(highlight=False)
    facts = statistics(found.data)
    console.print(
        f"The embedded network: {facts.nodes:,} nodes, {facts.edges // 2:,} edges, sensitive "
        f"homophily {100 * (facts.sens_homophily or 0):.1f} %, "
        f"label homophily {100 * (facts.label_homophily or 0):.1f} %."
    )
    console.print(to_rich(lines, f"Test nodes, {over(lines[0].splits)}"))
    console.print(
        "ΔDP: difference between the groups' rates of positive decisions, in points. "
        "ΔEO: the same among nodes whose label is positive."
    )
    console.print(f"{time.perf_counter() - start:.0f} s. Open {folder / 'report.html'}.")
