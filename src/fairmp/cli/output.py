"""What commands print: results, arguments of the library as options, and commands as text.

The library names arguments (``num_layers``, ``{mode='batch'}``); what a command calls them is known
here alone.
"""

from __future__ import annotations

import ast
import json
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp.errors import Spelling, plural, printable, python_spelling
from fairmp.secrets import without_password

if TYPE_CHECKING:
    from fairmp.report.formats import Table

MAX_WIDTH = 10_000  # columns of a table
_STARTED = time.perf_counter()
# Parameters of commands that stand for an argument of another name; the first that a command has.
PARAMETERS = {
    "K": ["k"],
    "backbone": ["model"],
    "folder": ["out"],
    "graph": ["keep_graph"],
    "label": ["nodes"],
    "labels": ["label"],
    "num_layers": ["layers"],
    "pretrain_classifier": ["pretrain"],
    "path": ["model", "run", "apply", "out"],
    "root": ["data_dir"],
    "sample_weight": ["weight"],
    "scores": ["predictions"],
    "sens": ["sensitive", "nodes"],
    "sensitive": ["nodes"],
    "sensitive_features": ["sensitive"],
    "split_seed": ["splits"],
    "split_seeds": ["splits"],
    "y": ["label", "nodes"],
}
# What readers choose on the page of debias or train, or what would stand in the way of a new run.
CHOSEN_ON_PAGE = (
    *("criterion", "target", "on", "temperature", "solver", "lambda_f"),
    *("out", "save", "overwrite"),
)


def elapsed() -> float:
    """Seconds since the program started."""
    return time.perf_counter() - _STARTED


def say(text: str) -> None:
    """Print a line to standard error."""
    print(wrapped(printable(without_password(text))), file=sys.stderr, flush=True)


def wrapped(text: str) -> str:
    """A line for standard error, broken between words where that is a terminal."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def starting(what: str) -> None:
    """Say what is being done before anything is imported, where a person waits for it."""
    if sys.stderr.isatty():
        say(f"fairmp: {what} …")


def report(as_json: bool, record: Any, *parts: Any) -> None:
    """Print a record for programs, or parts for people."""
    print_json(record) if as_json else show(*parts)


def print_json(content: Any) -> None:
    """Print a result for programs."""
    typer.echo(json.dumps(content, ensure_ascii=False))


def show(*parts: Any) -> None:
    """Print text and tables as wide as the terminal; lines as they are where there is none."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, str):
            line = printable(without_password(part))
            console.print(line, markup=False, soft_wrap=not console.is_terminal)
            continue
        # A table that does not fit is left to the terminal, which breaks its lines and hides none.
        unlimited = console.options.update(max_width=MAX_WIDTH)
        width = Measurement.get(console, unlimited, part).minimum
        wide = Console(highlight=False, width=max(width, console.width))
        wide.print(part, markup=False)


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


def option_name(parameter: str) -> str:
    """The option of a parameter: ``--sensitive-bins`` for ``sensitive_bins``."""
    return f"--{parameter.replace('_', '-')}"


def typed_here(context: typer.Context, name: str) -> bool:
    """Whether an option was given, instead of its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def spelling_of(command: Any) -> Spelling:
    """How arguments are written for users of a command; ones it does not have, as in Python."""
    parameters = {parameter.name: parameter for parameter in command.params}

    def spell(name: str, value: str | None) -> str:
        names = (name, *PARAMETERS.get(name, ()))
        parameter = next((parameters[n] for n in names if n in parameters), None)
        if parameter is None:
            return python_spelling(name, value)
        if parameter.param_type_name == "argument":
            return str(parameter.name).upper()
        if value is None:
            return str(parameter.opts[0])
        try:
            return shlex.join(_words(parameter, ast.literal_eval(value)))
        except (ValueError, SyntaxError):  # as in {target=…}
            return f"{parameter.opts[0]} {value}"

    return spell


def typed_command(app: typer.Typer) -> Any:
    """The command of a program that was typed, or the program itself."""
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return command


def rerun_command(*program: str) -> str:
    """Return the command that was typed, quoted for a shell, without passwords."""
    return shlex.join([*(program or ["fairmp"]), *map(without_password, sys.argv[1:])])


def adjustable_command(context: typer.Context, *choices: str) -> str:
    """The command that was typed, with placeholders for what readers of its page choose.

    As in ``fairmp debias loans.csv --sensitive sex --criterion {criterion} --target {target}``.

    Args:
        context: the command's options.
        choices: names of the placeholders and their options.
    """
    words = ["fairmp", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        if typed_here(context, name) and name not in CHOSEN_ON_PAGE:
            words += _words(parameter, context.params[name])
    return _with_placeholders(map(without_password, words), choices)


def train_command(options: Mapping[str, object], *choices: str) -> str:
    """``fairmp train`` with options by parameter, or with placeholders for choices of a page."""
    words = ["fairmp", "train"]
    for name, value in options.items():
        if not (choices and name in CHOSEN_ON_PAGE):
            for item in value if isinstance(value, list) else [value]:
                words += [option_name(name), str(item)]
    return _with_placeholders(words, choices)


def _with_placeholders(words: Iterable[str], choices: Iterable[str]) -> str:
    """A command, quoted for a shell, and options whose values are placeholders."""
    return " ".join([shlex.join(words), *(f"{option_name(name)} {{{name}}}" for name in choices)])


def _words(parameter: Any, value: object) -> list[str]:
    """Words that give a parameter a value: ``--drop age``, ``--no-picture`` or ``table.csv``."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if parameter.param_type_name == "argument":
        return list(map(str, values))
    if parameter.is_flag:
        return [parameter.opts[0] if value else (parameter.secondary_opts or parameter.opts)[0]]
    if not parameter.multiple:
        values = [",".join(map(str, values))]
    return [word for item in values for word in (parameter.opts[0], str(item))]
