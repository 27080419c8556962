"""Tables whose content is compared cell by cell: with Python's own reading, and with themselves.

A table is encoded, and some of its rows again, in another order, format and dialect, as a table for
prediction would be. Every node must have the id, the group, the class, the edges and the features
that it had.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fairmp import FMP, FairClassifier
from fairmp.datasets import from_tables
from fairmp.datasets.encoding import Encoding
from fairmp.datasets.stored_graph import join_nodes, save_graph
from fairmp.training.tables import NodesToPredict, predict_table

IDS = {  # how the ids of k = 0, 1, … are written
    "number": lambda k: str(k),
    "beyond 2^53": lambda k: str(2**53 + 1 + k),
    "beyond 2^63": lambda k: str(2**63 + k),
    "hash": lambda k: f"#{k}",
    "percent": lambda k: f"%{k}",
    "zeros": lambda k: f"{k:05d}",
    "word": lambda k: f"P{k}",
    "mixed": lambda k: str(k) if k % 5 else f"x{k}",
}
VALUES = {  # of groups and classes; distinct texts are distinct values
    "words": ["f", "m", "x"],
    "codes": ["01", "1", "02"],
    "hexadecimal": ["1E3", "2A", "1000"],
    "spellings": ["Jos\u00e9", "Jose\u0301", "JOS\u00c9"],
    "large": [str(2**53 + 1), str(2**53 + 2), str(2**53 + 3)],
    "decimals": ["1000000.1", "1000000.3", "1000000.5"],
    "signs": ["#a", "%b", "'-5"],
    "numbers": ["0", "1", "2"],
}
NAMES = ["decision", "decision_2", "p(f)", "p(0)", "node", "y_2", "Income", "INCOME", "x"]
FEATURES = {
    "codes": [*(f"{k:02d}" for k in range(1, 9)), "2A"],
    "words": ["north", "south", "\u00c6r\u00f8", "it's", "x,y"],
    "flags": ["true", "false"],
    "grades": ["1", "2", "3"],
    "infinite": ["inf", "low", "high"],
}


def people(rng: np.random.Generator) -> pd.DataFrame:
    """A node table as text."""
    n = int(rng.integers(16, 60))
    make = IDS[str(rng.choice(list(IDS)))]
    names = [str(name) for name in rng.permutation(NAMES)]
    roles = {"id": names[0], "label": names[1], "sensitive": names[2]}
    cells = {roles["id"]: [make(int(k)) for k in rng.permutation(n)]}
    for role in ("label", "sensitive"):
        values = VALUES[str(rng.choice(list(VALUES)))][: int(rng.integers(2, 4))]
        column = [str(rng.choice(values)) for _ in range(n)]
        column[: 2 * len(values)] = values * 2
        cells[roles[role]] = column
    for name in names[3 : 3 + int(rng.integers(1, 5))]:
        kind = str(rng.choice([*FEATURES, "quantity"]))
        if kind == "quantity":
            cells[name] = [f"{value:.3f}" for value in rng.normal(size=n) * 100]
        else:
            cells[name] = [str(rng.choice(FEATURES[kind])) for _ in range(n)]
    frame = pd.DataFrame(cells)
    frame.attrs["roles"] = roles
    return frame


def write(frame: pd.DataFrame, rng: np.random.Generator, place: Path, name: str) -> Path:
    """Write a table of text in some format."""
    kind = str(rng.choice(["csv", "excel", "tsv", "parquet"], p=[0.5, 0.2, 0.2, 0.1]))
    path = place / f"{name}.{'parquet' if kind == 'parquet' else 'csv'}"
    if kind == "parquet":
        frame.to_parquet(path)
        return path
    separator = {"csv": ",", "excel": ";", "tsv": "\t"}[kind]
    text = frame.to_csv(index=False, sep=separator)
    path.write_text(f"sep=;\n{text}" if kind == "excel" else text, encoding="utf-8")
    return path


def case(rng: np.random.Generator, place: Path) -> str:
    frame = people(rng)
    roles, n = frame.attrs["roles"], len(frame)
    ids = frame[roles["id"]].tolist()
    pairs = rng.integers(n, size=(2 * n, 2))
    edges = pd.DataFrame([(ids[a], ids[b]) for a, b in pairs], columns=["from", "to"])
    nodes_file, edges_file = write(frame, rng, place, "nodes"), write(edges, rng, place, "edges")
    data = from_tables(nodes_file, edges_file, **roles)
    check(data, frame, roles)
    assert edge_set(data) == {tuple(sorted(pair)) for pair in pairs.tolist() if pair[0] != pair[1]}
    encoding = Encoding.from_dict(data.encoding.to_dict())
    # Some of the rows again, as another program would write them.
    rows = rng.permutation(n)[: int(rng.integers(2, n))]
    new = frame.iloc[rows]
    new = new[[str(name) for name in rng.permutation(new.columns)]]
    source = new.reset_index(drop=True) if rng.random() < 0.3 else write(new, rng, place, "new")
    again = from_tables(source, None, encoding=encoding, id=roles["id"])
    check(again, new, roles)
    assert torch.equal(again.x.to_dense(), data.x.to_dense()[torch.from_numpy(rows)])
    graph = save_graph(data, place)
    joined = join_nodes(graph, source, None, encoding=encoding, id=roles["id"])
    place_of = joined.data.origin
    assert torch.equal(joined.data.x.to_dense()[place_of], data.x.to_dense())
    assert torch.equal(joined.data.sens[place_of], data.sens)
    if rng.random() < 0.1:
        check_columns(data, frame, roles)
        return "compared, predicted"
    return "compared"


def edge_set(data) -> set[tuple[int, int]]:
    return {(a, b) for a, b in data.edge_index.T.tolist() if a < b}


def check(data, frame: pd.DataFrame, roles: dict[str, str]) -> None:
    """Ids, groups and classes of a graph are the cells of the table it was made from."""
    assert torch.isfinite(data.x.to_dense()).all()
    assert [str(value) for value in data.ids.to_pylist()] == frame[roles["id"]].tolist()
    stem = f"{roles['sensitive']} = "
    groups = [data.group_names[k].removeprefix(stem) for k in data.sens.tolist()]
    assert groups == frame[roles["sensitive"]].tolist()
    classes = [data.class_names[k] for k in data.y.tolist()]
    assert classes == frame[roles["label"]].tolist()


def check_columns(data, frame: pd.DataFrame, roles: dict[str, str]) -> None:
    """Predictions take no name of a column, and the columns of the table stay as they are."""
    model = FairClassifier(FMP(1, 1.0), backbone="mlp", epochs=1, hidden=4)
    model.fit(data, bootstrap=0, progress=False)
    prediction = predict_table(model, NodesToPredict(data), "batch", id=roles["id"])
    columns = prediction.columns
    added = {*columns.probabilities, columns.decision}
    assert len(added) == len(columns.probabilities) + 1
    assert added.isdisjoint(frame.columns)
    labels = prediction.table[roles["label"]].astype(str).tolist()
    assert labels == frame[roles["label"]].tolist()


def warm_up() -> None:
    """Compile what the model needs."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": ["a", "b"] * 10, "s": ["u", "v", "v", "u"] * 5, "x": range(20)})
    edges = pd.DataFrame({"a": rng.integers(20, size=30), "b": rng.integers(20, size=30)})
    data = from_tables(frame, edges, id=None, label="y", sensitive="s")
    FairClassifier(FMP(1, 1.0), backbone="mlp", epochs=1, hidden=4).fit(
        data, bootstrap=0, progress=False
    )
