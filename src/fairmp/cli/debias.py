"""``fairmp debias``."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.cli.prediction_columns import Found
    from fairmp.cli.prediction_table import PredictionTable
    from fairmp.postprocessing.result import DebiasResult

_TABLE, _ASKED, _UNKNOWN = "The table", "What is asked", "Unknown groups"
_GRAPH = "A graph"
TABLE, RECORD = "mended", "mended.json"


def command(
    predictions: Annotated[Path, typer.Argument(help="Table of predictions: CSV, TSV, Parquet.")],
    sensitive: Annotated[
        list[str] | None,
        typer.Option(
            help="Sensitive column, empty where unknown; give several to ask of each.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    probabilities: Annotated[
        str | None,
        typer.Option(
            help="Column with the probability of class 1, or a column a class: no,maybe,yes. By "
            "default columns that look like it.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    logits: Annotated[
        str | None,
        typer.Option(
            help="The same as logits; a single column is the log-odds of class 1.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            help="Column with decisions, where that is all there is; mended ones are drawn.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column with true classes, empty where unknown.", rich_help_panel=_TABLE),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(help="Value of --label (--decision) that is class 1.", rich_help_panel=_TABLE),
    ] = None,
    population: Annotated[
        str | None,
        typer.Option(
            help="Column that is true (1, yes) for rows whose gap is closed; by default all.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    sensitive_bins: Annotated[
        str | None,
        typer.Option(
            help="Cut a sensitive column of numbers: a number of bins, or edges like '30,60'.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    cross: Annotated[
        bool,
        typer.Option(
            "--cross", help="Cross the sensitive columns into one.", rich_help_panel=_TABLE
        ),
    ] = False,
    criterion: Annotated[
        list[str] | None,
        typer.Option(
            help="demographic-parity (the default), equal-opportunity, equalised-odds; give "
            "several to ask for all.",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    matrix: Annotated[
        str | None,
        typer.Option(
            help="Columns of a criterion of your own: the sums of predictions they weigh must "
            "stay within the target.",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Largest gap accepted, 0.02 for two points (with more than two groups, that of "
            "each from the whole); one, or one for each criterion.",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    temperature: Annotated[
        str,
        typer.Option(
            help="1 for the gap of probabilities, 0.1 nearly that of decisions, or 'decisions'.",
            rich_help_panel=_ASKED,
        ),
    ] = "1",
    edges: Annotated[
        Path | None,
        typer.Option(help="Edge table; with it predictions are smoothed.", rich_help_panel=_GRAPH),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="Column with the ids.", rich_help_panel=_GRAPH)
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Steps.", rich_help_panel=_GRAPH)] = 5,
    lambda_s: Annotated[float, typer.Option(help="Smoothing.", rich_help_panel=_GRAPH)] = 1.0,
    estimate_sens: Annotated[
        bool,
        typer.Option(
            "--estimate-sens",
            help="Estimate unknown groups, so that these rows take part.",
            rich_help_panel=_UNKNOWN,
        ),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="Columns the estimate reads, or 'all' others; by default the predictions.",
            rich_help_panel=_UNKNOWN,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of intervals and draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results, or the name of a .csv or .parquet file."),
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Mend the predictions of any model, without training it again.

    A table of predictions goes in, with a sensitive column; the same table comes out, with the
    mended predictions and the decisions before and after as further columns, and what changed
    on the screen and in mended.json.
    """
    if not sensitive and (criterion or not matrix):
        raise InputError("--sensitive", "missing", "name the column with the groups")
    from fairmp.cli import prediction_columns, prediction_table

    goal, record = _goals(out, predictions, overwrite=overwrite)
    table = prediction_table.read(predictions, id)
    try:
        found = _predictions(
            table, probabilities, logits, decision, positive, sensitive, label, id, population,
            matrix, features,
        )  # fmt: skip
        codes, names = None, found.names
        if label is not None:
            codes, names = prediction_columns.labels(table, label, found, positive)
        groups = prediction_columns.groups(table, sensitive, options._bins(sensitive_bins), cross)
        asked = prediction_columns.criteria(table, criterion, matrix)
        edge_index = prediction_columns.edges_of(table, edges, id)

        from fairmp.postprocessing.api import mend
        from fairmp.report.document import html
        from fairmp.report.from_results import from_mended

        mended = mend(
            found.values,
            groups,
            target=_targets(target, len(asked)),
            edge_index=edge_index,
            population=None if population is None else prediction_columns.mask(table, population),
            temperature=_temperature(temperature),
            K=k,
            lambda_s=lambda_s,
            criterion=asked,
            labels=codes,
            estimate_sens=estimate_sens,
            features=prediction_columns.features_of(
                table, features, estimate_sens, sensitive, label, id
            ),
            class_names=names,
            seed=seed,
        )
    except InputError as error:
        raise InputError.parse(_as_typed(str(error), id)) from None
    extra = columns(found, mended, seed)
    notes = [note.replace("; unknown=() makes it a value", "") for note in table.report.notes]
    read = [*notes, *found.notes]
    content = {"file": str(goal), "rows": len(table.frame), "read": read, **mended.to_dict()}
    prediction_table.write(table, extra, goal)
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    _replace(record, text)
    told = from_mended({**content, "command": shlex.join(["fairmp", *sys.argv[1:]])})
    page = _page(record)
    _replace(page, html(told))
    if as_json:
        typer.echo(json.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    for line in read:
        typer.echo(line)
    typer.echo(str(mended))
    for line in advice(mended, found):
        typer.echo(line)
    typer.echo(f"DebiasResult predictions in {goal}, all figures in {record}; open {page}.")


def columns(found: Found, mended: DebiasResult, seed: int) -> dict[str, Any]:
    """The columns that are added to the table."""
    import numpy as np

    values = np.asarray(mended.predictions)
    names = np.array(mended.classes, dtype=object)
    given = np.stack([1 - found.values, found.values], 1) if values.ndim == 1 else found.values
    after = np.stack([1 - values, values], 1) if values.ndim == 1 else values
    choice = after.argmax(1)
    extra: dict[str, Any] = {}
    if found.drawn:
        if after.shape[1] == 2:
            extra["p_mended"] = after[:, 1]
        else:
            extra |= {f"p_mended({name})": after[:, c] for c, name in enumerate(mended.classes)}
        draw = np.random.default_rng(seed).random((len(after), 1))
        choice = np.minimum((after.cumsum(1) < draw).sum(1), after.shape[1] - 1)
    elif found.log_odds:
        extra[f"{found.columns[0]}_mended"] = after[:, 1] - after[:, 0]
    elif values.ndim == 1:
        extra[f"{found.columns[0]}_mended"] = values
    else:
        extra |= {f"{column}_mended": after[:, c] for c, column in enumerate(found.columns)}
    extra["decision_before"] = names[given.argmax(1)].tolist()
    extra["decision_mended"] = names[choice].tolist()
    return extra


def advice(mended: DebiasResult, found: Found) -> list[str]:
    """Lines on what a reader may take for granted and should not."""
    lines = []
    sizes = Counter(group.attribute for group in mended.groups if group.group != "unknown")
    if any(sizes[held.attribute] > 2 for held in mended.criteria):
        lines.append(
            "With more than two groups a gap is how far a group is from the whole: two groups may "
            "be up to twice as far apart."
        )
    if found.drawn:
        lines.append(
            "Decisions alone can only be evened out by chance: decision_mended is drawn with the "
            "mended probabilities, and --seed draws others."
        )
    elif any(held.decisions_after > held.target + 0.01 for held in mended.criteria):
        labelled = any(held.predicted is not None for held in mended.criteria)
        lines.append(
            "The gap held is that of the probabilities; --temperature "
            + ("0.1 is nearer to" if labelled else "decisions closes")
            + " that of the decisions."
        )
    return lines


def _goals(out: Path | None, source: Path, *, overwrite: bool) -> tuple[Path, Path]:
    """Where the table and the record go, checked before any work is done for them."""
    from fairmp.cli.prediction_table import PARQUET, TEXT

    name = source.name.lower()
    ending = ".parquet" if name.endswith(PARQUET) else ".csv"
    for kept in (".tsv", ".csv.gz", ".tsv.gz"):
        ending = kept if name.endswith(kept) else ending
    if out is None or out.suffix.lower() not in (*PARQUET, *TEXT):
        folder = outputs.free_name("fairmp-debias") if out is None else out
        outputs.check_free(folder, overwrite=overwrite)
        return folder / f"{TABLE}{ending}", folder / RECORD
    record = out.parent / f"{out.name.partition('.')[0]}.json"
    for path in (out, record, _page(record)):
        if path.is_dir():
            raise InputError("--out", f"{path} is a folder", "give the name of a file")
        if path.exists() and not overwrite:
            raise InputError("--out", f"{path} exists", "give another name, or add --overwrite")
    outputs.check_free(out.absolute().parent, overwrite=True)
    if source.exists() and out.exists() and source.samefile(out):
        raise InputError("--out", f"{out} is the table of predictions", "give another name")
    return out, record


def _page(record: Path) -> Path:
    """The report: report.html in a folder of results, beside a file of another name its own."""
    return record.with_name("report.html" if record.name == RECORD else f"{record.stem}.html")


def _replace(path: Path, text: str) -> None:
    staging = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        staging.write_text(text, encoding="utf-8")
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)


