"""``fairmp reproduce unknown``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.errors import InputError
from fairmp.progress import bar


def command(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small run on the embedded network, in under two minutes."),
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data set; give several. By default the embedded network, Pokec province and "
            "Bail, where their files are there."
        ),
    ] = None,
    data_dir: options.DataDir = None,
    splits: Annotated[int | None, typer.Option(min=1, help="Splits; by default 5.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Hide the groups of all but 1 to 100 % of the nodes, and mend with and without estimates."""
    folder = outputs.free_name("fairmp-unknown") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.cli.compare import default_workers
    from fairmp.datasets.by_name import available
    from fairmp.reproduction import unknown as experiment

    graphs, absent = available(
        data or (["embedded:3000"] if quick else list(experiment.DATA)), data_dir
    )
    for name, why in absent.items():
        print(f"Left out, {name}: {why}.", file=sys.stderr)
    if not graphs:
        raise InputError(
            "--data",
            "no data set's files are there",
            "name their folder with --data-dir or FAIRMP_DATA, or use --data embedded",
        )
    setting = experiment.QUICK if quick else experiment.Setting()
    setting = replace(setting, splits=splits or setting.splits)
    words = "under two minutes" if quick else "minutes, some ten for Pokec"
    print(f"This takes {words}, on two cores.", file=sys.stderr, flush=True)
    with (
        outputs.results(folder, overwrite=overwrite) as staging,
        bar(len(graphs) * setting.splits, "splits") as advance,
    ):
        records = experiment.run(
            graphs, setting, workers=workers or default_workers(), on_record=advance
        )
        again = " ".join(["fairmp", *sys.argv[1:]])
        tables = experiment.write(records, staging, command=again, absent=absent)
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    from fairmp.report.formats import rich_table

    console = Console(highlight=False)
    for table in tables:
        console.print(rich_table(table))
    console.print(f"Open {folder / 'report.html'}.")
