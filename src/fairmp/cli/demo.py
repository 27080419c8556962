"""``fairmp demo``."""

from __future__ import annotations

from fairmp.cli.options import Results, Seed, Splits, option
from fairmp.cli.output import elapsed, open_page, report
from fairmp.display import bar

TRAIN = "fairmp train --nodes nodes.csv --edges edges.csv --id id --label label --sensitive group"


def command(
    results: Results,
    nodes: int = option("Nodes of the embedded network.", 20_000, min=500),
    splits: Splits = 3,
    seed: Seed = 0,
) -> None:
    """Compare every method on an embedded network, in under a minute."""
    folder = results.folder("demo")

    from fairmp.comparison import demo

    rerun = f"fairmp demo --nodes {nodes} --splits {splits} --seed {seed}"
    commands = demo.Commands(rerun, TRAIN)
    count = splits * len(demo.methods())
    with results.staging(folder) as staging, bar(count, "training") as advance:
        shown = demo.run(nodes, splits, seed, staging, commands, advance=advance)
    from rich.text import Text

    from fairmp.datasets.statistics import statistics
    from fairmp.report import over, to_rich
    from fairmp.report.formats import constant_note

    facts = statistics(shown.data)
    report(
        results.as_json,
        shown.records,
        Text(
            f"The embedded network: {facts.nodes:,} nodes, {facts.edges // 2:,} edges, sensitive "
            f"homophily {100 * (facts.sens_homophily or 0):.1f} %, "
            f"label homophily {100 * (facts.label_homophily or 0):.1f} %."
        ),
        to_rich(shown.lines, f"Test nodes, {over(splits)}"),
        *filter(None, [constant_note(shown.lines)]),
        "ΔDP: difference between the groups' rates of positive decisions, in points.",
        "ΔEO: the same among nodes whose label is positive.",
        f"{elapsed():.0f} s. {open_page(folder)}",
    )
