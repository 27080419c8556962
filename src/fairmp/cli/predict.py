"""``fairmp predict``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.gate import CriterionGate, of_evaluation
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

    from fairmp.training.classifier import FairClassifier


def command(
    model: Annotated[
        Path, typer.Argument(help="Folder of a saved model, or results of 'fairmp train'.")
    ],
    gate: CriterionGate,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions, CSV or Parquet; by default predictions.csv."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    data: Annotated[str | None, typer.Option(help=options.DATA_HELP)] = None,
    data_dir: options.DataDir = None,
    nodes: options.Nodes = None,
    edges: Annotated[
        str | None,
        options.own("Edge table: two columns of node ids; leave it out if there are no edges."),
    ] = None,
    nodes_query: options.NodesQuery = None,
    edges_query: options.EdgesQuery = None,
    id: Annotated[
        str | None, options.own("Column with the node ids, if not as in training.", "--id")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="'batch' closes the gap of all these nodes together; 'per-node' applies the "
            "correction found in training to each node, whichever others are predicted."
        ),
    ] = "batch",
    unknown_groups: Annotated[
        bool,
        options.own("Treat groups not seen in training as unknown.", "--allow-unknown-groups"),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict new nodes or a new graph with a saved model.

    Columns of tables are found by name, as in training. The file has one row per node, in the
    order of the node table: its id, its group (the sensitive column), its label if there is one,
    the probability of each class and the decision. With labels, accuracy and gaps are shown too. A
    single node needs --mode per-node, since it has no gap to close.
    """
    goal = _goal(out, (nodes, edges), overwrite=overwrite)

    from fairmp.training.classifier import FairClassifier

    place = model / "model" if (model / "model").is_dir() else model
    names = {"path": "MODEL", "label": "--nodes", "sensitive": "--nodes", "mode": "--mode"}
    with options.typed({**names, "unknown_groups": "--allow-unknown-groups"}):
        fitted = FairClassifier.load(place)
        with options.table_files(nodes, nodes_query, edges, edges_query) as tables:
            graph = _graph(fitted, data, data_dir, *tables, id, allow=unknown_groups)
        proba, found = fitted.predict_and_evaluate(graph, mode=mode)  # type: ignore[arg-type]
    predictions = _table(fitted, graph, proba.cpu().numpy(), id)
    with outputs.atomic_file(goal) as draft:
        if goal.suffix.lower() == ".csv":
            predictions.to_csv(draft, index=False, float_format="%.6f")
        else:
            predictions.to_parquet(draft, index=False)
    report = getattr(graph, "report", None)
    read = [] if report is None else list(report.lines())
    count, decisions = len(predictions), predictions["decision"].value_counts().to_dict()
    figures = None if found is None else found.to_dict()
    if as_json:
        record = {"file": str(goal), "nodes": count, "mode": mode, "decisions": decisions}
        record |= {"read": read, "evaluation": figures}
        typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
        return gate.check([of_evaluation(figures, gate.criterion)])
    lines = [*read, *(f"{name}: {k:,} of {count:,} nodes" for name, k in decisions.items())]
    if figures is not None:
        from fairmp.report.from_evaluation import cautions

        lines += ["Measured on all these nodes, including any the model was trained on:"]
        lines += [str(found), *(f"note: {note}" for note in cautions(figures))]
    typer.echo("\n".join([*lines, f"Predictions in {goal}."]))
    gate.check([of_evaluation(figures, gate.criterion)])


def _goal(out: Path | None, tables: Iterable[str | None], *, overwrite: bool) -> Path:
    """Return the file for the predictions, checked before any work is done for it."""
    out = outputs.free_name("predictions.csv") if out is None else out
    if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError("--out", f"{out} ends in neither .csv nor .parquet", "give one of them")
    if out.is_dir():
        raise InputError("--out", f"{out} is a folder", "give the name of a file")
    if out.exists() and not overwrite:
        raise InputError("--out", f"{out} exists", "give another name, or add --overwrite")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is no folder that can be written to", "give another")
    outputs.check_writable(folder)
    for table in tables:
        if table and out.exists() and Path(table).exists() and out.samefile(table):
            raise InputError("--out", f"{out} is an input table", "give another name")
    return out


def _graph(
    fitted: FairClassifier,
    data: str | None,
    data_dir: Path | None,
    nodes: Path | None,
    edges: Path | None,
    id: str | None,
    *,
    allow: bool,
) -> Data:
    if data is not None:
        table = None if nodes is None else str(nodes)
        return options.Graph(nodes=table, id=id, data=data, data_dir=data_dir).load()
    if nodes is None:
        hint = "give --nodes and --edges (--nodes alone for nodes without edges), or --data"
        raise InputError("--nodes", "missing", hint)
    if fitted.encoding_ is None:
        value = "the model was not trained on tables, so it cannot encode columns as features"
        raise InputError("--nodes", value, "give --data, or train on tables")
    from fairmp.datasets import from_tables

    # A model that does not correct by group at prediction needs no groups there.
    unknown: Any = "refuse" if fitted.uses_groups and not allow else "allow"
    return from_tables(nodes, edges, id=id, encoding=fitted.encoding_, unknown_groups=unknown)


def _table(fitted: FairClassifier, graph: Data, proba: Any, id: str | None) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    encoding, ids = getattr(graph, "encoding", None), getattr(graph, "ids", None)
    title = id or (encoding.id if encoding else None) or "node"
    columns: dict[str, Any] = {title: range(len(proba)) if ids is None else ids.to_pandas()}
    # The sensitive column and the labels, if there are any, are for 'fairmp debias' to find.
    if encoding and len(encoding.sensitive) == 1 and (graph.sens >= 0).any():
        column = encoding.sensitive[0].column
        names = [name.removeprefix(f"{column} = ") for name in encoding.groups]
        columns[column] = np.array([*names, ""], dtype=object)[graph.sens.numpy()]
    if encoding and "y" in graph and (graph.y >= 0).any():
        names = [*encoding.label.classes, ""]
        columns[encoding.label.column] = np.array(names, dtype=object)[graph.y.numpy()]
    columns |= {f"p({name})": proba[:, k] for k, name in enumerate(fitted.classes_)}
    columns["decision"] = np.array(fitted.classes_, dtype=object)[proba.argmax(1)]
    return pd.DataFrame(columns)
