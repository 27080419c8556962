"""The program: ``fairmp``, or ``python -m fairmp``."""

from __future__ import annotations

import signal


def main() -> None:
    """Import and run the program; Ctrl-C while it is imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fairmp.cli import main as program

    program()


if __name__ == "__main__":
    main()
