"""``fairmp demo``."""

from __future__ import annotations

import time

from fairmp.cli.options import AsJson, Results, Seed, Splits, option, print_json, show
from fairmp.outputs import bar


def command(
    results: Results,
    nodes: int = option("Nodes of the embedded network.", 20_000, min=500),
    splits: Splits = 3,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare every method on an embedded network, in under a minute."""
    start = time.perf_counter()
    folder = results.folder("demo")

    from fairmp.parallel import default_workers
    from fairmp.reproduction import demo

    total = splits * len(demo.METHODS)
    with results.staging(folder) as staging, bar(total, "training") as advance:
        found = demo.run(nodes, splits, seed, default_workers(), lambda r: advance(r["name"]))
        again = f"fairmp demo --nodes {nodes} --splits {splits} --seed {seed}"
        lines = demo.write(found, staging, command=again)
    if as_json:
        return print_json(found.records)
    from rich.text import Text

    from fairmp.datasets.statistics import statistics
    from fairmp.report import over, to_rich

    facts = statistics(found.data)
    show(
        Text(
            f"The embedded network: {facts.nodes:,} nodes, {facts.edges // 2:,} edges, sensitive "
            f"homophily {100 * (facts.sens_homophily or 0):.1f} %, "
            f"label homophily {100 * (facts.label_homophily or 0):.1f} %."
        ),
        to_rich(lines, f"Test nodes, {over(lines[0].splits)}"),
        "ΔDP: difference between the groups' rates of positive decisions, in points.",
        "ΔEO: the same among nodes whose label is positive.",
        f"{time.perf_counter() - start:.0f} s. Open {folder / 'report.html'}.",
    )
