"""Values keep their identity: ids, groups, classes and categories, from training to prediction."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp import InputError
from fairmp.datasets import from_tables
from fairmp.datasets.edges import comparable, positions
from fairmp.datasets.encoding import Encoding, Roles
from fairmp.datasets.load_report import LoadReport
from fairmp.distributed import shard_tables
from fairmp.distributed.node_table import read_nodes as read_in_columns

LARGE = 12345678901234561  # float(LARGE) is another number
ROLES = {"id": "id", "label": "y", "sensitive": "s"}


def people(n: int = 40, **columns: object) -> pd.DataFrame:
    frame = pd.DataFrame({"id": range(n), "y": [0, 1] * (n // 2), "s": list("aab" * n)[:n]})
    return frame.assign(**columns)


def path_graph(ids: object) -> pd.DataFrame:
    ids = list(ids)
    return pd.DataFrame({"one": ids[:-1], "other": ids[1:]})


@pytest.mark.parametrize(
    ("nodes", "edges", "matches"),
    [
        ([LARGE, LARGE - 1], [f"{LARGE}.0", f"{LARGE - 1}.0"], [0, 1]),
        ([LARGE, LARGE - 1], [f"{LARGE - 1}.00", None], [1, -1]),
        (["a", "1"], ["1.0", "a"], [1, 0]),
        (["a", "1.0"], [1, 2], [1, -1]),
        ([1, 2], ["b", "2.0", "1.200e+01"], [-1, 1, -1]),
        (["b", "12"], ["1.200e+01", "b"], [1, 0]),
    ],
)
def test_ids_match_exactly(nodes: list, edges: list, matches: list[int]) -> None:
    ids, ends = comparable(pa.array(nodes), pa.array(edges))
    assert positions(ids, ends).tolist() == matches


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True), st.data())
def test_large_ids_agree_with_a_dict(numbers: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(numbers), min_size=1))
    forms = data.draw(st.lists(st.sampled_from(["{}", "{}.0"]), min_size=1))
    cells = [forms[k % len(forms)].format(number) for k, number in enumerate(wanted)]
    mixed = data.draw(st.booleans())
    ids, ends = comparable(pa.array(numbers), pa.array([*cells, *(["x"] if mixed else [])]))
    expected = [numbers.index(number) for number in wanted] + [-1] * mixed
    assert positions(ids, ends).tolist() == expected


@pytest.mark.parametrize("large", [2.0**53, float(LARGE), 1e300])
def test_float_ids_that_are_not_exact_are_refused(large: float, tmp_path: Path) -> None:
    nodes = people()
    ends = path_graph(nodes.id).astype(float)
    ends.loc[3, "other"] = large
    with pytest.raises(InputError, match="exact"):
        from_tables(nodes, ends, **ROLES)
    ends.to_parquet(tmp_path / "edges.parquet")
    with pytest.raises(InputError, match="exact"):
        from_tables(nodes, tmp_path / "edges.parquet", **ROLES)
    with pytest.raises(InputError, match="exact"):
        from_tables(nodes.assign(id=nodes.id * large), ends, **ROLES)


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".csv"])
@pytest.mark.parametrize("stray", [math.nan, 0.5])
def test_whole_float_ids_match_integers(suffix: str, stray: float, tmp_path: Path) -> None:
    nodes = people()
    nodes["id"] = 10**15 + np.arange(len(nodes))
    ends = path_graph(nodes.id).astype(float)
    ends.loc[3, "other"] = stray
    paths = tmp_path / f"nodes{suffix}", tmp_path / f"edges{suffix}"
    for frame, path in zip((nodes, ends), paths, strict=True):
        if suffix == ".csv":
            frame.to_csv(path, index=False)
            continue
        # Arrow has NaN where pandas would write an empty cell.
        table = pa.table({name: pa.array(frame[name].to_numpy()) for name in frame})
        write = parquet.write_table if suffix == ".parquet" else feather.write_feather
        write(table, path)
    data = from_tables(*paths, **ROLES)
    assert (data.report.edges, data.report.dangling) == (len(nodes) - 2, 1)
    manifest = shard_tables(*paths, tmp_path / "shards", **ROLES, parts=1)
    assert manifest.edges == len(nodes) - 2


def test_decimal_ids_of_parquet_are_exact(tmp_path: Path) -> None:
    nodes = people()
    table = pa.Table.from_pandas(nodes.drop(columns="id"), preserve_index=False)
    ids = pa.array([LARGE + k for k in range(len(nodes))])
    table = table.append_column("id", ids.cast(pa.decimal128(20, 0)))
    parquet.write_table(table, tmp_path / "nodes.parquet")
    data = from_tables(tmp_path / "nodes.parquet", path_graph(ids.to_pylist()), **ROLES)
    assert data.report.edges == len(nodes) - 1
    assert data.report.dangling == 0


def write_and_load(frame: pd.DataFrame, folder: Path, **options: object):
    frame.to_csv(folder / "nodes.csv", index=False)
    return from_tables(
        folder / "nodes.csv", path_graph(range(len(frame))), **(ROLES | {"id": None} | options)
    )


@pytest.mark.parametrize(
    "values",
    [
        ["1000000.1", "1000000.3", "1000000.5"],
        [str(LARGE), str(LARGE - 1), ""],
        [str(10**25), str(10**25 + 1)],
        ["0.1", "0.10000000000000000001", "0.3"],
        ["1E3", "2B4", "1000"],
        ["01", "1", "x"],
    ],
)
def test_distinct_values_stay_distinct(values: list[str], tmp_path: Path) -> None:
    column = [values[k % len(values)] for k in range(40)]
    distinct = len(set(values) - {""})
    for role in ("y", "s"):
        frame = people().assign(**{role: column}).drop(columns="id")
        data = write_and_load(frame, tmp_path)
        names = data.class_names if role == "y" else data.group_names
        codes = (data.y if role == "y" else data.sens).numpy()
        assert len(set(names)) == distinct
        texts = [name.removeprefix("s = ") for name in names]
        assert [texts[code] if code >= 0 else "" for code in codes] == column
        # The shards read one column at a time.
        roles = Roles(label="y", sensitive="s")
        table = read_in_columns(tmp_path / "nodes.csv", roles, tmp_path, LoadReport())
        assert (table.y if role == "y" else table.sens).tolist() == codes.tolist()


def test_float_groups_that_are_not_exact_are_refused() -> None:
    frame = people().assign(s=[float(LARGE), 5.0] * 20)
    with pytest.raises(InputError, match="exact"):
        from_tables(frame, path_graph(frame.id), **ROLES)
    with pytest.raises(InputError, match="exact"):
        from_tables(frame.assign(y=frame.s, s=["a", "b"] * 20), path_graph(frame.id), **ROLES)


def test_bins_close_together_have_names_of_their_own() -> None:
    frame = people().assign(s=[1000000.1 + k / 10 for k in range(40)])
    data = from_tables(
        frame, path_graph(frame.id), **ROLES, sensitive_bins=[1000000.3, 1000000.5, 1000001.0]
    )
    assert len(set(data.group_names)) == 4
    assert len(data.sens.unique()) == 4


def test_crossed_groups_never_merge() -> None:
    frame = people().assign(s=["a × b", "a"] * 20, t=["c", "b × c"] * 20)
    with pytest.raises(InputError, match="×"):
        from_tables(frame, path_graph(frame.id), **(ROLES | {"sensitive": ["s", "t"]}))


def test_crossing_does_not_allocate_all_combinations() -> None:
    n = 400
    columns = {name: [f"{name}{k}" for k in np.arange(2 * n) % n] for name in "stu"}
    frame = people(2 * n).assign(**columns)
    data = from_tables(frame, path_graph(frame.id), **(ROLES | {"sensitive": ["s", "t", "u"]}))
    assert len(data.group_names) == n


CODES = [f"{k:02}" for k in range(1, 20)]


def encoded(frame: pd.DataFrame, encoding: Encoding, folder: Path):
    frame.to_csv(folder / "new.csv", index=False)
    return from_tables(folder / "new.csv", encoding=encoding, id=None)


def test_new_tables_are_typed_as_in_training(tmp_path: Path) -> None:
    codes = [*CODES, "2A"]
    n = 200
    frame = people(n).drop(columns="id")
    frame = frame.assign(
        code=[codes[k % 20] for k in range(n)], s=["1E3", "2B4", "true"] * 66 + ["x"] * 2
    )
    trained = write_and_load(frame, tmp_path)
    assert trained.class_names == ["0", "1"]
    for new in (frame[frame.code != "2A"], frame[frame.s == "1E3"], frame[frame.s == "true"]):
        data = encoded(new, Encoding.from_dict(trained.encoding.to_dict()), tmp_path)
        rows = new.index.tolist()
        assert data.sens.tolist() == trained.sens[rows].tolist()
        np.testing.assert_array_equal(data.x.numpy(), trained.x[rows].numpy())


def test_one_cell_of_text_does_not_change_the_numbers_of_a_column(tmp_path: Path) -> None:
    frame = people(60, code=list(range(15)) * 4, s=[1, 2, 3] * 20).drop(columns="id")
    trained = write_and_load(frame, tmp_path, categorical=["code"])
    new = frame.astype({"code": str, "s": str}).replace({"code": {"1": "01"}})
    new.loc[0, ["code", "s"]] = "unheard"
    new.to_csv(tmp_path / "new.csv", index=False)
    data = from_tables(
        tmp_path / "new.csv", encoding=trained.encoding, id=None, unknown_groups="allow"
    )
    np.testing.assert_array_equal(data.x[1:].numpy(), trained.x[1:].numpy())
    assert data.sens.tolist() == [-1, *trained.sens[1:].tolist()]


def test_share_of_unseen_categories_is_noted_and_a_large_one_warned_of(tmp_path: Path) -> None:
    frame = people(100, code=([f"c{code}" for code in CODES] * 6)[:100]).drop(columns="id")
    trained = write_and_load(frame, tmp_path)
    few, many = frame.copy(), frame.copy()
    few.loc[:4, "code"] = "new"
    many.loc[:19, "code"] = "new"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = encoded(few, trained.encoding, tmp_path)
    assert any("5.0%" in note for note in data.report.notes)
    with pytest.warns(UserWarning, match=r"20\.0%"):
        encoded(many, trained.encoding, tmp_path)


def test_share_of_other_categories_is_compared_with_training(tmp_path: Path) -> None:
    codes = [*([f"c{code}" for code in CODES] * 10), *[f"rare{k}" for k in range(10)]]
    frame = people(200, code=codes).drop(columns="id")
    trained = write_and_load(frame, tmp_path, max_categories=10)
    data = encoded(frame, trained.encoding, tmp_path)
    assert not any("frequent category" in note for note in data.report.notes)
    with pytest.warns(UserWarning, match="in training"):
        encoded(frame.assign(code="none of these"), trained.encoding, tmp_path)


def test_infinite_category_is_stored(tmp_path: Path) -> None:
    frame = people(40, code=[np.inf, 1.0, 2.0, -np.inf] * 10).drop(columns="id")
    trained = write_and_load(frame, tmp_path, categorical=["code"])
    encoding = Encoding.from_dict(trained.encoding.to_dict())
    np.testing.assert_array_equal(encoded(frame, encoding, tmp_path).x.numpy(), trained.x.numpy())
