"""The program ``fairmp``."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import typer

from fairmp import outputs
from fairmp._version import __version__
from fairmp.cli.options import expand
from fairmp.errors import InputError

COMMANDS = (
    *("demo", "audit", "train", "predict", "compare", "debias", "monitor", "tune", "shard"),
    *("report", "data"),
)
STOPPED = "stopped; nothing was written"
NO_ROOM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG),
)


def program(*names: str) -> typer.Typer:
    """Build the program with some of its commands; only their modules are imported."""
    app = typer.Typer(
        name="fairmp",
        help="Fair predictions on graphs: measure topology bias, and propagate without it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in names:
        module = import_module(f"fairmp.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(expand(module.command))
    return app


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairmp {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run ``fairmp``."""
    chosen = [word for word in sys.argv[1:2] if word in COMMANDS]
    run("fairmp", lambda: program(*(chosen or COMMANDS)))


def run(name: str, build: Callable[[], typer.Typer]) -> NoReturn:
    """Build and run a program; wrong input ends in one line on standard error and status 2."""
    # A request to end is treated like Ctrl-C, so that temporary files are removed.
    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGALRM", signal.SIGTERM)):
        signal.signal(number, _stop)
    # OpenMP threads that spin while they wait for each other stall on a busy machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a sixth of their time
    atexit.register(gc.disable)
    warnings.formatwarning = lambda text, *_: f"{name}: warning: {' '.join(str(text).split())}\n"
    app = build()
    leave = partial(_exit, name)
    try:
        status = app(standalone_mode=False)
    except InputError as error:
        leave(_as_typed(error, typer.main.get_command(app)), 2)
    except KeyboardInterrupt:
        leave(STOPPED, 130)
    except BrokenPipeError:
        # The reader of our output is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f" ({error.filename})" if error.filename else ""
        leave(f"{error.strerror}{where}; free some space or give another folder", 1)
    except Exception as error:
        # The class of Typer's own errors depends on its version; they have this method.
        message = getattr(error, "format_message", None)
        if message is None:
            if type(error).__name__ == "Abort":
                leave(STOPPED, 130)
            raise
        if not message().strip():  # no command was given, and the help has been printed
            sys.exit(2)
        leave(f"{message().rstrip('.')}{_given(error)}; see --help", 2)
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        outputs.release()
    if status == 130:  # how newer versions of Typer report Ctrl-C
        leave(STOPPED, 130)
    sys.exit(status if isinstance(status, int) else 0)


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop; a little later amid an import, and again where a library swallowed it."""
    again = number not in (signal.SIGINT, signal.SIGTERM)
    if again and isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return  # it is stopping
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        while frame is not None:
            if "importlib" in frame.f_code.co_filename:
                return
            frame = frame.f_back
    raise KeyboardInterrupt


def _as_typed(error: InputError, command: Any) -> str:
    """The message with options of the command instead of arguments: --epochs for epochs."""
    for word in sys.argv[1:]:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    options = {p.name: p.opts[0] for p in command.params if p.opts[0].startswith("--")}

    def spell(name: str, value: str | None) -> str:
        option = options.get({"num_layers": "layers"}.get(name, name.lower()), name)
        return option if value in (None, "True") else f"{option} {value.strip(chr(39))}"

    return error.message(spell)


def _given(error: Exception) -> str:
    """Return the value typed for a wrong option, which Typer's message may leave out."""
    words = " ".join(sys.argv[1:]).replace("=", " ").split()
    for option in getattr(getattr(error, "param", None), "opts", ()):
        if option in words[:-1]:
            return f" (got {words[words.index(option) + 1]!r})"
    return ""


def _exit(name: str, message: str, status: int) -> NoReturn:
    print(f"{name}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
