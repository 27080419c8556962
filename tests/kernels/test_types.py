from __future__ import annotations

import torch

from fairmp.kernels.types import CSR, NO_CLIP


def test_csr_to_moves_every_part_and_keeps_missing_weights() -> None:
    rows = CSR(torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([2.0]))
    moved = rows.to("meta")
    assert {part.device.type for part in moved if part is not None} == {"meta"}
    assert CSR(rows.row, rows.col).to("meta").weight is None


def test_no_clip_bounds_are_infinite() -> None:
    assert NO_CLIP.limit == NO_CLIP.floor == float("inf")
