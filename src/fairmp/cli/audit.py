"""``fairmp audit``."""

from __future__ import annotations

import json
import shlex
import sys
import time
from typing import Annotated

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.progress import bar


def command(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    data: options.DataName = "embedded",
    data_dir: options.DataDir = None,
    nodes: options.Nodes = None,
    edges: options.Edges = None,
    id: options.Id = None,
    label: options.Label = None,
    sensitive: options.Sensitive = None,
    sensitive_bins: options.SensitiveBins = None,
    drop: options.Drop = None,
    steps: Annotated[int, typer.Option(help="Number of averaging steps.")] = 5,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw the largest components.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the held-out halves and the picture.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Measure the effect of a graph's topology on its groups, before anything is trained."""
    start = time.perf_counter()
    folder = outputs.free_name("fairmp-audit") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    with bar(3 if picture else 2, "audit") as advance:
        graph = options.load_data(
            data, data_dir, nodes, edges, id, label, sensitive, sensitive_bins, drop
        )
        advance("measuring")

        from fairmp.analysis.audits import audit
        from fairmp.analysis.audits.result import write

        found = audit(graph, steps=steps, seed=seed)
        advance("drawing" if picture else "writing")
        with outputs.results(folder, overwrite=overwrite) as staging:
            command_line = shlex.join(["fairmp", *sys.argv[1:]])
            record = write(found, graph, staging, command=command_line, picture=picture)
    if as_json:
        typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
        return
    for line in record["read"]:
        typer.echo(line)
    typer.echo(f"\n{found}\n")
    typer.echo(f"{time.perf_counter() - start:.0f} s. Open {folder / 'report.html'}.")
