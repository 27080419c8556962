"""Propagation on CUDA: one tile of rows per program, hubs over several programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fairmp.kernels.cuda import edges
from fairmp.kernels.cuda.launch import launch

MAX_ROW_EDGES = 4096  # of one program; a row with more is a hub
TILE_NUMBERS = 1024  # that a program has in flight at once
LONG_ROW_LOOPS = 8  # over the lanes of a row, before it is left to the whole program


class Hubs(NamedTuple):
    """Rows of more than ``MAX_ROW_EDGES`` edges, cut into pieces.

    Attributes:
        rows: their indices (h).
        first: the first piece of each, and the number of pieces (h+1).
        begin: the first edge of each piece.
        end: the edge after its last.
    """

    rows: Tensor
    first: Tensor
    begin: Tensor
    end: Tensor


def find_hubs(row: Tensor) -> Hubs | None:
    """Find the hubs of a graph from its row pointers; synchronises with the host."""
    length = row[1:] - row[:-1]
    rows = (length > MAX_ROW_EDGES).nonzero().flatten()
    if not rows.numel():
        return None
    begin, end = row[rows].long(), row[rows + 1].long()
    pieces = (end - begin + MAX_ROW_EDGES - 1) // MAX_ROW_EDGES
    first = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    hub = torch.repeat_interleave(pieces)
    number = torch.arange(hub.numel(), device=row.device) - first[hub]
    starts = begin[hub] + MAX_ROW_EDGES * number
    return Hubs(rows, first, starts, torch.minimum(starts + MAX_ROW_EDGES, end[hub]))


# Version of the row pointers, and their hubs; forgotten with the graph.
_hubs: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _cached_hubs(row: Tensor) -> Hubs | None:
    version = -1 if row.is_inference() else row._version
    found: tuple[int, Hubs | None] | None = _hubs.get(row)
    if found is None or found[0] != version:
        found = _hubs[row] = (version, find_hubs(row))
    return found[1]


def aggregate(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    left: Tensor,
    right: Tensor,
    f: Tensor,
    x: Tensor | None,
    gamma: float,
) -> Tensor:
    """Propagate, with a skip to the input."""
    rows, classes = row.numel() - 1, f.size(1)
    # Scaled beforehand: gathering the scales edge by edge would cost as much as gathering f.
    f = f.contiguous() * right.unsqueeze(1)
    out = torch.empty((rows, classes), dtype=f.dtype, device=f.device)
    if not rows:
        return out
    x = None if x is None else x.contiguous()
    # Threads per row: half the mean degree, since most rows of most graphs are shorter than it.
    lanes = min(32, max(4, triton.next_power_of_2(int(col.numel() / rows / 2))))
    padded = triton.next_power_of_2(classes)
    height = max(1, TILE_NUMBERS // (lanes * padded))
    sizes: dict[str, Any] = {"C": classes, "CP": padded}
    limits = {"R": height, "L": lanes, "LONG": LONG_ROW_LOOPS * lanes, "CHUNK": MAX_ROW_EDGES}
    tiles = (triton.cdiv(rows, height),)
    launch(edges.rows, tiles, row, col, weight, left, f, x, out, gamma, rows, **sizes, **limits)
    hubs = _cached_hubs(row)
    if hubs is not None:
        sizes["B"] = max(16, TILE_NUMBERS // padded)
        pieces = hubs.begin.numel()
        sums = torch.empty((pieces, classes), dtype=torch.float64, device=f.device)
        launch(edges.pieces, (pieces,), hubs.begin, hubs.end, col, weight, f, sums, **sizes)
        count = (hubs.rows.numel(),)
        launch(edges.join, count, hubs.rows, hubs.first, sums, left, x, out, gamma, **sizes)
    return out
