"""``fairmp predict``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import CriterionGate, Gap, argument, option, table
from fairmp.errors import InputError, plural, shortlist

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.training.classifier import FairClassifier
    from fairmp.training.explanation import Explanation
    from fairmp.training.modes import ModeChoice
    from fairmp.training.tables import NodesToPredict, TablePrediction

FORMATS = (".csv", ".parquet", ".pq")


def command(
    gate: CriterionGate,
    source: options.Places,
    model: Path = argument("Folder of a saved model, or results of 'fairmp train'."),
    out: Path | None = option("File, CSV or Parquet; by default predictions.csv."),
    overwrite: bool = option("Replace an existing file.", False, "--overwrite"),
    data: str | None = option(options.DATA_HELP),
    data_dir: options.DataDir = None,
    mode: str = option(
        "'batch' closes the gap of these nodes together; 'per-node' corrects each alone; 'auto' is "
        "batch, or per-node where one person would be more than a point of the gap.",
        "auto",
    ),
    explain: bool = table(
        "Add what own data, neighbours and correction contribute to each logit (per-node).",
        False,
        "--explain",
    ),
    where: str | None = table("Predict only the rows with a value, as in 'year=2024'."),
    only: Path | None = table("Predict only the nodes whose ids are in this table."),
    keep_graph: bool = table(
        "Use the training graph stored with the model.", True, "--graph/--no-graph"
    ),
    unknown_groups: bool = table("Treat new groups as unknown.", False, "--allow-unknown-groups"),
    trust: bool = table("Load classifiers of types that could run code.", False, "--trust"),
    safe_csv: options.SafeCSV = True,
    as_json: options.AsJson = False,
) -> None:
    """Predict new nodes or a new graph with a saved model.

    Columns of tables are found by name, as in training. The file has one row per node, in the
    order of the node table: its id, its group (the sensitive column), its label if there is one,
    the probability of each class and the decision. A page beside it, predictions.csv.html, shows
    decisions by group, and with labels accuracy and gaps too.

    Small batches are corrected per node: closing a gap between a few people would overturn
    decisions that are nearly certain.

    A model trained on tables keeps its graph: new nodes use their edges to it, and the gap is
    closed among the new ones. Or give tables of all nodes and edges, and say with --where or --only
    who is predicted.
    """
    file = outputs.free_name("predictions.csv") if out is None else out
    _check_file(file, source, overwrite=overwrite)
    from fairmp.training.classifier import FairClassifier
    from fairmp.training.modes import choose_mode
    from fairmp.training.tables import NodesToPredict, predict_table, read_nodes, select_nodes

    output.starting("predicting")

    if not model.is_dir():
        hint = "give the folder of a saved model, or results of 'fairmp train'"
        raise InputError("model", f"there is no folder {model}", hint)
    folder = model / "model" if (model / "model").is_dir() else model
    fitted = FairClassifier.load(folder, trust=trust)
    with source.paths() as (nodes, edges):
        if data is not None:
            graph = options.Graph(source.nodes, id=source.id, data=data, data_dir=data_dir)
            chosen = NodesToPredict(graph.load())
        else:
            chosen = read_nodes(
                fitted,
                nodes,
                edges,
                id=source.id,
                edge_source=source.edge_source,
                edge_target=source.edge_target,
                folder=folder if keep_graph else None,
                unknown_groups=unknown_groups,
            )
        if where or only:
            mask = select_nodes(chosen.graph, nodes, where=where, only=only, id=source.id)
            chosen = NodesToPredict(chosen.graph, mask)
    choice = choose_mode(fitted, chosen, "per-node" if explain and mode == "auto" else mode)
    warnings = _warnings(fitted, choice, model)
    prediction = predict_table(
        fitted, chosen, choice.mode, id=source.id, folder=folder, explain=explain
    )
    page = _page(prediction, file, [choice.note, *warnings])
    with outputs.text_files({_page_of(file): page}, new=not overwrite):
        _write(prediction.table, file, overwrite=overwrite, safe_csv=safe_csv)
    for warning in warnings:
        output.say(f"fairmp: warning: {warning}")
    _report(prediction, chosen, file, choice, as_json=as_json)
    figures = None if prediction.evaluation is None else prediction.evaluation.to_dict()
    gate.check(Gap.of_evaluation(figures, gate.criterion), impact_ratio=Gap.impact_ratio(figures))


def _warnings(model: FairClassifier, choice: ModeChoice, run: Path) -> list[str]:
    """Why the mode may be a bad choice, and what per-node correction did at training."""
    from fairmp.report.predictions import recorded_warning

    duals = model.group_duals_
    corrects = choice.mode == "per-node" and duals is not None and bool(duals.any())
    return [*filter(None, [choice.warning, recorded_warning(run) if corrects else ""])]


def _page_of(file: Path) -> Path:
    """The page of a table; tables of one name and two formats have one each."""
    return file.with_name(f"{file.name}.html")


def _check_file(file: Path, source: options.Places, *, overwrite: bool) -> None:
    """Raise if predictions cannot be written to a file."""
    if file.suffix.lower() not in FORMATS:
        raise InputError("--out", f"{file} ends in neither .csv nor .parquet", "give one of them")
    parent = file.absolute().parent
    if not parent.is_dir():
        raise InputError("--out", f"{parent} is not a folder", "give another")
    for path in (file, _page_of(file)):
        outputs.check_file("out", path, (source.nodes, source.edges), overwrite=overwrite)


def _write(predictions: pd.DataFrame, file: Path, *, overwrite: bool, safe_csv: bool) -> None:
    from fairmp.postprocessing.prediction_table import without_formulas

    with outputs.atomic_file(file, new=not overwrite, private=True) as draft:
        if file.suffix.lower() == ".csv":
            safe = without_formulas(predictions) if safe_csv else predictions
            safe.to_csv(draft, index=False, float_format="%.9g")
        else:
            predictions.to_parquet(draft, index=False)


def _changed_decisions(parts: Sequence[Explanation]) -> dict[str, int] | None:
    """Number of decisions that the neighbours and the correction changed."""
    if not parts:
        return None
    stages = [part.decisions for part in parts]
    return {
        "neighbours": sum(own != near for own, near, _ in stages),
        "correction": sum(near != last for _, near, last in stages),
    }


def _page(prediction: TablePrediction, file: Path, notes: Sequence[str]) -> str:
    """The report: decisions, and figures by group where they are known."""
    from fairmp.report.predictions import predictions_page

    decisions = prediction.table[prediction.columns.decision].value_counts()
    return predictions_page(
        f"Predictions in {file.name}",
        {str(name): int(count) for name, count in decisions.items()},
        prediction.evaluation,
        measured_on=prediction.measured_on,
        notes=[note for note in (*notes, prediction.note) if note],
        command=output.rerun_command(),
    )


def _report(
    prediction: TablePrediction,
    nodes: NodesToPredict,
    file: Path,
    choice: ModeChoice,
    *,
    as_json: bool,
) -> None:
    """Print how many nodes got which decision, and the figures if there are any."""
    from fairmp.datasets.load_report import messages
    from fairmp.report.evaluations import cautions

    read = messages(nodes.graph)
    count = len(prediction.table)
    columns = prediction.columns
    decisions = prediction.table[columns.decision].value_counts().to_dict()
    if columns.renamed:
        names = ", ".join([*columns.probabilities, columns.decision])
        read = [
            *read,
            f"{shortlist(columns.renamed)} in the tables: predictions in {names}",
        ]
    lines = [*read, *filter(None, [choice.note, prediction.note])]
    lines += [f"{name}: {k:,} of {plural(count, 'person')}" for name, k in decisions.items()]
    changes = _changed_decisions(prediction.explanations)
    if changes is not None:
        lines.append(
            f"Neighbours changed {changes['neighbours']:,} decisions, the correction "
            f"{changes['correction']:,}."
        )
    evaluation = prediction.evaluation
    if evaluation is not None:
        lines += [f"Measured on {prediction.measured_on}:", str(evaluation)]
        lines += [f"note: {note}" for note in cautions(evaluation)]
    record = {
        "file": str(file),
        "nodes": count,
        "mode": choice.mode,
        "mode_note": choice.note,
        "decisions": decisions,
        "changed_by": changes,
        "columns": {"probabilities": columns.probabilities, "decision": columns.decision},
        "read": read,
        "evaluation": None if evaluation is None else evaluation.to_dict(),
    }
    output.report(as_json, record, *lines, f"Predictions in {file}; open {_page_of(file)}.")
