"""The program ``fairmp``."""

from __future__ import annotations

import os
import signal
import sys

import typer

from fairmp._version import __version__
from fairmp.cli import (
    audit,
    bench,
    compare,
    data,
    debias,
    demo,
    predict,
    report,
    reproduce,
    shard,
    train,
    tune,
)
from fairmp.errors import InputError

_STOPPED = "stopped; nothing was written"

app = typer.Typer(
    name="fairmp",
    help="Fair predictions on graphs: measure topology bias, and propagate without it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.command)
app.command("audit")(audit.command)
app.command("train")(train.command)
app.command("predict")(predict.command)
app.command("compare")(compare.command)
app.command("debias")(debias.command)
app.command("tune")(tune.command)
app.command("shard")(shard.command)
app.command("bench")(bench.command)
app.command("report")(report.command)
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairmp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    pass


def main() -> None:
    """Run the program; wrong input ends in one line on standard error and status 2."""
    # Asked to end, the program tidies up as it does for Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = app(standalone_mode=False)
    except InputError as error:
        _leave(_as_typed(str(error)), 2)
    except KeyboardInterrupt:
        _leave(_STOPPED, 130)
    except BrokenPipeError:
        # The reader of our output has gone: there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        # Typer's own errors know how to say themselves, and which class they are depends on its
        # version.
        say = getattr(error, "format_message", None)
        if say is None:
            if type(error).__name__ == "Abort":
                _leave(_STOPPED, 130)
            raise
        message = say()
        if not message.strip():  # no command was given, and the help is on the screen already
            sys.exit(2)
        _leave(f"{message.rstrip('.')}{_given(error)}; see 'fairmp --help'", 2)
    if status == 130:  # what newer versions of Typer make of Ctrl-C
        _leave(_STOPPED, 130)
    sys.exit(status if isinstance(status, int) else 0)


def _as_typed(message: str) -> str:
    """Say of an option what the library says of an argument: of --epochs what of epochs."""
    argument, colon, rest = message.partition(": ")
    command = typer.main.get_command(app)
    for word in sys.argv[1:]:
        commands = getattr(command, "commands", {})
        if word not in commands:
            break
        command = commands[word]
    name = {"num_layers": "layers"}.get(argument, argument.lower())
    for parameter in command.params:
        if colon and parameter.name == name and parameter.opts[0].startswith("--"):
            return f"{parameter.opts[0]}: {rest}"
    return message


def _given(error: Exception) -> str:
    """Name the value that was typed for a wrong option, which Typer's message may leave out."""
    for option in getattr(getattr(error, "param", None), "opts", ()):
        for word, following in zip(sys.argv[1:], [*sys.argv[2:], ""], strict=True):
            if word == option and following:
                return f" (got {following!r})"
            if word.startswith(f"{option}="):
                return f" (got {word.removeprefix(f'{option}=')!r})"
    return ""


def _leave(message: str, status: int) -> None:
    line = " ".join(message.split())
    print(f"fairmp: {line}", file=sys.stderr)
    sys.exit(status)
