"""The test nodes of a :class:`~fairmp.training.trainer.Run` as text, notebook HTML and plot."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from fairmp.report import evaluations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fairmp.training.run import Run


def text(run: Run) -> str:
    """The evaluation of the test nodes, and the epoch that was kept."""
    promise = f"\n{run.promise}" if run.promise else ""
    return f"{_title(run)}: {evaluations.text(run.test)}{promise}"


def html(run: Run) -> str:
    """The same as tables."""
    promise = f"<p>{escape(str(run.promise))}</p>" if run.promise else ""
    return f"<p>{_title(run)}</p>{evaluations.html(run.test)}{promise}"


def plot(run: Run, ax: Axes | None = None) -> Axes:
    """Draw the test nodes' decisions by group."""
    return evaluations.plot(run.test, ax)


def _title(run: Run) -> str:
    return f"Test nodes, epoch {run.history.best.epoch}"
