"""``fairmp predict``."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairmp import outputs
from fairmp.cli import options
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from torch_geometric.data import Data

    from fairmp.metrics import Evaluation
    from fairmp.training.classifier import FairClassifier

_OWN = "Your own tables"


def command(
    model: Annotated[
        Path,
        typer.Argument(help="Folder of a saved model, or results of 'fairmp train' with one."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Predictions' file, CSV or Parquet; by default a new predictions.csv."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help="A data set ('fairmp data list' names them), 'embedded', or 'embedded:3000' for "
            "3,000 nodes."
        ),
    ] = None,
    data_dir: options.DataDir = None,
    nodes: options.Nodes = None,
    edges: Annotated[
        Path | None,
        typer.Option(
            help="Edge table: two columns of node ids; leave it out where there are no ties.",
            rich_help_panel=_OWN,
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id", help="Column with the node ids, if not as in training.", rich_help_panel=_OWN
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="'solve' closes the gap of all these nodes together; 'frozen' corrects each "
            "as was found best in training, whoever else is asked for."
        ),
    ] = "solve",
    unknown_groups: Annotated[
        bool,
        typer.Option(
            "--allow-unknown-groups",
            help="Take groups that training did not know for unknown.",
            rich_help_panel=_OWN,
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict new nodes or a new graph with a saved model.

    Tables are read as those the model was trained on: their columns are found by name. The file has
    a row a node, in the order of the node table: its id, its group (the sensitive column), the
    probability of each class and the decision. Where labels are there, accuracy and gaps are shown
    too. One node, or nodes without ties, need no --edges; give --mode frozen then, since one node
    has no gap to close.
    """
    goal = _goal(out, overwrite=overwrite)
    for table in (nodes, edges):
        if table is not None and table.exists() and goal.exists() and table.samefile(goal):
            raise InputError("--out", f"{goal} is a table to read", "give another name")

    from fairmp.training.classifier import FairClassifier

    if mode not in ("solve", "frozen"):
        raise InputError("--mode", f"{mode!r} is unknown", "choose 'solve' or 'frozen'")
    place = model / "model" if (model / "model").is_dir() else model
    try:
        fitted = FairClassifier.load(place)
        graph = _graph(fitted, data, data_dir, nodes, edges, id, allow=unknown_groups)
        proba = fitted.predict_proba(graph, mode=mode)  # type: ignore[arg-type]
        found = _evaluation(fitted, graph, mode)
    except InputError as error:
        raise InputError.parse(_as_typed(str(error))) from None
    predictions = _table(fitted, graph, proba.cpu().numpy(), id)
    _write(predictions, goal)
    if as_json:
        record = {
            "file": str(goal),
            "nodes": len(predictions),
            "mode": mode,
            "decisions": predictions["decision"].value_counts().to_dict(),
            "read": _read(graph),
            "evaluation": None if found is None else found.to_dict(),
        }
        typer.echo(json.dumps(record, ensure_ascii=False, allow_nan=False))
        return
    for line in _read(graph):
        typer.echo(line)
    for name, count in predictions["decision"].value_counts().items():
        typer.echo(f"{name}: {count:,} of {len(predictions):,} nodes")
    if found is not None:
        from fairmp.report.from_evaluation import cautions

        typer.echo("Measured on all these nodes, any the model was trained on among them:")
        typer.echo(str(found))
        for note in cautions(found.to_dict()):
            typer.echo(f"note: {note}")
    typer.echo(f"Predictions in {goal}.")


def _goal(out: Path | None, *, overwrite: bool) -> Path:
    """Where the predictions go, checked before any work is done for them."""
    if out is None:
        out, count = Path("predictions.csv"), 1
        while out.exists():
            count += 1
            out = Path(f"predictions-{count}.csv")
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
        return options.load_data(data, data_dir, nodes, edges, id, None, None, None, None)
    if nodes is None:
        raise InputError(
            "--nodes",
            "missing",
            "give --nodes and --edges (--nodes alone for nodes without ties), or --data",
        )
    if fitted.encoding_ is None:
        raise InputError(
            "--nodes",
            "the model was not trained on tables, so it does not know how columns become features",
            "give --data, or train on tables",
        )
    from fairmp.datasets import from_tables
    from fairmp.nn.fmp import FMP

    # A model that is not corrected by group at prediction needs no groups there.
    needed = isinstance(fitted.propagation, FMP) and not allow
    return from_tables(
        nodes,
        edges,
        id=id,
        encoding=fitted.encoding_,
        unknown_groups="refuse" if needed else "allow",
    )


def _as_typed(message: str) -> str:
    """Say of options what the library says of arguments."""
    argument, _, rest = message.partition(": ")
    options = {"nodes": "--nodes", "edges": "--edges", "id": "--id", "path": "MODEL"}
    options |= {"label": "--nodes", "sensitive": "--nodes"}
    if argument in options:
        message = f"{options[argument]}: {rest}"
    message = message.replace("unknown_groups='allow'", "--allow-unknown-groups")
    return message.replace("mode='frozen'", "--mode frozen")


def _table(fitted: FairClassifier, graph: Data, proba: Any, id: str | None) -> pd.DataFrame:
    import pandas as pd

    encoding = getattr(graph, "encoding", None)
    ids = getattr(graph, "ids", None)
    title = id or (encoding.id if encoding else None) or "node"
    columns: dict[str, Any] = {
        title: range(len(proba)) if ids is None else ids.to_pandas(),
        **_groups(graph),
        **{f"p({name})": proba[:, k] for k, name in enumerate(fitted.classes_)},
    }
    names = pd.Series(fitted.classes_)
    return pd.DataFrame({**columns, "decision": names[proba.argmax(1)].to_numpy()})


def _groups(graph: Data) -> dict[str, Any]:
    """The sensitive column, if there is one, so that 'fairmp debias' finds it in the file."""
    import numpy as np

    encoding = getattr(graph, "encoding", None)
    if encoding is None or len(encoding.sensitive) != 1 or not (graph.sens >= 0).any():
        return {}
    column = encoding.sensitive[0].column
    names = [name.removeprefix(f"{column} = ") for name in encoding.groups]
    return {column: np.array([*names, ""], dtype=object)[graph.sens.numpy()]}


def _evaluation(fitted: FairClassifier, graph: Data, mode: str) -> Evaluation | None:
    """What can be measured: gaps where groups are known, accuracy where labels are too."""
    if "y" not in graph or "sens" not in graph:
        return None
    if len(graph.sens[graph.sens >= 0].unique()) < 2:
        return None
    from torch import ones_like

    everyone = ones_like(graph.sens, dtype=bool)  # type: ignore[arg-type]
    return fitted.evaluate(graph, nodes=everyone, mode=mode)  # type: ignore[arg-type]


def _write(table: pd.DataFrame, goal: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{goal.name}-", dir=goal.absolute().parent)
    os.close(handle)
    staging = Path(name)
    try:
        if goal.suffix.lower() == ".csv":
            table.to_csv(staging, index=False, float_format="%.6f")
        else:
            table.to_parquet(staging, index=False)
        staging.chmod(0o666 & ~_umask())
        os.replace(staging, goal)
    finally:
        staging.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read(graph: Data) -> list[str]:
    report = getattr(graph, "report", None)
    return [] if report is None else list(report.lines())
