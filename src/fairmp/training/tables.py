"""Predictions for tables of nodes: which nodes are predicted, and one row for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets import from_tables
from fairmp.datasets.edges import EdgeColumns, blank_to_null, comparable, positions
from fairmp.datasets.new_nodes import NewNodes
from fairmp.datasets.readers import TableReader
from fairmp.datasets.stored_graph import FILE, count_stored, join_nodes
from fairmp.datasets.values import free_names, require_column
from fairmp.errors import InputError, plural
from fairmp.metrics import Evaluation
from fairmp.training.classifier import FairClassifier, Mode
from fairmp.training.explanation import Explanation, explanations
from fairmp.training.new_people import PredictionColumns
from fairmp.training.nodes import Predicted

if TYPE_CHECKING:
    from fairmp.datasets.targets import UnknownGroups


BOOTSTRAP = 1000  # resamples for the intervals


@dataclass(frozen=True)
class NodesToPredict:
    """A graph, and the mask of its nodes that are predicted; all of them by default."""

    graph: Data
    mask: Tensor | None = None


@dataclass(frozen=True)
class TablePrediction:
    """Predictions as a table, and figures if labels and groups are known."""

    table: pd.DataFrame  # one row per node: id, group, label, probabilities and decision
    evaluation: Evaluation | None
    measured_on: str  # which nodes the figures are about
    columns: PredictionColumns
    note: str = ""  # on how they were predicted
    explanations: Sequence[Explanation] = ()  # one per row, if they were asked for


def read_nodes(
    model: FairClassifier,
    nodes: Path | None,
    edges: Path | None,
    *,
    id: str | None = None,
    edge_source: str | None = None,
    edge_target: str | None = None,
    folder: Path | None = None,
    unknown_groups: bool = False,
) -> NodesToPredict:
    """Read tables as those of the training, and join them to the training graph if it is stored.

    ``folder`` is where the model was saved, with that graph; ``None`` does without it.
    """
    if nodes is None:
        hint = "give {nodes} and {edges} ({nodes} alone for nodes without edges), or {data}"
        raise InputError("nodes", "missing", hint)
    if model.encoding_ is None:
        value = "the model was not trained on tables, so it cannot encode columns as features"
        raise InputError("nodes", value, "give {data}, or train on tables")
    allowed: UnknownGroups = "allow" if unknown_groups else "refuse"
    if not model.uses_groups:
        allowed = "ignore"
    encoding = model.encoding_
    if folder is not None and (folder / FILE).exists():
        joined = join_nodes(
            folder / FILE,
            nodes,
            edges,
            encoding=encoding,
            id=id,
            edge_columns=EdgeColumns(edge_source, edge_target),
            unknown_groups=allowed,
        )
        return NodesToPredict(joined.data, joined.is_new)
    graph = from_tables(
        nodes,
        edges,
        encoding=encoding,
        id=id,
        edge_source=edge_source,
        edge_target=edge_target,
        unknown_groups=allowed,
    )
    return NodesToPredict(graph)


def select_nodes(
    graph: Data,
    nodes: Path | None,
    *,
    where: str | None = None,
    only: Path | None = None,
    id: str | None = None,
) -> Tensor:
    """Mask of the nodes with a value (``where="year=2024"``), and with an id in a table."""
    argument = "where" if where else "only"
    if nodes is None:
        raise InputError(argument, "there is no node table", "give {nodes}, the table of all nodes")
    mask = torch.ones(graph.x.size(0), dtype=torch.bool)
    if where:
        column, equals, value = where.partition("=")
        if not equals or not column:
            raise InputError("where", f"{where!r} is not COLUMN=VALUE", "write year=2024")
        rows = _rows_where(nodes, column, value)  # of the table, which come first
        mask[: len(rows)] = rows
        mask[len(rows) :] = False
    if only is not None:
        mask &= _nodes_listed(graph, only, id or graph.encoding.id)
    if not mask.any():
        raise InputError(argument, "names no node", "check the value")
    return mask


def _rows_where(nodes: Path, column: str, value: str) -> Tensor:
    """Mask of the rows of a node table that have a value, as it is written, in a column."""
    reader = TableReader(nodes, "nodes")
    require_column("where", column, reader.names, "the node table")
    [cells] = reader.table((column,), text=(column,)).columns
    return torch.tensor([str(cell).strip() == value for cell in cells.to_pylist()])


def _nodes_listed(data: Data, table: Path, id: str | None) -> Tensor:
    """Mask of the nodes whose ids are in a table; all of them must be nodes."""
    reader = TableReader(table, "only")
    column = id if id in reader.names else reader.names[0]
    [cells] = reader.table((column,), text=(column,)).columns
    ids, wanted = comparable(data.__dict__["ids"], blank_to_null(cells.combine_chunks()))
    rows = positions(ids, wanted)
    if (rows < 0).any():
        example = wanted[int((rows < 0).argmax())].as_py()
        raise InputError("only", f"{example!r} is not in the node table", "give ids of {nodes}")
    mask = torch.zeros(len(ids), dtype=torch.bool)
    mask[torch.from_numpy(rows.astype(np.int64))] = True
    return mask


def predict_table(
    model: FairClassifier,
    nodes: NodesToPredict,
    mode: Mode,
    *,
    id: str | None = None,
    folder: Path | None = None,
    explain: bool = False,
) -> TablePrediction:
    """Predict nodes, and measure them if labels and two groups are known.

    Per node, those that are joined to the stored graph and not in it are predicted as
    :meth:`FairClassifier.predict_new` does. ``folder`` is where the model was saved, to tell nodes
    of the training graph from others. With ``explain``, columns say what the own data, the
    neighbours and the correction contribute (:mod:`fairmp.training.explanation`).
    """
    stored = _num_stored(nodes) if mode == "per-node" else None
    if explain and stored != 0:
        value = "only people who are not in the stored training graph, predicted per node"
        raise InputError("explain", value, "give new people, and save the model with its graph")
    if stored == 0:
        predicted = _predict_new(model, nodes)
    else:
        predicted = model.fitted_.predict(nodes.graph, nodes.mask, mode)
    table = _table(model, nodes, predicted.logits.softmax(1).cpu().numpy(), id)
    evaluation = None
    if "y" in predicted.data and "sens" in predicted.data:
        codes = groups.certain_group(predicted.data.sens)[predicted.nodes]
        if len(codes[codes >= 0].unique()) > 1:
            evaluation = model.fitted_.measure(predicted, mode, BOOTSTRAP)
    note = ""
    if stored:
        note = (
            f"{plural(stored, 'node')} of the training graph among them: known people receive "
            "messages, too, and the probabilities of new ones differ a little from predict_new"
        )
    parts = _explain(model, nodes) if explain else []
    if parts:
        table = table.assign(**explanation_columns(parts, [*map(str, table.columns)]))
    return TablePrediction(
        table, evaluation, _measured_on(nodes, folder), prediction_columns(model, id), note, parts
    )


def explanation_columns(parts: Sequence[Explanation], taken: Sequence[str]) -> dict[str, list[Any]]:
    """The parts of the logits, and the decisions of the first two stages."""
    usual = ["logit: own data", "logit: neighbours", "logit: correction"]
    usual += ["decision: own data", "decision: with neighbours"]
    rows = [[part.own, part.neighbours, part.correction, *part.decisions[:2]] for part in parts]
    return dict(zip(free_names(usual, taken), map(list, zip(*rows, strict=True)), strict=True))


def prediction_columns(model: FairClassifier, id: str | None = None) -> PredictionColumns:
    """Name the columns of a model's predictions, other than those it was trained on and the id."""
    return PredictionColumns.of(model.classes_, model.encoding_, id)


