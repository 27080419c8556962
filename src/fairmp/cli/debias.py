"""``fairmp debias``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.options import Gap, Gate, Names, argument, option
from fairmp.cli.output import adjustable_command, report, rerun_command

if TYPE_CHECKING:
    from fairmp.postprocessing.debias_table import TableResult, TableSpec

RECORD = "corrected.json"
SENSITIVE = "Sensitive column, empty where unknown; repeatable."
CRITERION = (
    "demographic-parity (the default), equal-opportunity, false-positive-rate-parity or "
    "equalized-odds; repeatable."
)
EDGES = (
    "Edge table; smooths the predictions. With --group-free, neighbours help to estimate groups."
)
TARGET = "Largest gap, 0.02 for two points; repeatable."
_table = options.panel("The table")
_criteria = options.panel("Criteria")
_graph = options.panel("A graph")
_unknown = options.panel("Unknown groups")
_reuse = options.panel("Other tables")


@dataclass(frozen=True)
class Columns:
    """What the columns of the table mean."""

    sensitive: Annotated[Names, _table(SENSITIVE, ...)] = None
    probabilities: str | None = _table(
        "Probability of class 1, or one column per class: no,maybe,yes; found by default."
    )
    logits: str | None = _table("Columns of logits; a single one is the log-odds of class 1.")
    decision: str | None = _table(
        "Column with decisions, if there are no scores; new ones are drawn."
    )
    label: str | None = _table("Column with true classes, empty where unknown.")
    positive: str | None = _table("Value of --label (--decision) that is class 1.")
    population: str | None = _table(
        "Column that is true for rows whose gap is closed; by default all."
    )
    weight: str | None = _table("Column with the weight of each row.")
    sensitive_bins: str | None = _table(
        "Cut numbers into groups: how many, or cut points like '30,60'."
    )
    unknown: Annotated[Names, _table("Value of --sensitive that means 'not known'.", ...)] = None
    cross: bool = _table("Cross the sensitive columns into one.", False, "--cross")


@dataclass(frozen=True)
class Correction:
    """What is closed, and how."""

    criterion: Annotated[Names, _criteria(CRITERION, ...)] = None
    target: Annotated[list[float] | None, _criteria(TARGET, ...)] = None
    on: str = _criteria("Close the gap of 'decisions' or of 'probabilities'.", "decisions")
    temperature: float = _criteria("Temperature of the probabilities.", 1.0)
    edges: Annotated[Path | None, _graph(EDGES, ...)] = None
    id: str | None = _graph("Column with the ids.")
    edge_source: str | None = _graph(options.EDGE_SOURCE)
    edge_target: str | None = _graph(options.EDGE_TARGET)
    k: int = _graph("Propagation steps.", 5)
    lambda_s: float = _graph("Strength of the smoothing.", 1.0)
    estimate_sens: bool = _unknown("Estimate unknown groups.", False, "--estimate-sens")
    features: str | None = _unknown("Columns to estimate from, or 'all'; by default predictions.")
    save: Annotated[Path | None, _reuse("Save the correction to a file, for --apply.", ...)] = None
    apply: Annotated[Path | None, _reuse("Apply a saved correction row by row.", ...)] = None
    group_free: bool = _unknown(
        "Estimate groups from --features (numbers); --apply then reads no group.",
        False,
        "--group-free",
    )
    confidence: float | None = _reuse("Promise --target for new people, 0.95 for 95 %.")
    seed: int = option("Seed for random draws.", 0, min=0)


@dataclass(frozen=True)
class Output:
    """Where results go, and how they are printed."""

    out: Annotated[Path | None, option("Folder, or a .csv or .parquet file.", ...)] = None
    overwrite: options.Overwrite = False
    safe_csv: options.SafeCSV = True
    as_json: options.AsJson = False


def command(
    context: typer.Context,
    gate: Gate,
    columns: Columns,
    correction: Correction,
    output: Output,
    predictions: Path = argument("Table of predictions: CSV, TSV, Parquet."),
) -> None:
    """Correct the predictions of any model without retraining it.

    Reads a table of predictions with a sensitive column, and writes the same table with the
    corrected predictions and the decisions before and after as further columns. What changed is
    printed, and written to corrected.json and report.html.
    """
    from fairmp.postprocessing.debias_table import debias_table
    from fairmp.report import corrections

    spec = _spec(predictions, columns, correction)
    spec.check()
    files = _files(predictions, output)
    if correction.save is not None:
        outputs.check_file("save", correction.save, overwrite=output.overwrite)
    corrected = debias_table(spec)
    command_line = rerun_command()
    record = corrections.record(
        spec,
        corrected,
        file=files.table,
        panel_command=adjustable_command(context, "criterion", "target"),
    )
    _write(files, corrected, record, command_line, correction, output)
    result_text = corrections.text(corrected.result, noun="person")
    lines = [*corrected.notes, result_text, *corrections.advice(corrected)]
    if correction.save is not None:
        expected = corrections.expected_gap_text(corrected)
        lines.append(f"Correction in {correction.save}. {expected}")
    where = f"all figures in {files.record}; open {files.page}."
    lines.append(f"Corrected predictions in {files.table}, {where}")
    report(output.as_json, record, *lines)
    gaps = [
        Gap(
            f"the gap of {corrections.title(criterion)}",
            criterion.decisions_after,
            criterion.decisions_interval,
            one_node=corrected.result.one_node(criterion),
        )
        for criterion in corrected.result.criteria
    ]
    ratio = corrected.result.impact_ratio()
    gate.check(
        *(gaps or [Gap("the gap of the criterion", nan, None)]),
        impact_ratio=Gap("the impact ratio", ratio.estimate, ratio.interval),
    )


def _spec(predictions: Path, columns: Columns, correction: Correction) -> TableSpec:
    """The options as arguments of the library."""
    from fairmp.postprocessing.debias_table import TableSpec

    arguments: dict[str, Any] = vars(columns) | vars(correction)
    for name in ("sensitive", "criterion", "target"):
        arguments[name] = tuple(arguments[name] or ())
    arguments["criterion"] = tuple(map(options.criterion_name, arguments["criterion"]))
    arguments["sensitive_bins"] = options.parse_bins(columns.sensitive_bins)
    return TableSpec(predictions, **arguments)


@dataclass(frozen=True)
class Files:
    """The files that are written."""

    table: Path
    record: Path
    page: Path


def _files(source: Path, output: Output) -> Files:
    """Name the files, and check before any work is done that they can be written."""
    from fairmp.postprocessing.prediction_table import PARQUET, TEXT

    out = output.out
    if out is None or out.suffix.lower() not in (*PARQUET, *TEXT):
        name = source.name.lower()
        text = next((e for e in (".csv.gz", ".tsv.gz", ".tsv") if name.endswith(e)), ".csv")
        suffix = ".parquet" if name.endswith(PARQUET) else text
        folder = outputs.free_name("fairmp-debias") if out is None else out
        outputs.hold(folder, overwrite=output.overwrite)
        return Files(folder / f"corrected{suffix}", folder / RECORD, folder / "report.html")
    record = out.with_name(f"{out.name.partition('.')[0]}.json")
    page = record.with_name("report.html" if record.name == RECORD else f"{record.stem}.html")
    for path in (out, record, page):
        outputs.check_file("out", path, [source], overwrite=output.overwrite)
    return Files(out, record, page)


def _write(
    files: Files,
    corrected: TableResult,
    record: dict[str, Any],
    command_line: str,
    correction: Correction,
    output: Output,
) -> None:
    """Write the table, the record, the page and the correction, all or none."""
    from fairmp.postprocessing import prediction_table
    from fairmp.postprocessing.debias_table import added_columns
    from fairmp.report.document import html
    from fairmp.report.from_results import from_corrected

    page = html(from_corrected({**record, "command": command_line}))
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    new = not output.overwrite
    extra = added_columns(corrected)
    with outputs.into(files.table.parent) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        beside = {folder / files.record.name: text, folder / files.page.name: page}
        with outputs.text_files(beside, new=new):
            if correction.save is not None:
                correction.save.absolute().parent.mkdir(parents=True, exist_ok=True)
                assert corrected.corrector is not None
                corrected.corrector.save(correction.save)
            path = folder / files.table.name
            prediction_table.write(corrected.table, extra, path, safe=output.safe_csv, new=new)
