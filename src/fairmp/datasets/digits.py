"""Read the many one-digit columns that a wide node table ends in, without parsing them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_WORTH_IT = 32
_COMMA, _NEWLINE, _RETURN, _ZERO = 44, 10, 13, 48
_PIECE, _ROWS = 1 << 20, 2048


def digit_tail(path: Path, limit: int) -> tuple[bytes, np.ndarray] | None:
    r"""Cut the columns of one-digit cells that every row ends in off a comma-separated file.

    A cell that is one byte in every row lies at the same distance from the end of every line, so
    the columns are cut out as a block. Nearly all of Pokec's columns are such cells, and a parser
    spends nearly all of its time on them.

    Args:
        path: The file, with a header line.
        limit: The most columns to take, from the right.

    Returns:
        What is left of the rows, as lines, and the digits (n×k, uint8); or None where there are
        too few such columns to matter.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "a.csv"
        ...     _ = file.write_text("id," + ",".join("a" * 40) + "\n7," + ",".join("01" * 20))
        ...     heads, digits = digit_tail(file, limit=40)
        >>> heads, digits[:, :4].tolist()
        (b'7\n', [[0, 1, 0, 1]])
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    pieces = range(0, len(raw), _PIECE)
    ends = np.concatenate([np.flatnonzero(raw[k : k + _PIECE] == _NEWLINE) + k for k in pieces])
    if len(ends) and ends[-1] != len(raw) - 1:
        ends = np.append(ends, len(raw))
    if len(ends) < 2:
        return None
    starts, ends = ends[:-1] + 1, ends[1:] - (raw[ends[1:] - 1] == _RETURN)
    count = min(limit, _digit_cells(raw[starts[0] : ends[0]]))
    width = 2 * count
    if count < _WORTH_IT or (ends - starts <= width).any():
        return None
    digits = np.empty((len(ends), count), dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(raw, width)
    for k in range(0, len(ends), _ROWS):
        # Two bytes a cell, a comma and a digit: what they leave of ",0" is the digit alone.
        cells = windows[ends[k : k + _ROWS] - width].view("<u2") ^ (_COMMA | _ZERO << 8)
        if np.bitwise_or.reduce(cells, axis=None) & 0xFF or cells.max() > 9 << 8:
            return None
        digits[k : k + _ROWS] = cells >> 8
    return _heads(raw, starts, ends - width), digits


def _digit_cells(line: np.ndarray) -> int:
    """Count the cells of one digit at the end of a line, each with the comma before it."""
    pairs = line[len(line) % 2 :].reshape(-1, 2)[::-1]
    fits = (pairs[:, 0] == _COMMA) & (pairs[:, 1] >= _ZERO) & (pairs[:, 1] <= _ZERO + 9)
    return len(fits) if fits.all() else int(np.argmin(fits))


def _heads(raw: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bytes:
    """Copy the pieces from each start to each end, a line each; a comma stands at the end."""
    lengths = ends - starts + 1
    after = np.cumsum(lengths)
    text = raw[np.arange(after[-1]) + np.repeat(starts - (after - lengths), lengths)]
    text[after - 1] = _NEWLINE
    return text.tobytes()