def _num_stored(nodes: NodesToPredict) -> int | None:
    """Number of nodes to predict that are in the stored graph, if there is one."""
    origin = nodes.graph.get("origin")
    if origin is None or nodes.mask is None:
        return None
    return int(nodes.mask[origin].sum())


def _predict_new(model: FairClassifier, nodes: NodesToPredict) -> Predicted:
    """Predict nodes that are joined to the stored graph and not in it."""
    data, mask = model.fitted_.align(nodes.graph, nodes.mask)
    logits = model.new_people().logits(NewNodes.of_joined(nodes.graph))
    return Predicted(data, mask, logits[_chosen_of_new(nodes)].to(model.fitted_.device))


def _chosen_of_new(nodes: NodesToPredict) -> Tensor:
    """Which of the new nodes are predicted (a mask)."""
    assert nodes.mask is not None
    is_new = torch.ones(len(nodes.mask), dtype=torch.bool)
    is_new[nodes.graph.origin] = False
    return nodes.mask[is_new]


def _explain(model: FairClassifier, nodes: NodesToPredict) -> list[Explanation]:
    stages = model.new_people().stages(NewNodes.of_joined(nodes.graph))
    parts = explanations(stages, model.classes_)
    return [parts[row] for row in _chosen_of_new(nodes).nonzero()[:, 0].tolist()]


def _table(
    model: FairClassifier, nodes: NodesToPredict, proba: np.ndarray, id: str | None
) -> pd.DataFrame:
    graph, encoding = nodes.graph, getattr(nodes.graph, "encoding", None)
    rows = np.arange(len(graph.sens)) if nodes.mask is None else nodes.mask.numpy().nonzero()[0]
    ids = getattr(graph, "ids", None)
    title = id or (encoding.id if encoding else None)
    if title is None:
        [title] = free_names(["node"], encoding.column_names if encoding else ())
    columns = {title: rows if ids is None else ids.to_pandas()[rows].to_numpy()}
    if encoding is not None:  # for 'fairmp debias' to find
        sens = graph.sens.numpy()[rows]
        if len(encoding.sensitive) == 1 and (sens >= 0).any():
            column = encoding.sensitive[0].column
            names = [name.removeprefix(f"{column} = ") for name in encoding.groups]
            columns[column] = np.array([*names, ""], dtype=object)[sens]
        y = graph.y.numpy()[rows] if "y" in graph else np.array([-1])
        if (y >= 0).any():
            classes = np.array([*encoding.label.classes, ""], dtype=object)
            columns[encoding.label.column] = classes[y]
    added = prediction_columns(model, id)
    columns |= dict(zip(added.probabilities, proba.T, strict=True))
    columns[added.decision] = np.array(model.classes_, dtype=object)[proba.argmax(1)]
    return pd.DataFrame(columns)


def _measured_on(nodes: NodesToPredict, folder: Path | None) -> str:
    """Say whether nodes of the training graph are among those predicted, where it is known."""
    ids = getattr(nodes.graph, "ids", None)
    if ids is None or folder is None or not (folder / FILE).exists():
        return "all these nodes, including any the model was trained on"
    if nodes.mask is not None:
        ids = ids.filter(nodes.mask.numpy())
    count = count_stored(folder / FILE, ids)
    return f"all these nodes, including {count:,} of the training graph" if count else "these nodes"
