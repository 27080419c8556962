"""Table 1 of the paper: graph neural networks without any correction, and FMP."""

from __future__ import annotations

from functools import partial

from fairmp.comparison import page

write = partial(
    page.write,
    title="Graph neural networks and FMP",
    summary="How far apart each network's propagation leaves the groups, and how far FMP does. "
    "The paper's own figures for this table are not available, so none are shown.",
)
