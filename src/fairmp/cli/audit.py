"""``fairmp audit``."""

from __future__ import annotations

from fairmp.cli import options, output
from fairmp.cli.options import Gap, Gate, option
from fairmp.cli.output import rerun_command
from fairmp.display import bar


def command(
    results: options.Results,
    graph: options.Graph,
    gate: Gate,
    steps: int = option("Number of averaging steps.", 5),
    picture: bool = option("Draw the largest components.", True, "--picture/--no-picture"),
    seed: int = option("Seed for the held-out halves and the picture.", 0),
) -> None:
    """Measure the effect of a graph's topology on its groups, before anything is trained."""
    graph.without_weights()
    folder = results.folder("audit")
    with bar(3 if picture else 2, "audit") as advance:
        data = graph.load()
        advance("measuring")

        from fairmp.analysis.audits import audit
        from fairmp.report.audits import write

        result = audit(data, steps=steps, seed=seed)
        advance("drawing" if picture else "writing")
        with results.staging(folder) as staging:
            command = rerun_command()
            record = write(result, data, staging, command=command, picture=picture)
    last = f"{output.elapsed():.0f} s. Open {folder / 'report.html'}."
    output.report(results.as_json, record, *record["read"], f"\n{result}\n", last)
    labels = result.label_gap()
    ratio = result.label_ratio()
    gate.check(
        Gap("the gap of the labels", labels.estimate, labels.interval),
        impact_ratio=Gap("the impact ratio of the labels", ratio.estimate, ratio.interval),
    )
