"""What commands print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp.cli.spelling import rerun_command
from fairmp.errors import plural

if TYPE_CHECKING:
    from fairmp.report.formats import Table

_STARTED = time.perf_counter()


def elapsed() -> float:
    """Seconds since the program started."""
    return time.perf_counter() - _STARTED


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def report(as_json: bool, record: Any, *parts: Any) -> None:
    """Print a record for programs, or parts for people."""
    print_json(record) if as_json else show(*parts)


def print_json(content: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(content, ensure_ascii=False))


def show(*parts: Any) -> None:
    """Print lines as they are, and text and tables of rich as wide as the terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in parts:
        console.print(part, markup=False, soft_wrap=isinstance(part, str))


def tables(shown: Sequence[Table], *, leave_out: Sequence[str] = ()) -> list[Any]:
    """Tables for the terminal."""
    from fairmp.report.formats import rich_table

    return [rich_table(table.without(leave_out)) for table in shown]


def open_page(folder: Path) -> str:
    """Say where the page is."""
    return f"Open {folder / 'report.html'}."


def track(tracker: str | None, records: Sequence[dict[str, Any]], folder: Path) -> None:
    """Log records to a tracker, if one was named."""
    if tracker is not None:
        from fairmp.comparison import tracking

        count = tracking.log(records, folder, command=rerun_command())
        say(f"{plural(count, 'run')} logged to {tracker}.")
