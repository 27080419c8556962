"""Propagation on CUDA: a tile of rows a program, long rows by the whole program, hubs by many."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fairmp.kernels.cuda import edges as cuda_edges
from fairmp.kernels.cuda.launch import launch

CHUNK = 4096  # edges of one program at most; a row with more of them is a hub
TILE = 1024  # numbers a program has under way at once
LONG = 8  # times round the lanes before a row is left to the whole program


class Hubs(NamedTuple):
    """Rows of more than ``CHUNK`` edges, cut into pieces.

    Attributes:
        rows: their numbers (h).
        first: the first piece of each, and the number of pieces (h+1).
        begin: the first edge of each piece.
        end: the edge after its last.
    """

    rows: Tensor
    first: Tensor
    begin: Tensor
    end: Tensor


def find_hubs(row: Tensor) -> Hubs | None:
    """Find the hubs of a graph from its row pointers; one look by the host."""
    length = row[1:] - row[:-1]
    rows = (length > CHUNK).nonzero().flatten()
    if not rows.numel():
        return None
    begin, end = row[rows].long(), row[rows + 1].long()
    pieces = (end - begin + CHUNK - 1) // CHUNK
    first = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    hub = torch.repeat_interleave(pieces)
    starts = begin[hub] + CHUNK * (torch.arange(hub.numel(), device=row.device) - first[hub])
    return Hubs(rows, first, starts, torch.minimum(starts + CHUNK, end[hub]))


class HubCache:
    """The hubs of the graphs in use, forgotten with their row pointers."""

    def __init__(self) -> None:
        self._held: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def get(self, row: Tensor) -> Hubs | None:
        """Return the graph's hubs, found anew if its row pointers were written to."""
        version = -1 if row.is_inference() else row._version
        held = self._held.get(row)
        if held is None or held[0] != version:
            held = (version, find_hubs(row))
            self._held[row] = held
        hubs: Hubs | None = held[1]
        return hubs


_hubs = HubCache()


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
    """Propagate: γX + (1−γ)·diag(left)·A·diag(right)·F."""
    rows, classes = row.numel() - 1, f.size(1)
    # Gathered beside f, edge by edge, it would cost as much as f does.
    f = f.contiguous() * right.unsqueeze(1)
    out = torch.empty((rows, classes), dtype=f.dtype, device=f.device)
    if not rows:
        return out
    x = None if x is None else x.contiguous()
    lanes = _lanes(col.numel() / rows)
    padded = triton.next_power_of_2(classes)
    height = max(1, TILE // (lanes * padded))
    launch(
        cuda_edges.rows,
        (triton.cdiv(rows, height),),
        row,
        col,
        weight,
        left,
        f,
        x,
        out,
        gamma,
        rows,
        C=classes,
        CP=padded,
        R=height,
        L=lanes,
        LONG=LONG * lanes,
        CHUNK=CHUNK,
    )
    hubs = _hubs.get(row)
    if hubs is not None:
        _aggregate_hubs(hubs, col, weight, left, f, x, out, gamma)
    return out


def _aggregate_hubs(
    hubs: Hubs,
    col: Tensor,
    weight: Tensor | None,
    left: Tensor,
    f: Tensor,
    x: Tensor | None,
    out: Tensor,
    gamma: float,
) -> None:
    classes = f.size(1)
    padded = triton.next_power_of_2(classes)
    pieces = hubs.begin.numel()
    sums = torch.empty((pieces, classes), dtype=torch.float64, device=f.device)
    block = max(16, TILE // padded)
    launch(
        cuda_edges.pieces,
        (pieces,),
        hubs.begin,
        hubs.end,
        col,
        weight,
        f,
        sums,
        C=classes,
        CP=padded,
        B=block,
    )
    launch(
        cuda_edges.join,
        (hubs.rows.numel(),),
        hubs.rows,
        hubs.first,
        sums,
        left,
        x,
        out,
        gamma,
        C=classes,
        CP=padded,
        B=block,
    )


def _lanes(mean: float) -> int:
    """Threads a row: half the mean, since most rows of most graphs are shorter than it."""
    return min(32, max(4, triton.next_power_of_2(int(mean / 2))))
