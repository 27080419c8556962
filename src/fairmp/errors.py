"""The one error a wrong input raises."""

from __future__ import annotations


class InputError(ValueError):
    """A wrong input: one line that names the argument, its value and the way out.

    The program prints the message and exits with status 2; everything else that escapes is a bug
    and keeps its traceback.

    Example:
        >>> raise InputError("target: 1.5 is outside [0, 1]; give the largest gap you accept")
        Traceback (most recent call last):
        fairmp.errors.InputError: target: 1.5 is outside [0, 1]; give the largest gap you accept
    """
