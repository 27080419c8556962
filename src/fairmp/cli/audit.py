"""``fairmp audit``."""

from __future__ import annotations

import time

from fairmp.cli import options
from fairmp.cli.gate import check, of_labels
from fairmp.cli.options import Gate, option
from fairmp.outputs import bar


def command(
    results: options.Results,
    graph: options.Graph,
    gate: Gate,
    steps: int = option("Number of averaging steps.", 5),
    picture: bool = option("Draw the largest components.", True, "--picture/--no-picture"),
    seed: int = option("Seed of the held-out halves and the picture.", 0),
    as_json: options.AsJson = False,
) -> None:
    """Measure the effect of a graph's topology on its groups, before anything is trained."""
    start = time.perf_counter()
    graph.without_weights()
    folder = results.folder("audit")
    with bar(3 if picture else 2, "audit") as advance:
        data = graph.load()
        advance("measuring")

        from fairmp.analysis.audits import audit
        from fairmp.analysis.audits.result import write

        found = audit(data, steps=steps, seed=seed)
        advance("drawing" if picture else "writing")
        with results.staging(folder) as staging:
            command_line = options.rerun_command()
            record = write(found, data, staging, command=command_line, picture=picture)
    if as_json:
        options.print_json(record)
    else:
        took = f"{time.perf_counter() - start:.0f} s"
        options.show(*record["read"], f"\n{found}\n", f"{took}. Open {folder / 'report.html'}.")
    check(gate, [of_labels(found)])
