"""A progress bar where a person is looking, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(total: int, what: str, *, show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Show a bar; call what is given after each of ``total`` steps, with a word on how it went.

    Args:
        total: steps.
        what: what is going on.
        show: ``None`` shows it where standard error is a terminal.

    Example:
        >>> with bar(2, "counting") as advance:
        ...     for number in ("one", "two"):
        ...         advance(number)
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda text: shown.update(task, advance=1, description=text)
