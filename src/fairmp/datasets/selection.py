"""Select nodes of a graph by a column of their table, or by a list of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.column_names import require_column
from fairmp.datasets.ids import blank_to_null, comparable, positions
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError


def rows_where(nodes: Path, column: str, value: str) -> torch.Tensor:
    """Mask of the rows of a node table that have a value, as it is written, in a column."""
    reader = TableReader(nodes, "nodes")
    require_column("where", column, reader.names, "the node table")
    [cells] = reader.table((column,), text=(column,)).columns
    return torch.tensor([str(cell).strip() == value for cell in cells.to_pylist()])


def nodes_listed(data: Data, table: Path, id: str | None) -> torch.Tensor:
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
