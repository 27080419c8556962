"""Table 1 of the paper: graph neural networks without any correction, and FMP."""

from __future__ import annotations

from functools import partial

from fairmp.comparison import page
from fairmp.report.formats import Table
from fairmp.reproduction import paper


def _tables(found: page.Comparison) -> list[Table]:
    claims = paper.claims_table(paper.table1_claims(found.records))
    return [*paper.side_by_side(found.records), claims]


write = partial(
    page.write,
    title="Graph neural networks and FMP",
    summary="How far apart each network's propagation leaves the groups, and how far FMP does, "
    "beside the paper's figures.",
    more=_tables,
    note="The paper's ± is a standard deviation of five runs on one split; ours is an interval of "
    f"the mean. {paper.VERDICTS}",
)
