"""``fairmp audit``."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.gate import Gate, of_labels
from fairmp.progress import bar


def command(
    results: options.Results,
    graph: options.Graph,
    gate: Gate,
    steps: Annotated[int, typer.Option(help="Number of averaging steps.")] = 5,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the largest components.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the held-out halves and the picture.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Measure the effect of a graph's topology on its groups, before anything is trained."""
    start = time.perf_counter()
    folder = results.folder("audit")
    with bar(3 if picture else 2, "audit") as advance:
        data = graph.load()
        advance("measuring")

        from fairmp.analysis.audits import audit
        from fairmp.analysis.audits.result import write

        found = audit(data, steps=steps, seed=seed)
        advance("drawing" if picture else "writing")
        with outputs.results(folder, overwrite=results.overwrite) as staging:
            command_line = options.rerun_command()
            record = write(found, data, staging, command=command_line, picture=picture)
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
        return gate.check([of_labels(found)])
    for line in record["read"]:
        typer.echo(line)
    typer.echo(f"\n{found}\n")
    typer.echo(f"{time.perf_counter() - start:.0f} s. Open {folder / 'report.html'}.")
    gate.check([of_labels(found)])
