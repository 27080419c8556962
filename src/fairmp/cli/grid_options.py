"""Options and messages that ``compare``, ``tune``, ``reproduce`` and ``demo`` share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairmp.report.formats import Table

network = partial(typer.Option, rich_help_panel="Network and training")

DataNames = Annotated[
    list[str] | None,
    typer.Option(
        help="A data set ('fairmp data list' names them), 'embedded', or 'embedded:3000' for "
        "3,000 nodes; may be repeated."
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small run on the embedded network, in under two minutes.")
]
Splits = Annotated[
    int | None, typer.Option(min=1, help="Number of splits; by default the experiment's.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes; by default one per core, at most 8.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]

Epochs = Annotated[int, network(help="Maximum number of epochs.")]
Lr = Annotated[float, network(help="Learning rate.")]
WeightDecay = Annotated[float, network(help="Weight decay.")]
Hidden = Annotated[int, network(help="Hidden width.")]
Layers = Annotated[int, network(help="Number of layers.")]
Dropout = Annotated[float, network(help="Dropout probability.")]
Patience = Annotated[int | None, network(help="Stop after this many epochs without a gain.")]
EvalEvery = Annotated[int, network(help="Epochs between evaluations on validation nodes.")]
Pretrain = Annotated[int, network(help="Epochs before an adversary joins.")]


def rerun_command() -> str:
    """Return the command that was typed, quoted for a shell."""
    return shlex.join(["fairmp", *sys.argv[1:]])


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Format a length of time."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def print_tables(tables: Sequence[Table], folder: Path, *, leave_out: Sequence[str] = ()) -> None:
    """Print tables, and where the page is."""
    from rich.console import Console

    from fairmp.report.formats import rich_table

    console = Console(highlight=False)
    for table in tables:
        console.print(rich_table(table, leave_out=leave_out))
    console.print(f"Open {folder / 'report.html'}.")
