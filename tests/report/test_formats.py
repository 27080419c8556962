from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest

from fairmp.metrics import Interval
from fairmp.report import summarise, to_markdown
from fairmp.report.formats import (
    Table,
    aligned,
    best,
    cell_text,
    interval_text,
    is_known,
    join_names,
    latex,
    markdown,
    of_hypervolumes,
    of_lines,
    per_hundred,
    points,
    rich_table,
    signed_change,
    to_csv,
    to_html,
    wilson_interval,
    with_interval,
)
from tests.report.records import RECORDS, lines, record


@given(st.integers(1, 3000), st.floats(0, 1))
def test_wilson_interval_agrees_with_scipy(n: int, share: float) -> None:
    count = round(share * n)
    theirs = binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(count, n) == pytest.approx((theirs.low, theirs.high), abs=1e-7)


def test_wilson_interval_of_no_nodes_is_undefined() -> None:
    assert all(math.isnan(end) for end in wilson_interval(0, 0))


def test_numbers_as_text() -> None:
    assert per_hundred(0.005) == "fewer than 1"
    assert per_hundred(0.996) == "100"
    assert per_hundred(None) == "n/a"
    assert interval_text((math.nan, 0.1)) == ""
    assert with_interval(None, None) == "n/a"
    assert signed_change(None, 0.1) == "n/a"
    assert signed_change(0.1, 0.3) == "+20.0"
    assert (signed_change(0.3, 0.1), signed_change(0.1, 0.1)) == ("−20.0", "0.0")
    assert not is_known(math.nan)
    assert join_names(["a"]) == "a"
    assert join_names([]) == ""
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(list("abcd"), limit=2) == "a, b and 2 more"
    assert (points(0.1234), points(-0.0004), points(None)) == ("12.3", "0.0", "n/a")


def test_rich_table_wraps_names_before_it_hides_a_column() -> None:
    from rich.console import Console

    cells = ["80.1 [79.8, 80.6]", "18.0 [15.2, 20.0]", "10.5 [8.7, 14.2]", "10.2"]
    row = ["plain + regulariser h=2", *cells]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(rich_table(Table("", ["method", "accuracy %", "ΔDP", "ΔEO", "s"], [row])))
    assert all(cell in shown.get() for cell in cells)


def test_rich_table_escapes_brackets() -> None:
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as shown:
        console.print(rich_table(Table("mean [smallest, largest]", ["name", "[b]"], [["a", "1"]])))
    assert "mean [smallest, largest]" in " ".join(shown.get().split())
    assert "[b]" in shown.get()


def test_summarise_gives_ranges_below_five_splits_and_intervals_from_there() -> None:
    a, b = summarise(RECORDS)
    assert (a.name, a.splits, b.splits) == ("A", 2, 1)
    assert a.figures["accuracy"].mean == pytest.approx(0.75)
    assert cell_text(a.figures["accuracy"]) == "75.0 [70.0, 80.0]"
    values = [0.7, 0.71, 0.72, 0.73, 0.74]
    [five] = summarise(record("C", value, 0.1) for value in values)
    half = 100 * stats.t.ppf(0.975, 4) * stats.sem(values)
    assert cell_text(five.figures["accuracy"]) == f"72.0 ± {half:.1f}"
    assert cell_text(b.figures["dp"]) == "n/a"
    assert cell_text(b.figures["accuracy"]) == "60.0"


def test_to_markdown_has_a_row_per_method() -> None:
    table = to_markdown(summarise(RECORDS)).splitlines()
    assert table[0].startswith("| method | accuracy % | ΔDP |")
    assert len(table) == 4
    assert all(row.count("|") == table[0].count("|") for row in table)


def test_tables_have_the_best_of_each_column_in_bold() -> None:
    table = of_lines("NBA", lines())
    assert table.header[2:4] == ["accuracy %", "ΔDP"]
    assert {place for place in table.bold if place[1] in (2, 3)} == {(0, 2), (1, 3)}
    assert not any(column == 4 for _, column in table.bold)  # ΔEO is known of none
    text = markdown([table])
    assert "**85.0 [80.0, 90.0]**" in text
    assert "**1.0**" in text
    tex = latex([table])
    assert "\\textbf{85.0 [80.0, 90.0]}" in tex
    assert "FMP $\\lambda_f$=1 \\& more" in tex
    assert tex.count("\\begin{tabular}") == tex.count("\\end{tabular}") == 1
    widths = {line.count(" & ") for line in tex.splitlines() if " & " in line}
    assert widths == {len(table.header) - 1}


def test_best_includes_ties_after_rounding() -> None:
    assert best([0.8114, 0.8111, 0.7, math.nan]) == {0, 1}
    assert best([math.nan]) == set()


def test_to_csv_has_means_and_intervals() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv({"NBA": lines()}))))
    assert [row["method"] for row in rows] == ["MLP", "FMP λ_f=1 & more"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.85)
    assert rows[0]["eo"] == rows[1]["accuracy_low"] == ""
    assert float(rows[0]["dp_low"]) < 0.15 < float(rows[0]["dp_high"])


def test_of_hypervolumes_has_a_column_per_data_set() -> None:
    values = {
        "NBA": {"MLP": Interval(0.2, 0.1, 0.3, 5), "FMP": Interval(0.4, 0.3, 0.5, 5)},
        "Bail": {"MLP": Interval(0.3, math.nan, math.nan, 1)},
    }
    table = of_hypervolumes("volumes", values)
    assert table.rows == [["MLP", "20.0 ± 10.0", "30.0"], ["FMP", "40.0 ± 10.0", "n/a"]]
    assert table.bold == {(1, 1), (0, 2)}


def test_aligned_pads_columns() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc   d"]


def test_to_html_escapes() -> None:
    text = to_html("<t>", [[["", "<h>"], ["<r>", "<c>"]]], ["<n>"])
    assert [text.count(f"&lt;{letter}&gt;") for letter in "thrcn"] == [1] * 5
