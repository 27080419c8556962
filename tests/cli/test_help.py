"""Help of the commands."""

from __future__ import annotations

import pytest
import typer

from fairmp.cli import COMMANDS, program
from fairmp.cli.help import paragraphs


def test_paragraphs_joins_lines_and_keeps_paragraphs() -> None:
    assert paragraphs("One\n    two.\n\n    Three\n    four.\n    ") == "One two.\n\nThree four."


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "data"])
def test_help_of_commands_has_no_line_breaks_within_paragraphs(name: str) -> None:
    group = typer.main.get_command(program(name))
    text = group.commands[name].help  # type: ignore[attr-defined]
    assert text
    assert all("\n" not in part for part in text.split("\n\n"))
