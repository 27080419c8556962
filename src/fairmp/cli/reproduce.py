"""``fairmp reproduce``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.display import progress

if TYPE_CHECKING:
    from torch_geometric.data import Data

app = typer.Typer(
    help="Run the paper's experiments again, one by name.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_STEPS = 4


@app.callback()
def _group() -> None:
    """Run the paper's experiments again, one by name."""


@app.command("synthetic")
def synthetic(
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller run that shows its shape, in a minute.")
    ] = False,
    data_dir: options.DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the graphs.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Bias under message passing on graphs whose truth is known, against the theory.

    Data sets whose files are there are placed on the phase diagram.
    """
    folder = outputs.free_name("fairmp-synthetic") if out is None else out
    outputs.check_free(folder, overwrite=overwrite)

    from fairmp.experiments import synthetic as experiment
    from fairmp.experiments import synthetic_page

    length = "about a minute" if quick else "about 15 minutes"
    print(f"This takes {length} on two cores.", file=sys.stderr)
    graphs, absent = _graphs(data_dir)
    with outputs.results(folder, overwrite=overwrite) as staging:
        with progress(100 * _STEPS, "experiments") as advance:
            seen = {"": 0}

            def tell(name: str, done: int, total: int) -> None:
                reached = 100 * done // total
                for _ in range(reached - seen.setdefault(name, 0)):
                    advance(name)
                seen[name] = reached

            summary = experiment.run(staging, quick=quick, seed=seed, graphs=graphs, progress=tell)
        again = f"fairmp reproduce synthetic --seed {seed}" + " --quick" * quick
        text = synthetic_page.page(summary, staging, again)
        (staging / "report.html").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(summary, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="How often each form says what is measured", title_justify="left")
    header, rows = synthetic_page.agreement(summary)
    for column in header:
        table.add_column(column, justify="left" if column == "form" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(synthetic_page.witness(summary))
    if absent:
        console.print(f"Not placed, their files are not there: {', '.join(absent)}.")
    console.print(f"Open {folder / 'report.html'}.")


def _graphs(data_dir: Path | None) -> tuple[list[Data], list[str]]:
    """The benchmark graphs whose files are there, and the names of the others."""
    from fairmp.datasets import load
    from fairmp.datasets.raw import listing
    from fairmp.errors import InputError

    graphs, absent = [], []
    for entry in listing(data_dir):
        if not entry.found:
            absent.append(entry.source.title)
            continue
        try:
            graphs.append(load(entry.source.key, data_dir))
        except InputError as error:
            absent.append(f"{entry.source.title} ({error})")
    return graphs, absent
