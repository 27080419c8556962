"""Commands in the documentation exist, with the options they are shown with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from fairmp.cli import COMMANDS, program

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```(\w*)\n(.*?)```|`([^`\n]+(?:\n[^`\n]+)?)`", re.DOTALL)
CALL = re.compile(r"(?<!from )(?<![\w./-])fairmp ([a-z]+)((?:[^\n]|\\\n)*)")


def calls(text: str) -> list[tuple[str, list[str]]]:
    """The commands in code, each with the options it is called with."""
    found = []
    for language, block, inline in CODE.findall(text):
        if language not in ("", "console", "yaml"):
            continue
        lines = (block or inline.replace("\n", " ")).replace("\\\n", " ")
        for name, arguments in CALL.findall(lines):
            found.append((name, re.findall(r"(?<=\s)--[\w-]+", arguments.split(" # ")[0])))
    return found


def options_of(name: str) -> set[str]:
    """All options of a command, those of its subcommands included."""
    group: Any = typer.main.get_command(program(name))
    command = group.commands[name]
    commands = [command, *getattr(command, "commands", {}).values()]
    return {
        word
        for one in commands
        for parameter in one.params
        for word in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}


def test_calls_reads_blocks_and_inline_code() -> None:
    text = (
        "```console\n$ fairmp train --a 1 \\\n    --b\n$ ls --c\n```\nand `fairmp data list --d`."
    )
    assert calls(text) == [("train", ["--a", "--b"]), ("data", ["--d"])]


def test_commands_in_the_documentation_have_their_options() -> None:
    wrong = []
    checked = 0
    options: dict[str, set[str]] = {}
    for page in PAGES:
        for name, given in calls(page.read_text(encoding="utf-8")):
            if name not in COMMANDS:
                wrong.append((page.name, name, "no such command"))
                continue
            options.setdefault(name, options_of(name))
            wrong += [(page.name, name, word) for word in given if word not in options[name]]
            checked += 1
    assert wrong == []
    assert checked > 100


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_pages_name_the_commands_to_type(page: str) -> None:
    names = {name for name, _ in calls((ROOT / page).read_text(encoding="utf-8"))}
    assert {"audit", "train"} <= names
