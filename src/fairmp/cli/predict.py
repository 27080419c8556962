"""``fairmp predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp import outputs
from fairmp.cli import options
from fairmp.cli.options import CriterionGate, argument, option, own
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor
    from torch_geometric.data import Data

    from fairmp.training.classifier import FairClassifier


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
    where: str | None = own("Predict only the rows with a value, as in 'year=2024'."),
    only: Path | None = own("Predict only the nodes whose ids are in this table."),
    keep_graph: bool = own("Use the training graph, kept with it.", True, "--graph/--no-graph"),
    unknown_groups: bool = own("Treat new groups as unknown.", False, "--allow-unknown-groups"),
    trust: bool = own("Load a pickled classifier, which can run anything.", False, "--trust"),
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
    goal = outputs.free_name("predictions.csv") if out is None else out
    if goal.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError("--out", f"{goal} ends in neither .csv nor .parquet", "give one of them")
    folder = goal.absolute().parent
    if not folder.is_dir():
        raise InputError("--out", f"{folder} is no folder that can be written to", "give another")
    options.check_file("--out", goal, (source.nodes, source.edges), overwrite=overwrite)

    from fairmp.cli.prediction_table import without_formulas
    from fairmp.datasets.stored_graph import FILE
    from fairmp.training.classifier import FairClassifier

    place = model / "model" if (model / "model").is_dir() else model
    names = {"path": "MODEL", "backbone": "MODEL", "label": "--nodes", "sensitive": "--nodes"}
    names |= {"mode": "--mode", "unknown_groups": "--allow-unknown-groups"}
    with options.typed(names):
        fitted = FairClassifier.load(place, trust=trust)
        with source.paths() as (nodes, edges):
            if data is not None:
                given = options.Graph(source.nodes, id=source.id, data=data, data_dir=data_dir)
                graph, chosen = given.load(), None
            else:
                # A model that does not correct by group at prediction needs no groups there.
                allow = "allow" if unknown_groups or not fitted.uses_groups else "refuse"
                how = {"id": source.id, "unknown_groups": allow}
                kept = place / FILE if keep_graph else None
                graph, chosen = _graph(fitted, nodes, edges, kept, **how)
            if where or only:
                chosen = _selected(graph, nodes, where, only, source.id)
        proba, found = fitted.predict_and_evaluate(graph, nodes=chosen, mode=mode)  # type: ignore[arg-type]
    predictions = _table(fitted, graph, chosen, proba.cpu().numpy(), source.id)
    with outputs.atomic_file(goal, new=not overwrite) as draft:
        if goal.suffix.lower() == ".csv":
            written = without_formulas(predictions) if safe_csv else predictions
            written.to_csv(draft, index=False, float_format="%.9g")
        else:
            predictions.to_parquet(draft, index=False)
    report = getattr(graph, "report", None)
    read = [] if report is None else list(report.lines())
    count, decisions = len(predictions), predictions["decision"].value_counts().to_dict()
    figures = None if found is None else found.to_dict()
    lines = [*read, *(f"{name}: {k:,} of {count:,} nodes" for name, k in decisions.items())]
    if found is not None:
        from fairmp.report.evaluations import cautions

        lines += [f"Measured on {_measured_on(graph, chosen, place / FILE)}:"]
        lines += [str(found), *(f"note: {note}" for note in cautions(found))]
    record = {"file": str(goal), "nodes": count, "mode": mode, "decisions": decisions}
    record |= {"read": read, "evaluation": figures}
    options.report(as_json, record, *lines, f"Predictions in {goal}.")
    gate.check(options.gap_of_evaluation(figures, gate.criterion))


def _graph(
    fitted: FairClassifier, nodes: Path | None, edges: Path | None, kept: Path | None, **how: Any
) -> tuple[Data, Tensor | None]:
    """Return the graph of tables, and the mask of the nodes to predict, ``None`` for all."""
    if nodes is None:
        hint = "give --nodes and --edges (--nodes alone for nodes without edges), or --data"
        raise InputError("--nodes", "missing", hint)
    if fitted.encoding_ is None:
        value = "the model was not trained on tables, so it cannot encode columns as features"
        raise InputError("--nodes", value, "give --data, or train on tables")
    from fairmp.datasets import from_tables
    from fairmp.datasets.join import join_nodes

    how["encoding"] = fitted.encoding_
    if kept is not None and kept.exists():
        return join_nodes(kept, nodes, edges, **how)
    return from_tables(nodes, edges, **how), None


def _measured_on(graph: Data, chosen: Tensor | None, kept: Path) -> str:
    """Say whether the nodes of the training graph are among those predicted, where it is known."""
    from fairmp.datasets.stored_graph import count_stored

    own = getattr(graph, "ids", None)
    if own is None or not kept.exists():
        return "all these nodes, including any the model was trained on"
    count = count_stored(kept, own if chosen is None else own.filter(chosen.numpy()))
    return f"all these nodes, including {count:,} of the training graph" if count else "these nodes"


def _selected(
    graph: Data, nodes: Path | None, where: str | None, only: Path | None, id: str | None
) -> Tensor:
    """Return the mask of the nodes that --where and --only name."""
    if nodes is None:
        option = "--where" if where else "--only"
        raise InputError(option, "goes with --nodes", "give the table of all nodes")
    import torch

    from fairmp.datasets.selection import nodes_listed, rows_where

    chosen = None
    if where:
        column, equals, value = where.partition("=")
        if not equals or not column:
            raise InputError("--where", f"{where!r} is no COLUMN=VALUE", "write year=2024")
        found = rows_where(nodes, column, value)
        chosen = torch.arange(graph.num_nodes) < 0  # the rows of the table come first
        chosen[: len(found)] = found
    if only is not None:
        found = nodes_listed(graph, only, id or graph.encoding.id)
        chosen = found if chosen is None else chosen & found
    assert chosen is not None
    if not chosen.any():
        raise InputError("--where" if where else "--only", "names no node", "check the value")
    return chosen


def _table(
    fitted: FairClassifier, graph: Data, chosen: Tensor | None, proba: Any, id: str | None
) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    encoding, ids = getattr(graph, "encoding", None), getattr(graph, "ids", None)
    rows = np.arange(graph.num_nodes) if chosen is None else chosen.numpy().nonzero()[0]
    title = id or (encoding.id if encoding else None) or "node"
    columns: dict[str, Any] = {title: rows if ids is None else ids.to_pandas()[rows].to_numpy()}
    # The sensitive column and the labels, if there are any, are for 'fairmp debias' to find.
    sens, y = graph.sens.numpy()[rows], graph.y.numpy()[rows] if "y" in graph else None
    if encoding and len(encoding.sensitive) == 1 and (sens >= 0).any():
        column = encoding.sensitive[0].column
        names = [name.removeprefix(f"{column} = ") for name in encoding.groups]
        columns[column] = np.array([*names, ""], dtype=object)[sens]
    if encoding and y is not None and (y >= 0).any():
        names = [*encoding.label.classes, ""]
        columns[encoding.label.column] = np.array(names, dtype=object)[y]
    columns |= {f"p({name})": proba[:, k] for k, name in enumerate(fitted.classes_)}
    columns["decision"] = np.array(fitted.classes_, dtype=object)[proba.argmax(1)]
    return pd.DataFrame(columns)
