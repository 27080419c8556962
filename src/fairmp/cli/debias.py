"""``fairmp debias``."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from functools import partial
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

_table = partial(typer.Option, rich_help_panel="The table")
_criteria = partial(typer.Option, rich_help_panel="Criteria")
_graph = partial(typer.Option, rich_help_panel="A graph")
_unknown = partial(typer.Option, rich_help_panel="Unknown groups")
_reuse = partial(typer.Option, rich_help_panel="Other tables")
TABLE, RECORD = "corrected", "corrected.json"
RENAMED = {"sens": "--sensitive", "labels": "--label", "predictions": "PREDICTIONS", "K": "--k"}
HINTS = {
    "give labels=, -1 where unknown": "name the column with --label",
    "or mark it unknown (-1)": "or leave its cells empty",
    "with sensitive_bins, as in sensitive_bins=3 or sensitive_bins=[25, 40]": "with "
    "--sensitive-bins, as in --sensitive-bins 3 or --sensitive-bins 25,40",
}


def command(
    predictions: Annotated[Path, typer.Argument(help="Table of predictions: CSV, TSV, Parquet.")],
    sensitive: Annotated[
        list[str] | None,
        _table(help="Sensitive column, empty where unknown; with several, every gap is closed."),
    ] = None,
    probabilities: Annotated[
        str | None,
        _table(
            help="Column with the probability of class 1, or one per class: no,maybe,yes. By "
            "default columns that look like it."
        ),
    ] = None,
    logits: Annotated[
        str | None, _table(help="The same as logits; a single column is the log-odds of class 1.")
    ] = None,
    decision: Annotated[
        str | None,
        _table(help="Column with decisions, where there are no scores; corrected ones are drawn."),
    ] = None,
    label: Annotated[
        str | None, _table(help="Column with true classes, empty where unknown.")
    ] = None,
    positive: Annotated[
        str | None, _table(help="Value of --label (--decision) that is class 1.")
    ] = None,
    population: Annotated[
        str | None,
        _table(help="Column that is true (1, yes) for rows whose gap is closed; by default all."),
    ] = None,
    sensitive_bins: Annotated[
        str | None,
        _table(help="Cut a sensitive column of numbers: a number of bins, or edges like '30,60'."),
    ] = None,
    cross: Annotated[bool, _table("--cross", help="Cross the sensitive columns into one.")] = False,
    criterion: Annotated[
        list[str] | None,
        _criteria(
            help="demographic-parity (the default), equal-opportunity or equalized-odds; may be "
            "given several times."
        ),
    ] = None,
    matrix: Annotated[
        str | None,
        _criteria(
            help="Columns of weights, a criterion of your own: the weighted sums of the "
            "predictions must stay within the target."
        ),
    ] = None,
    target: Annotated[
        list[float] | None,
        _criteria(
            help="Largest gap accepted between any two groups, 0.02 for two points; one, or one "
            "for each criterion."
        ),
    ] = None,
    temperature: Annotated[
        str,
        _criteria(
            help="1 for the gap of probabilities, 0.1 for nearly that of decisions, or 'decisions'."
        ),
    ] = "1",
    edges: Annotated[
        Path | None, _graph(help="Edge table; with it predictions are smoothed.")
    ] = None,
    id: Annotated[str | None, _graph("--id", help="Column with the ids.")] = None,
    k: Annotated[int, _graph("--k", help="Propagation steps.")] = 5,
    lambda_s: Annotated[float, _graph(help="Strength of the smoothing.")] = 1.0,
    estimate_sens: Annotated[
        bool,
        _unknown("--estimate-sens", help="Estimate unknown groups, so that these rows take part."),
    ] = False,
    features: Annotated[
        str | None,
        _unknown(help="Input columns of the estimate, or 'all' others; by default predictions."),
    ] = None,
    save: Annotated[
        Path | None, _reuse(help="Write the correction to a JSON file, to apply it to other rows.")
    ] = None,
    apply: Annotated[
        Path | None,
        _reuse(help="Apply a saved correction row by row, instead of finding one for this table."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random draws.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results, or the name of a .csv or .parquet file."),
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Correct the predictions of any model without retraining it.

    Reads a table of predictions with a sensitive column, and writes the same table with the
    corrected predictions and the decisions before and after as further columns. What changed is
    printed, and written to corrected.json and report.html.
    """
    if not sensitive and (criterion or not matrix):
        raise InputError("--sensitive", "missing", "name the column with the groups")
    from fairmp.cli import prediction_columns, prediction_table
    from fairmp.postprocessing.api import debias
    from fairmp.postprocessing.debiaser import Debiaser
    from fairmp.report.document import html
    from fairmp.report.from_results import from_corrected

    if apply is not None or save is not None:
        given: dict[str, Any] = {"--matrix": matrix, "--edges": edges}
        given |= {"--population": population, "--estimate-sens": estimate_sens}
        if apply is not None:
            given |= {"--save": save, "--criterion": criterion, "--target": target}
        stray = next((option for option, value in given.items() if value), None)
        if stray is not None:
            raise InputError(stray, f"goes without {'--apply' if apply else '--save'}", "omit one")
    goal, record = _goals(out, predictions, overwrite=overwrite)
    table = prediction_table.read(predictions, id)
    taken = dict.fromkeys(sensitive or [], "--sensitive")
    taken |= {label or "": "--label", id or "": "--id", population or "": "--population"}
    taken |= {part.strip(): "--matrix" for part in (matrix or "").split(",")}
    taken |= {part.strip(): "--features" for part in (features or "").split(",")}
    try:
        found = _predictions(table, probabilities, logits, decision, positive, taken)
        codes, names = None, found.names
        if label is not None:
            codes, names = prediction_columns.labels(table, label, found, positive)
        groups = prediction_columns.groups(table, sensitive, options._bins(sensitive_bins), cross)
        criteria = prediction_columns.criteria(table, criterion, matrix)
        kind = "logits" if logits is not None else "probabilities"
        targets, tau = _targets(target, len(criteria)), _temperature(temperature)
        if apply is not None:
            corrector = Debiaser.load(apply)
            corrector.kind_ = kind
            result = corrector.evaluate(found.values, sensitive_features=groups, labels=codes)
        elif save is not None:
            corrector = Debiaser(
                criteria, targets, kind=kind, decisions=tau == "decisions", seed=seed,
                temperature=1.0 if tau == "decisions" else tau, class_names=names,
            ).fit(found.values, sensitive_features=groups, labels=codes)  # fmt: skip
            assert corrector.result_ is not None
            result = corrector.result_
        else:
            result = debias(
                found.values,
                groups,
                target=targets,
                edge_index=prediction_columns.edges_of(table, edges, id),
                population=prediction_columns.mask(table, population) if population else None,
                temperature=tau,
                K=k,
                lambda_s=lambda_s,
                criterion=criteria,
                labels=codes,
                estimate_sens=estimate_sens,
                features=prediction_columns.features_of(
                    table, features, estimate_sens, sensitive, label, id
                ),
                kind=kind,
                class_names=names,
                seed=seed,
                full_output=True,
            )
    except InputError as error:
        raise _as_option(error, id) from None
    notes = [note.replace("; unknown=() makes it a value", "") for note in table.report.notes]
    read = [*notes, *found.notes]
    content = {"file": str(goal), "rows": len(table.frame), "read": read, **result.to_dict()}
    prediction_table.write(table, columns(found, result, seed), goal)
    _replace(record, json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n")
    if save is not None:
        corrector.save(save)
    page = _page(record)
    _replace(
        page, html(from_corrected({**content, "command": shlex.join(["fairmp", *sys.argv[1:]])}))
    )
    if as_json:
        typer.echo(json.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    for line in [*read, str(result), *advice(result, found)]:
        typer.echo(line)
    if save is not None:
        batch = result.expected_gap(1000)
        typer.echo(
            f"Correction in {save}. From sampling alone, expect a gap of {100 * batch.mean:.1f} "
            f"points on 1,000 new rows, up to {100 * batch.high:.1f} in 95 % of such tables."
        )
    typer.echo(f"Corrected predictions in {goal}, all figures in {record}; open {page}.")


def columns(found: Found, result: DebiasResult, seed: int) -> dict[str, Any]:
    """Columns that are added to the table."""
    import numpy as np

    values = np.asarray(result.predictions)
    names = np.array(result.classes, dtype=object)
    single = values.ndim == 1
    given = np.stack([1 - found.values, found.values], 1) if single else found.values
    after = np.stack([1 - values, values], 1) if single else values
    choice = after.argmax(1)
    extra: dict[str, Any] = {}
    if found.drawn:
        if after.shape[1] == 2:
            extra["p_corrected"] = after[:, 1]
        else:
            extra |= {f"p_corrected({name})": after[:, c] for c, name in enumerate(result.classes)}
        draw = np.random.default_rng(seed).random((len(after), 1))
        choice = np.minimum((after.cumsum(1) < draw).sum(1), after.shape[1] - 1)
    elif found.log_odds:
        extra[f"{found.columns[0]}_corrected"] = after[:, 1] - after[:, 0]
    elif single:
        extra[f"{found.columns[0]}_corrected"] = values
    else:
        extra |= {f"{column}_corrected": after[:, c] for c, column in enumerate(found.columns)}
    extra["decision_before"] = names[given.argmax(1)].tolist()
    extra["decision_corrected"] = names[choice].tolist()
    return extra


def advice(result: DebiasResult, found: Found) -> list[str]:
    """Notes on how to read the result."""
    lines = []
    if found.drawn:
        lines.append(
            "Decisions alone can only be equalised by chance: decision_corrected is drawn from the "
            "corrected probabilities, with --seed."
        )
    elif any(one.decisions_after > one.target + 0.01 for one in result.criteria):
        labelled = any(one.unlabelled is not None for one in result.criteria)
        lines.append(
            "The target is met by the probabilities; --temperature "
            + ("0.1 is nearer to" if labelled else "decisions closes")
            + " the gap of the decisions."
        )
    return lines


def _goals(out: Path | None, source: Path, *, overwrite: bool) -> tuple[Path, Path]:
    """Paths of the table and the record, checked before any work is done."""
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
    """report.html in a folder of results; beside a file of another name, its own."""
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
    taken: dict[str, str],
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
        hint = "give a number above 0, or 'decisions'"
        raise InputError("--temperature", repr(text), hint) from None


def _as_option(error: InputError, id: str | None) -> InputError:
    """The same error in terms of options instead of arguments."""
    value, hint = str(error.value), error.hint
    for argument, option in HINTS.items():
        value, hint = value.replace(argument, option), hint.replace(argument, option)
    if id is None and "joins two ids" in f"{value} {hint}":
        hint += "; --id names the column with the ids, row numbers are taken without it"
    name = error.argument
    known = name in inspect.signature(command).parameters
    option = f"--{name.replace('_', '-')}" if known else name
    return InputError(RENAMED.get(name, option), value, hint)