def _predictions(
    table: PredictionTable,
    probabilities: str | None,
    logits: str | None,
    decision: str | None,
    positive: str | None,
    sensitive: list[str] | None,
    label: str | None,
    id: str | None,
    population: str | None,
    matrix: str | None,
    features: str | None,
) -> Found:
    from fairmp.cli import prediction_columns

    given = {"--probabilities": probabilities, "--logits": logits, "--decision": decision}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(named[1], f"goes without {named[0]}", "give one of them")
    if probabilities is not None:
        return prediction_columns.probabilities(table, probabilities)
    if logits is not None:
        return prediction_columns.logits(table, logits)
    if decision is not None:
        return prediction_columns.decisions(table, decision, positive)
    taken = dict.fromkeys(sensitive or [], "--sensitive")
    taken |= {label or "": "--label", id or "": "--id", population or "": "--population"}
    taken |= {part.strip(): "--matrix" for part in (matrix or "").split(",")}
    taken |= {part.strip(): "--features" for part in (features or "").split(",")}
    return prediction_columns.detected(table, taken)


def _targets(target: list[float] | None, count: int) -> Any:
    if not target:
        return 0.0
    if len(target) not in (1, count):
        raise InputError(
            "--target", f"{len(target)} for {count} criteria", "give one, or one for each in order"
        )
    return target[0] if len(target) == 1 else target


