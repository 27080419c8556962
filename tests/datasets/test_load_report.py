from __future__ import annotations

from torch_geometric.data import Data

from fairmp.datasets.load_report import LoadReport, messages


def test_lines_leave_out_counts_of_zero():
    report = LoadReport(
        nodes=1200,
        edge_rows=9,
        dangling=2,
        edges=4,
        unknown_labels=1,
        missing={f"c{k}": k for k in range(1, 11)},
    )
    text = str(report)
    assert text.splitlines()[0] == "1,200 nodes, 4 undirected edges from 9 edge rows"
    assert "2 dangling edge rows dropped" in text
    assert "1 node without a label" in text
    assert "c10 10, c9 9" in text
    assert "and 2 more columns" in text
    assert "self-loop" not in text


def test_messages_of_a_graph_without_a_report_are_none() -> None:
    report = LoadReport(nodes=3, notes=["a note"])
    assert messages(Data(report=report)) == report.lines()
    assert messages(Data()) == []
