"""Help of commands with many options: the ones people need first, all behind ``--help-all``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

HELP, HELP_ALL = ["-h", "--help"], "--help-all"


def paragraphs(docstring: str) -> str:
    """The paragraphs of a docstring, a line each, so that they wrap at the terminal's width."""
    text = inspect.cleandoc(docstring)
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def command_class(common: Sequence[str]) -> type[TyperCommand]:
    """A command whose ``--help`` shows only the parameters in ``common``, in their order."""

    class Command(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            if HELP_ALL not in sys.argv:
                shown = {name: place for place, name in enumerate(common)}
                self.params.sort(key=lambda param: shown.get(str(param.name), len(shown)))
                for param in self.params:
                    param.hidden = param.name not in shown  # type: ignore[attr-defined]
                    param.rich_help_panel = None  # type: ignore[attr-defined]
            super().format_help(ctx, formatter)

    return Command