def _temperature(text: str) -> Any:
    if text.strip() == "decisions":
        return "decisions"
    try:
        return float(text)
    except ValueError:
        raise InputError(
            "--temperature", f"{text!r} is neither a number above 0 nor 'decisions'"
        ) from None


def _as_typed(message: str, id: str | None) -> str:
    """Say of options what the library says of arguments."""
    argument, _, rest = message.partition(": ")
    named = {"sens": "--sensitive", "labels": "--label", "features": "--features"}
    named |= {"estimate_sens": "--estimate-sens", "predictions": "PREDICTIONS", "K": "--k"}
    named |= {name: f"--{name}" for name in ("target", "criterion", "temperature", "edges", "id")}
    named |= {"sensitive": "--sensitive", "lambda_s": "--lambda-s", "positive": "--positive"}
    named |= {"sensitive_bins": "--sensitive-bins", "label": "--label"}
    if argument in named:
        message = f"{named[argument]}: {rest}"
    if id is None and "joins two ids" in message:
        message += "; --id names the column with the ids, row numbers are taken without it"
    message = message.replace("give labels=, -1 where unknown", "name the column with --label")
    message = message.replace("or mark it unknown (-1)", "or leave its cells empty")
    return message.replace(
        "with sensitive_bins, as in sensitive_bins=3 or sensitive_bins=[25, 40]",
        "with --sensitive-bins, as in --sensitive-bins 3 or --sensitive-bins 25,40",
    )
