"""``fairmp debias``."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.gate import Gap, Gate
from fairmp.cli.options import argument, option
from fairmp.cli.spelling import adjustable_command, rerun_command
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.cli.prediction_table import Found
    from fairmp.postprocessing.result import DebiasResult

_table = options.panel("The table")
_criteria = options.panel("Criteria")
_graph = options.panel("A graph")
_unknown = options.panel("Unknown groups")
_reuse = options.panel("Other tables")
RECORD = "corrected.json"


def command(
    context: typer.Context,
    gate: Gate,
    predictions: Path = argument("Table of predictions: CSV, TSV, Parquet."),
    sensitive: list[str] | None = _table("Sensitive column, empty where unknown; repeatable."),
    probabilities: str | None = _table(
        "Column of class 1, or one per class: no,maybe,yes; by default those that look like it."
    ),
    logits: str | None = _table("Columns of logits; a single one is the log-odds of class 1."),
    decision: str | None = _table("Column with decisions, if no scores; new ones are drawn."),
    label: str | None = _table("Column with true classes, empty where unknown."),
    positive: str | None = _table("Value of --label (--decision) that is class 1."),
    population: str | None = _table("Column, true where the gap is closed; by default all rows."),
    weight: str | None = _table("Column with the weight of each row."),
    sensitive_bins: str | None = _table("Bin numeric groups: a number, or edges like '30,60'."),
    cross: bool = _table("Cross the sensitive columns into one.", False, "--cross"),
    criterion: list[str] | None = _criteria(
        "demographic-parity (the default), equal-opportunity or equalized-odds; repeatable."
    ),
    matrix: str | None = _criteria("Columns of weights, whose weighted sums must meet the target."),
    target: list[float] | None = _criteria("Largest gap, 0.02 for two points; repeatable."),
    temperature: str = _criteria("1 for the gap of probabilities, 'decisions' for theirs.", "1"),
    edges: Path | None = _graph("Edge table; with it predictions are smoothed."),
    id: str | None = _graph("Column with the ids."),
    k: int = _graph("Propagation steps.", 5),
    lambda_s: float = _graph("Strength of the smoothing.", 1.0),
    estimate_sens: bool = _unknown("Estimate unknown groups.", False, "--estimate-sens"),
    features: str | None = _unknown("Columns of the estimate, or 'all'; by default predictions."),
    save: Path | None = _reuse("Write the correction to a JSON file, for --apply."),
    apply: Path | None = _reuse("Apply a saved correction row by row, instead of finding one."),
    seed: int = option("Seed of random draws.", 0, min=0),
    out: Path | None = option("Folder, or the name of a .csv or .parquet file."),
    overwrite: options.Overwrite = False,
    safe_csv: options.SafeCSV = True,
    as_json: options.AsJson = False,
) -> None:
    """Correct the predictions of any model without retraining it.

    Reads a table of predictions with a sensitive column, and writes the same table with the
    corrected predictions and the decisions before and after as further columns. What changed is
    printed, and written to corrected.json and report.html.
    """
    if not sensitive and (criterion or not matrix):
        raise InputError("--sensitive", "missing", "name the column with the groups")
    from fairmp.cli import prediction_table as columns
    from fairmp.metrics.evaluation import canonical
    from fairmp.postprocessing.solver import debias
    from fairmp.report.document import html
    from fairmp.report.from_results import from_corrected
    from fairmp.report.panel import panel, reliability

    if apply is not None or save is not None:
        from fairmp.postprocessing.debiaser import Debiaser

        given: dict[str, Any] = {"--matrix": matrix, "--edges": edges, "--features": features}
        given |= {"--population": population, "--estimate-sens": estimate_sens}
        if apply is not None:
            given |= {"--save": save, "--criterion": criterion, "--target": target}
        stray = next((option for option, value in given.items() if value), None)
        if stray is not None:
            raise InputError(stray, f"goes without {'--apply' if apply else '--save'}", "omit one")
    goal, record, page = _paths(out, predictions, overwrite=overwrite)
    if save is not None:
        outputs.check_file("save", save, overwrite=overwrite)
    scores = {"--probabilities": probabilities, "--logits": logits, "--decision": decision}
    wanted = [part for name, own in scores.items() if own for part in columns.listed(name, own)]
    wanted += filter(None, [*(sensitive or []), label, population, weight])
    table = columns.read(predictions, id, wanted)
    taken = dict.fromkeys(sensitive or [], "--sensitive")
    taken |= {label or "": "--label", id or "": "--id", population or "": "--population"}
    taken |= {weight or "": "--weight"}
    taken |= {part.strip(): "--matrix" for part in (matrix or "").split(",")}
    taken |= {part.strip(): "--features" for part in (features or "").split(",")}
    found = columns.find(table, scores, taken, positive)
    codes, names = None, found.names
    if label is not None:
        codes, names = columns.labels(table, label, found, positive)
    cuts = options.parse_bins(sensitive_bins)
    groups: Any = None
    if apply is None or cross or cuts is not None:
        groups = columns.groups(table, sensitive, cuts, cross)
    elif sensitive:  # the groups are those of the correction, some may be absent here
        table.require("--sensitive", *sensitive)
        groups = {name: table.raw.column(name).to_pylist() for name in sensitive}
    criteria: list[Any] = list(criterion or ([] if matrix else ["demographic_parity"]))
    if matrix is not None:
        criteria.append(table.matrix("--matrix", matrix)[1].T)
    weights = None if weight is None else table.numbers("--weight", weight)
    known: Any = {"sensitive_features": groups, "labels": codes, "sample_weight": weights}
    kind = "logits" if logits is not None else "probabilities"
    same: Any = {
        "population": columns.mask(table, population) if population else None,
        "edge_index": columns.edges_of(table, edges, id),
        "K": k, "lambda_s": lambda_s, "kind": kind, "class_names": names, "seed": seed,
        "sample_weight": weights,
    }  # fmt: skip
    targets: Any = target[0] if target and len(target) == 1 else target or 0.0
    tau: Any = temperature.strip()
    with suppress(ValueError):  # other texts than 'decisions' are refused later
        tau = float(tau)
    if apply is not None:
        corrector = Debiaser.load(apply)
        corrector.kind_ = kind
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = corrector.evaluate(found.values, **known)
        found.notes += [str(one.message) for one in caught]
    elif save is not None:
        corrector = Debiaser(
            criteria, targets, kind=kind, decisions=tau == "decisions", seed=seed,
            temperature=1.0 if tau == "decisions" else tau, class_names=names,
        ).fit(found.values, **known)  # fmt: skip
        assert corrector.result_ is not None
        result = corrector.result_
    else:
        if features is not None and not estimate_sens:
            value = "they are used to estimate groups"
            raise InputError("--features", value, "add --estimate-sens")
        others = {*(sensitive or []), label, id}
        encoded = None if features is None else columns.features_of(table, features, others)
        result = debias(
            found.values, groups, target=targets, temperature=tau, criterion=criteria,
            labels=codes, estimate_sens=estimate_sens, full_output=True, **same,
            features=encoded,
        )  # fmt: skip
    notes = [note.replace("; unknown=() makes it a value", "") for note in table.report.notes]
    read = [*notes, *found.notes]
    content = {"data": predictions.name, "file": str(goal), "rows": len(table.frame), "read": read}
    content |= result.to_dict()
    command_line = rerun_command()
    if sensitive and not found.drawn and apply is None:
        if not estimate_sens:  # an estimate for every target would take too long
            content["panel"] = panel(
                found.values,
                groups,
                codes,
                criterion=canonical(criterion[0] if criterion else "demographic_parity"),
                target=target[0] if target else 0.0,
                command=adjustable_command(context, "criterion", "target", "temperature"),
                **same,
            )
        content["reliability"] = reliability(found.values, groups, codes, kind=kind)
    texts = {
        record: json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        page: html(from_corrected({**content, "command": command_line})),
    }
    with outputs.into(goal.parent) as place:
        place.mkdir(parents=True, exist_ok=True)
        more, beside = _columns(found, result, seed), {place / p.name: t for p, t in texts.items()}
        with outputs.text_files(beside, new=not overwrite):
            if save is not None:
                save.absolute().parent.mkdir(parents=True, exist_ok=True)
                corrector.save(save)
            how = {"safe": safe_csv, "new": not overwrite}
            columns.write(table, more, place / goal.name, **how)
    gaps = [Gap(one.title, one.decisions_after, one.decisions_interval) for one in result.criteria]
    gaps = gaps or [Gap("the criterion", nan, None)]
    lines = [*read, str(result), *_advice(result, found, decisions=tau == "decisions")]
    if save is not None:
        batch = result.expected_gap(1000)
        lines.append(
            f"Correction in {save}. From sampling alone, expect a gap of {100 * batch.mean:.1f} "
            f"points on 1,000 new rows, up to {100 * batch.high:.1f} in 95 % of such tables."
        )
    where = f"Corrected predictions in {goal}, all figures in {record}; open {page}."
    output.report(as_json, content, *lines, where)
    gate.check(*gaps)


def _columns(found: Found, result: DebiasResult, seed: int) -> dict[str, Any]:
    """Columns that are added to the table."""
    import numpy as np

    after = np.asarray(result.predictions)
    choice = after.argmax(1)
    if found.drawn:
        names = [f"p_corrected({name})" for name in result.classes]
        draw = np.random.default_rng(seed).random((len(after), 1))
        choice = np.minimum((after.cumsum(1) < draw).sum(1), after.shape[1] - 1)
        if len(names) == 2:
            names, after = ["p_corrected"], after[:, 1:]
    else:
        names = [f"{column}_corrected" for column in found.columns]
        if len(names) == 1:
            after = after[:, 1:] - after[:, :1] if found.log_odds else after[:, 1:]
    classes = np.array(result.classes, dtype=object)
    return {
        **dict(zip(names, after.T, strict=True)),
        "decision_before": classes[found.values.argmax(1)].tolist(),
        "decision_corrected": classes[choice].tolist(),
    }


def _advice(result: DebiasResult, found: Found, *, decisions: bool) -> list[str]:
    """Notes on how to read the result."""
    if found.drawn:
        chance = "Decisions alone can only be equalised by chance: decision_corrected is drawn from"
        return [f"{chance} the corrected probabilities, with --seed."]
    if not decisions and any(one.decisions_after > one.target + 0.01 for one in result.criteria):
        odds = any(one.criterion == "equalized_odds" for one in result.criteria)
        setting = "0.1 is nearer to" if odds else "decisions closes"
        met = "The target is met by the probabilities"
        return [f"{met}; --temperature {setting} the gap of the decisions."]
    return []


def _paths(out: Path | None, source: Path, *, overwrite: bool) -> tuple[Path, Path, Path]:
    """Paths of the table, the record and the page, checked before any work is done."""
    from fairmp.cli.prediction_table import PARQUET, TEXT

    if out is None or out.suffix.lower() not in (*PARQUET, *TEXT):
        name = source.name.lower()
        text = next((e for e in (".csv.gz", ".tsv.gz", ".tsv") if name.endswith(e)), ".csv")
        ending = ".parquet" if name.endswith(PARQUET) else text
        folder = outputs.free_name("fairmp-debias") if out is None else out
        outputs.hold(folder, overwrite=overwrite)
        return folder / f"corrected{ending}", folder / RECORD, folder / "report.html"
    record = out.with_name(f"{out.name.partition('.')[0]}.json")
    page = record.with_name("report.html" if record.name == RECORD else f"{record.stem}.html")
    for path in (out, record, page):
        outputs.check_file("out", path, [source], overwrite=overwrite)
    return out, record, page
