"""``fairmp predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from fairmp import outputs
from fairmp.cli import options, output
from fairmp.cli.options import CriterionGate, Gap, argument, option, table
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.training.classifier import Mode
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
        "'batch' closes the gap of these nodes together; 'per-node' corrects each alone.", "batch"
    ),
    where: str | None = table("Predict only the rows with a value, as in 'year=2024'."),
    only: Path | None = table("Predict only the nodes whose ids are in this table."),
    keep_graph: bool = table("Use the training graph, kept with it.", True, "--graph/--no-graph"),
    unknown_groups: bool = table("Treat new groups as unknown.", False, "--allow-unknown-groups"),
    trust: bool = table("Load classifiers of types that could run code.", False, "--trust"),
    safe_csv: options.SafeCSV = True,
    as_json: options.AsJson = False,
) -> None:
    """Predict new nodes or a new graph with a saved model.

    Columns of tables are found by name, as in training. The file has one row per node, in the
    order of the node table: its id, its group (the sensitive column), its label if there is one,
    the probability of each class and the decision. With labels, accuracy and gaps are shown too. A
    single node needs --mode per-node, since it has no gap to close.

    A model trained on tables keeps its graph: new nodes use their edges to it, and the gap is
    closed among the new ones. Or give tables of all nodes and edges, and say with --where or --only
    who is predicted.
    """
    file = outputs.free_name("predictions.csv") if out is None else out
    _check_file(file, source, overwrite=overwrite)
    from fairmp.training.classifier import FairClassifier
    from fairmp.training.tables import NodesToPredict, predict_table, read_nodes, select_nodes

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
                folder=folder if keep_graph else None,
                unknown_groups=unknown_groups,
            )
        if where or only:
            mask = select_nodes(chosen.graph, nodes, where=where, only=only, id=source.id)
            chosen = NodesToPredict(chosen.graph, mask)
    prediction = predict_table(fitted, chosen, cast("Mode", mode), id=source.id, folder=folder)
    _write(prediction.table, file, overwrite=overwrite, safe_csv=safe_csv)
    _report(prediction, chosen, file, mode, as_json=as_json)
    figures = None if prediction.evaluation is None else prediction.evaluation.to_dict()
    gate.check(Gap.of_evaluation(figures, gate.criterion))


def _check_file(file: Path, source: options.Places, *, overwrite: bool) -> None:
    """Raise if predictions cannot be written to a file."""
    if file.suffix.lower() not in FORMATS:
        raise InputError("--out", f"{file} ends in neither .csv nor .parquet", "give one of them")
    parent = file.absolute().parent
    if not parent.is_dir():
        raise InputError("--out", f"{parent} is not a folder", "give another")
    outputs.check_file("out", file, (source.nodes, source.edges), overwrite=overwrite)


def _write(predictions: pd.DataFrame, file: Path, *, overwrite: bool, safe_csv: bool) -> None:
    from fairmp.postprocessing.prediction_table import without_formulas

    with outputs.atomic_file(file, new=not overwrite) as draft:
        if file.suffix.lower() == ".csv":
            safe = without_formulas(predictions) if safe_csv else predictions
            safe.to_csv(draft, index=False, float_format="%.9g")
        else:
            predictions.to_parquet(draft, index=False)


def _report(
    prediction: TablePrediction, nodes: NodesToPredict, file: Path, mode: str, *, as_json: bool
) -> None:
    """Print how many nodes got which decision, and the figures if there are any."""
    from fairmp.datasets.load_report import messages
    from fairmp.report.evaluations import cautions

    read = messages(nodes.graph)
    count = len(prediction.table)
    decisions = prediction.table["decision"].value_counts().to_dict()
    lines = [*read, *(f"{name}: {k:,} of {count:,} nodes" for name, k in decisions.items())]
    evaluation = prediction.evaluation
    if evaluation is not None:
        lines += [f"Measured on {prediction.measured_on}:", str(evaluation)]
        lines += [f"note: {note}" for note in cautions(evaluation)]
    record = {
        "file": str(file),
        "nodes": count,
        "mode": mode,
        "decisions": decisions,
        "read": read,
        "evaluation": None if evaluation is None else evaluation.to_dict(),
    }
    output.report(as_json, record, *lines, f"Predictions in {file}.")
