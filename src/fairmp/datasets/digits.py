"""Fast reader for one-digit columns: Pokec-z in 0.55 s instead of 1.3 s with pyarrow alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_MIN_COLUMNS = 32
_COMMA, _NEWLINE, _RETURN, _ZERO = 44, 10, 13, 48
_SCAN_BYTES, _BLOCK_ROWS = 1 << 20, 2048


def digit_tail(path: Path, limit: int) -> tuple[bytes, np.ndarray] | None:
    """Cut the columns of one-digit cells at the end of every row off a comma-separated file.

    A cell that is one byte in every row lies at the same distance from the end of every line, so
    that these columns can be copied as one block. Returns what is left of the rows, as lines, and
    the digits (n×k, uint8) of at most ``limit`` columns; None if there are too few.
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    pieces = range(0, len(raw), _SCAN_BYTES)
    found = [np.flatnonzero(raw[k : k + _SCAN_BYTES] == _NEWLINE) + k for k in pieces]
    ends = np.concatenate(found)
    if len(ends) and ends[-1] != len(raw) - 1:
        ends = np.append(ends, len(raw))
    if len(ends) < 2:
        return None
    starts, ends = ends[:-1] + 1, ends[1:] - (raw[ends[1:] - 1] == _RETURN)
    count = min(limit, _digit_cells(raw[starts[0] : ends[0]]))
    width = 2 * count
    if count < _MIN_COLUMNS or (ends - starts <= width).any():
        return None
    digits = np.empty((len(ends), count), dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(raw, width)
    for k in range(0, len(ends), _BLOCK_ROWS):
        # Two bytes per cell, a comma and a digit: XOR with ",0" leaves the digit alone.
        cells = windows[ends[k : k + _BLOCK_ROWS] - width].view("<u2") ^ (_COMMA | _ZERO << 8)
        if np.bitwise_or.reduce(cells, axis=None) & 0xFF or cells.max() > 9 << 8:
            return None
        digits[k : k + _BLOCK_ROWS] = cells >> 8
    # Each row from its start to its digits, where a comma becomes the newline.
    lengths = ends - width - starts + 1
    after = np.cumsum(lengths)
    text = raw[np.arange(after[-1]) + np.repeat(starts - (after - lengths), lengths)]
    text[after - 1] = _NEWLINE
    return text.tobytes(), digits


def _digit_cells(line: np.ndarray) -> int:
    """Count the one-digit cells at the end of a line, each with the comma before it."""
    pairs = line[len(line) % 2 :].reshape(-1, 2)[::-1]
    fits = (pairs[:, 0] == _COMMA) & (pairs[:, 1] >= _ZERO) & (pairs[:, 1] <= _ZERO + 9)
    return len(fits) if fits.all() else int(np.argmin(fits))
