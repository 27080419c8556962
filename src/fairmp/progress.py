"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(total: int, what: str, *, show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Show a bar of ``total`` steps; yield a function that advances it and names the step.

    By default there is a bar if standard error is a terminal.

    Example:
        >>> with bar(2, "counting") as advance:
        ...     for number in ("one", "two"):
        ...         advance(number)
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    steps = TextColumn("{task.completed}/{task.total} {task.description}")
    columns = TextColumn(what), BarColumn(), steps, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
