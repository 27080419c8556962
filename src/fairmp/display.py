"""How results are shown: as text, as HTML in notebooks, and as plots; and a progress bar.

A class of results holds numbers and names the module of :mod:`fairmp.report` that shows them::

    @dataclass(frozen=True)
    class Evaluation(Displayed, renderer="fairmp.report.evaluations"):
        accuracy: float

The module has the functions ``text(result)``, ``html(result)`` and ``plot(result, ax)``, and is
imported when a result is first shown: results stay light, and are in a lower layer than reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Renderer(Protocol):
    def text(self, result: Any) -> str: ...
    def html(self, result: Any) -> str: ...
    def plot(self, result: Any, ax: Axes | None) -> Axes: ...


class Displayed:
    """Base of result classes: ``print``, the display of notebooks, and ``plot``.

    Args:
        renderer: name of the module that shows the class; inherited by subclasses.
        summary: attributes that ``repr`` shows, for dataclasses with ``repr=False``.
    """

    _renderer: ClassVar[str]
    _summary: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(
        cls, renderer: str | None = None, summary: tuple[str, ...] = (), **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if renderer is not None:
            cls._renderer = renderer
        cls._summary = summary or cls._summary

    def __repr__(self) -> str:
        return _short_repr(self, self._summary)

    def __str__(self) -> str:
        return self._show().text(self)

    def _repr_html_(self) -> str:
        return self._show().html(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the result; return the axes.

        Args:
            ax: matplotlib axes to draw on; new ones by default.
        """
        return self._show().plot(self, ax)

    def _show(self) -> _Renderer:
        return cast(_Renderer, import_module(self._renderer))


def _short_repr(value: object, attributes: Iterable[str]) -> str:
    """A ``repr`` of some attributes, numbers in four digits."""
    shown = (f"{name}={_short(getattr(value, name))}" for name in attributes)
    return f"{type(value).__name__}({', '.join(shown)})"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_short(part)}' for key, part in value.items())}}}"
    if is_dataclass(value) and not isinstance(value, Displayed | type):
        return _short_repr(value, [field.name for field in fields(value)])
    return repr(value)


@contextmanager
def bar(total: int, title: str, *, show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of ``total`` steps; yield a function that advances it and names the step.

    It is on standard error; by default there is one if that is a terminal.

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
    columns = TextColumn(title), BarColumn(), steps, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda step: progress.update(task, advance=1, description=step)
