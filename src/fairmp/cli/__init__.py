"""The program ``fairmp``."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from types import FrameType
from typing import Any, NoReturn

import typer

from fairmp import outputs
from fairmp._version import __version__
from fairmp.cli.help import HELP, HELP_ALL, command_class, paragraphs
from fairmp.cli.options import expand
from fairmp.cli.output import say, spelling_of, typed_command, wrapped
from fairmp.errors import InputError, printable
from fairmp.secrets import without_password

COMMANDS = (
    *("demo", "audit", "train", "predict", "compare", "debias", "monitor", "tune", "shard"),
    *("report", "data"),
)
STOPPED, STOPPED_STATUS = "stopped; nothing was written", 130
HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)
STOPPING = (signal.SIGINT, signal.SIGTERM, HANGUP)
REMINDER_S = 0.5  # until an interrupt that was put off or swallowed is repeated
NO_ROOM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG),
)


def program(*names: str) -> typer.Typer:
    """Build the program with some of its commands; only their modules are imported."""
    app = typer.Typer(
        name="fairmp",
        help="Fair predictions on graphs: measure topology bias and remove it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP},
    )
    app.callback()(_options)
    for name in names:
        module = import_module(f"fairmp.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            settings: dict[str, Any] = {"help": paragraphs(module.command.__doc__)}
            if common := getattr(module, "COMMON", None):
                settings["cls"] = command_class(common)
                settings["context_settings"] = {"help_option_names": [*HELP, HELP_ALL]}
                settings["epilog"] = module.EPILOG
            app.command(name, **settings)(expand(module.command))
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
    typed = [word for word in sys.argv[1:2] if word in COMMANDS]
    run("fairmp", lambda: program(*(typed or COMMANDS)))


def run(name: str, build: Callable[[], typer.Typer]) -> NoReturn:
    """Build and run a program; wrong input ends in one line on standard error and status 2."""
    try:
        install_signal_handlers()
        configure_process(name)
        status = run_app(name, build())
    except KeyboardInterrupt:
        exit_with(name, STOPPED, STOPPED_STATUS)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f" ({error.filename})" if error.filename else ""
        exit_with(name, f"{error.strerror}{where}; free some space or give another folder", 1)
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        outputs.release()
        for number in STOPPING:  # nothing is left to remove while Python ends
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)
    sys.exit(status)


def install_signal_handlers() -> None:
    """Treat a request to end like Ctrl-C, so that temporary files are removed.

    A closed terminal is such a request, unless nohup has said otherwise.
    """
    for number in (*STOPPING, getattr(signal, "SIGALRM", signal.SIGTERM)):
        if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def configure_process(name: str) -> None:
    """Set up threads, garbage collection and warnings."""
    # OpenMP threads that spin while they wait for each other stall on a busy machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    gc.set_threshold(10_000)  # imports make many objects and no garbage: a sixth of their time
    atexit.register(gc.disable)
    warnings.formatwarning = lambda text, *_: wrapped(
        f"{name}: warning: {printable(without_password(' '.join(str(text).split())))}\n"
    )
    sys.excepthook = _print_traceback


def _print_traceback(*error: Any) -> None:
    """Print the traceback of a bug, without passwords that a driver's message may have."""
    text = "".join(traceback.format_exception(*error))
    print(printable(without_password(text)), end="", file=sys.stderr, flush=True)


def run_app(name: str, app: typer.Typer) -> int:
    """Run the command that was typed; return its status."""
    try:
        status = app(standalone_mode=False)
    except InputError as error:
        exit_with(name, error.message(spelling_of(typed_command(app))), 2)
    except Exception as error:
        # The classes of Typer's own errors depend on its version.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip().rstrip(".")
        if not message:  # no command was given, and the help has been printed
            sys.exit(2)
        exit_with(name, f"{message}{_typed_value(error)}; see --help", 2)
    if status == STOPPED_STATUS:  # how newer versions of Typer report Ctrl-C
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def exit_with(name: str, message: str, status: int) -> NoReturn:
    """Print one line on standard error and exit."""
    with suppress(OSError):  # the terminal is gone
        say(f"{name}: {' '.join(message.split())}")
    sys.exit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, but not during an import: modules would stay half-imported.

    Some libraries swallow the exception, so an alarm repeats it until the program stops.
    """
    is_reminder = number not in STOPPING
    if is_reminder and isinstance(sys.exc_info()[1], KeyboardInterrupt):
        return  # the program is stopping
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, REMINDER_S)
        if _is_importing(frame):
            return
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _typed_value(error: Exception) -> str:
    """The value typed for a wrong option, which Typer's message may leave out."""
    options = getattr(getattr(error, "param", None), "opts", ())
    for word, following in pairwise([*sys.argv[1:], ""]):
        option, equals, value = word.partition("=")
        if option in options and (equals or following):
            return f" (got {(value if equals else following)!r})"
    return ""
